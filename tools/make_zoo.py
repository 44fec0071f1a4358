"""Makes a network of the zoo from a finished run: compact weights, a proved file, its certificates,
and a card with the numbers.

    python -m tools.make_zoo runs/paper/NAME-OF-RUN lipconvnet5-cifar10 [--mirrored] [--average RECORD]
    lipcert audit lipconvnet5-cifar10 --count 1000 --out audits/lipconvnet5-cifar10
    python -m tools.make_zoo --audit audits/lipconvnet5-cifar10 lipconvnet5-cifar10

Every number on the card is of the network as it ships: rounded to bfloat16, proved,
saved and loaded again. With --average what certifies is the mean of two networks: that of the run, whose
weights ship for training to start from, and that of a record in results/ that has its weights
(`python -m tools.keep --weights`).
"""

import argparse
import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import lipcert as lc
from lipcert.certify.curve import RADII
from lipcert.certify.network_file import read_network
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.records import write_records
from lipcert.data import Dataset
from lipcert.data import load as load_data
from lipcert.files import BEST
from lipcert.models.storage import load as load_weights
from lipcert.models.storage import weights_hash
from lipcert.paper.budget import network_of
from lipcert.paper.measure import budget_of, finished_run
from lipcert.paper.tables import reported_rows
from lipcert.pictures import about
from lipcert.runs.audit import read_audit
from lipcert.runs.run import Run
from lipcert.zoo import CERTIFICATES
from lipcert.zoo import FOLDER as ZOO
from lipcert.zoo import card as card_of

RESULTS = Path(__file__).parents[1] / "results"
LARGEST = 20e6
"""Bytes of one file."""


def make(run_folder: Path, name: str, *, mirrored: bool = False, other: Path | None = None) -> dict[str, Any]:
    run = finished_run(run_folder)
    training = _training(run)
    if other is not None:
        training["averaged_with"] = _training(finished_run(other))
    lc.save(load_weights(run_folder / BEST), ZOO / f"{name}.safetensors", compact=True)
    card = proved(name, run.config.data, mirrored=mirrored, other=other)
    printed = reported_rows().get(network_of(run.config))
    return card | {
        "paper": list(printed[1].reported.values()) if printed else None,
        "before_rounding": {
            key: run.summary.test["best"][key] for key in ("standard", "certified", "lipschitz")
        },
        "training": training,
        "audit": None,
    }


def _training(run: Run) -> dict[str, Any]:
    start = _start(run)
    return {
        "run": run.name,
        "budget": budget_of(run),
        "gamma": run.config.gamma,
        "seed": run.config.seed,
        "held_out": run.config.held_out,
        "mirrored": run.config.mirrored,
        "epochs": run.summary.epochs,
        "hours": run.hours,
        "cpu": run.environment.get("cpu"),
        "threads": run.environment.get("threads"),
        **({} if start is None else {"started_from": start}),
    }


def proved(name: str, data: str, *, mirrored: bool, other: Path | None = None) -> dict[str, Any]:
    """Prove the weights that ship, write the proved file, and certify the test set with it."""
    model, images = load_weights(ZOO / f"{name}.safetensors"), load_data(data, split="test")
    file = ZOO / f"{name}.proved.safetensors"
    network = lc.prove(model, classes=images.classes)
    if other is not None:
        network = lc.average([network, lc.prove(load_weights(other / BEST), classes=images.classes)])
    (lc.mirrored(network) if mirrored else network).save(file)
    if file.stat().st_size > LARGEST:
        raise SystemExit(f"{file}: {file.stat().st_size / 1e6:.1f} MB, at most {LARGEST / 1e6:.0f} ship")
    return {"weights_sha256": weights_hash(model), "mirrored": mirrored} | certified(name, images)


def certified(name: str, images: Dataset) -> dict[str, Any]:
    """Certify the test set with the proved file that ships, and write its certificates beside it."""
    file = ZOO / f"{name}.proved.safetensors"
    network = read_network(file)
    found = network.certify(images.pixels)
    with TemporaryDirectory(dir=ZOO) as folder:
        records = write_records(Path(folder), found, about(images), network=network, file=file)
        header, rows = records.read_text(encoding="utf-8").split("\n", 1)
    header = json.dumps(json.loads(header) | {"network": file.name})
    # No time stamp: equal certificates are equal files.
    content = gzip.compress(f"{header}\n{rows}".encode(), mtime=0)
    (ZOO / f"{name}{CERTIFICATES}").write_bytes(content)
    order = torch.arange(len(images))
    outcomes = Outcomes(order, images.labels, found.prediction, found.runner_up, found.radius)
    accuracy = outcomes.accuracy()
    return {
        "name": name,
        "network": network.name,
        "data": images.name,
        "test_images": len(images),
        "standard": accuracy.standard,
        "certified": {key: accuracy[radius] for key, radius in RADII.items()},
        "median_radius": outcomes.median_radius(),
        "lipschitz": found.lipschitz,
        "network_sha256": network.hash,
    }


def _start(run: Run) -> dict[str, Any] | None:
    """What the run started from, with its cost: from the card that it had or has, else from its record."""
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
    for record in RESULTS.glob("*/best.safetensors"):
        if weights_hash(load_weights(record)) == start["weights_sha256"]:
            earlier = finished_run(record.parent)
            return {
                **start,
                "network": earlier.name,
                "run": earlier.name,
                "epochs": earlier.summary.epochs,
                "hours": earlier.hours,
            }
    raise SystemExit(
        f"{run.folder}: started from a network that neither ships nor has its weights in results/, so its "
        "cost is not known"
    )


def add_audit(card: dict[str, Any], folder: Path) -> dict[str, Any]:
    audit = read_audit(folder)
    if audit is None or not audit.is_of(card["network_sha256"]):
        raise SystemExit(f"{folder}: audits another network than {card['name']}; audit it again")
    keys = ("images", "certified", "attacks", "points_tried", "points_inside", "broken", "found", "ratio")
    return card | {"audit": {key: audit.summary[key] for key in keys}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="?", help="folder of a finished run")
    parser.add_argument("name", help="name in the zoo")
    parser.add_argument("--mirrored", action="store_true", help="average over image and mirror image")
    parser.add_argument("--average", metavar="RECORD", type=Path, help="average with the network of a record")
    parser.add_argument("--audit", type=Path, help="folder that lipcert audit wrote; adds its verdict")
    parser.add_argument("--again", action="store_true", help="prove and certify the weights that ship again")
    parser.add_argument("--certify", action="store_true", help="certify the proved file that ships again")
    options = parser.parse_args()
    path = ZOO / f"{options.name}.json"
    if options.audit:
        card = add_audit(card_of(options.name), options.audit)
    elif options.certify:
        known = card_of(options.name)
        card = known | certified(options.name, load_data(known["data"], split="test"))
    elif options.again:
        known = card_of(options.name)
        partner = known["training"].get("averaged_with")
        card = known | proved(
            options.name,
            known["data"],
            mirrored=known.get("mirrored", False),
            other=None if partner is None else RESULTS / partner["run"],
        )
        if card["network_sha256"] != known.get("network_sha256"):
            card["audit"] = None  # of another network
    elif options.run:
        card = make(options.run, options.name, mirrored=options.mirrored, other=options.average)
    else:
        parser.error("expected the folder of a run, --audit, --again or --certify")
    path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
