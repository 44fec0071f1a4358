"""Makes a network of the zoo from a finished run: compact weights, and a card with what is proved of them.

    python scripts/make_zoo.py runs/paper/NAME-OF-RUN lipconvnet5-cifar10
    lipcert audit --zoo lipconvnet5-cifar10 --count 1000 --out audits/lipconvnet5-cifar10
    python scripts/make_zoo.py --audit audits/lipconvnet5-cifar10 lipconvnet5-cifar10

Every number on the card is of the network as it ships: rounded to bfloat16, saved, and loaded again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import lipcert as lc
from lipcert.certify.curve import RADII
from lipcert.certify.exact import network_hash
from lipcert.certify.outcomes import Outcomes
from lipcert.data import load as load_data
from lipcert.data import to_float
from lipcert.paper.measure import Run, read_run
from lipcert.paper.tables import reported_rows
from lipcert.zoo import FOLDER as ZOO

LARGEST = 20e6
"""Bytes of one file."""


def make(run_folder: Path, name: str) -> dict[str, Any]:
    run = read_run(run_folder)
    start = _start(run)
    file = ZOO / f"{name}.safetensors"
    lc.save(lc.load(run_folder / "best.safetensors"), file, compact=True)
    if file.stat().st_size > LARGEST:
        raise SystemExit(f"{file}: {file.stat().st_size / 1e6:.1f} MB, at most {LARGEST / 1e6:.0f} ship")
    model, images = lc.load(file), load_data(run.config.data, split="test")
    found = lc.certify(model, to_float(images.images))
    order = torch.arange(len(images))
    outcomes = Outcomes(order, images.labels, found.prediction, found.runner_up, found.radius)
    accuracy = outcomes.accuracy()
    printed = reported_rows().get(run.network)
    return {
        "name": name,
        "data": run.config.data,
        "test_images": len(images),
        "standard": accuracy.standard,
        "certified": {name: accuracy[radius] for name, radius in RADII.items()},
        "median_radius": outcomes.median_radius(),
        "lipschitz": found.lipschitz,
        "precision": found.precision,
        "paper": list(printed[1].reported.values()) if printed else None,
        "before_rounding": {
            key: run.summary.test["best"][key] for key in ("standard", "certified", "lipschitz")
        },
        "training": {
            "run": run.folder.name,
            "budget": run.budget,
            "gamma": run.config.gamma,
            "seed": run.config.seed,
            "held_out": run.config.held_out,
            "epochs": run.summary.epochs,
            "hours": run.hours,
            "cpu": run.environment.get("cpu"),
            "threads": run.environment.get("threads"),
            **({} if start is None else {"started_from": start}),
        },
        "weights_sha256": network_hash(model),
        "audit": None,
    }


def _start(run: Run) -> dict[str, Any] | None:
    """What the run started from, with the cost that its card tells, or the new card that replaced it."""
    if run.config.start_from is None:
        return None
    start = run.environment.get("started_from", {"weights_sha256": None})
    for path in ZOO.glob("*.json"):
        card = json.loads(path.read_text(encoding="utf-8"))
        training = card["training"]
        before: dict[str, Any] = training.get("started_from", {"weights_sha256": "", "epochs": 0, "hours": 0})
        if before["weights_sha256"] == start["weights_sha256"]:
            return before
        if card["weights_sha256"] == start["weights_sha256"]:
            spent = {key: before[key] + training[key] for key in ("epochs", "hours")}
            return {**start, "network": card["name"], "run": training["run"], **spent}
    raise SystemExit(f"{run.folder}: started from a network that does not ship, so its cost is not known")


def add_audit(card: dict[str, Any], folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    if summary["weights_sha256"] != card["weights_sha256"]:
        raise SystemExit(f"{folder}: audits another network than {card['name']}; audit it again")
    keys = ("images", "certified", "attacks", "points_tried", "points_inside", "broken", "found", "ratio")
    return card | {"audit": {key: summary[key] for key in keys}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run")
    parser.add_argument("name", help="name in the zoo")
    parser.add_argument("--audit", type=Path, help="folder that lipcert audit wrote; adds its verdict")
    options = parser.parse_args()
    path = ZOO / f"{options.name}.json"
    if options.audit:
        card = add_audit(json.loads(path.read_text(encoding="utf-8")), options.audit)
    elif options.run:
        card = make(options.run, options.name)
    else:
        parser.error("expected the folder of a run, or --audit")
    path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
