"""Trials behind docs/recipe.md: short trainings on CIFAR-10 that differ in one option.

    LIPCERT_DATA=... python -m tools.lab dial --seeds 0 1
    LIPCERT_DATA=... python -m tools.lab recipe --only crop

A trial takes the fast recipe with the options of its study and its own. Accuracies are estimates on the 5,000
held-out training images, by the better of the last and the averaged weights; no test image is read. Every
trial adds one line to results/lab.jsonl, and what is there already is not run again.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure

from lipcert.certify.curve import RADII
from lipcert.machine import cpu_model
from lipcert.report.style import drawing, stroke
from lipcert.runs.config import TrainConfig
from lipcert.runs.metrics import read_metrics
from lipcert.training.devices import make_fabric
from lipcert.training.interruption import Interruption
from lipcert.training.progress import Silent
from lipcert.training.recipes import apply_recipe
from lipcert.training.trainer import Trainer
from tools.bench.tables import markdown_table, read_record

RECORD = Path(__file__).parents[1] / "results/lab.jsonl"


@dataclass(frozen=True)
class Study:
    """Trials that can be compared: `base` for all of them, and by a label what each has of its own."""

    base: Mapping[str, Any]
    trials: Mapping[str, Mapping[str, Any]]


SMALL = {"data": "cifar10", "depth": 5, "width": 8, "epochs": 6}
STUDIES = {
    "dial": Study(
        SMALL,
        {
            **{f"certificate, gamma {gamma:g}": {"gamma": gamma} for gamma in (0.0, 0.25, 0.5, 1.0, 2.0)},
            **{
                f"cross entropy, offset {offset:g}": {"gamma": 0.0, "offset": offset}
                for offset in (0.5, 1.0, 2.0)
            },
            "annealing, offset 2, temperature 3": {"loss": "annealing", "offset": 2.0, "temperature": 3.0},
            "annealing, offset 8, temperature 3": {"loss": "annealing", "offset": 8.0, "temperature": 3.0},
            "emma, epsilon 0.14": {"loss": "emma", "epsilon": 0.14},
            "emma, epsilon 0.42": {"loss": "emma", "epsilon": 0.42},
        },
    ),
    "recipe": Study(
        SMALL,
        {
            "the fast recipe": {},
            **{f"Muon, step {step:g}": {"muon_step": step} for step in (0.02, 0.08)},
            "batches of 256": {"batch_size": 256},
            "batches of 1,024": {"batch_size": 1024},
            "crops padded by 2": {"crop": 2},
            "no average": {"ema": 0.0},
            "SGD, batches of 128": {"optimizer": "sgd", "batch_size": 128},
            "isometric series": {"series": "isometric"},
            "cosine schedule": {"schedule": "cosine"},
            "MaxMin": {"activation": "maxmin"},
            "Householder, order 2": {"activation": "hh2"},
            "LLN head": {"head": "lln"},
            "width 16, 2 epochs": {"width": 16, "epochs": 2},
            "depth 9": {"depth": 9},
            "depth 9, 4 epochs": {"depth": 9, "epochs": 4},
        },
    ),
    "crops": Study(
        SMALL | {"epochs": 12},
        {
            "no crops": {"crop": 0},
            **{
                f"padded by {pixels}, {border}": {"crop": pixels, "border": border}
                for pixels in (1, 2, 4)
                for border in ("black", "reflect")
            },
        },
    ),
}


def run_trial(study: str, label: str, seed: int, threads: int) -> dict[str, Any]:
    """Train, and return what the held-out images say."""
    given = {**STUDIES[study].base, **STUDIES[study].trials[label], "seed": seed, "threads": threads}
    config = TrainConfig(**apply_recipe("fast", given).options)
    config = TrainConfig(**config.to_dict() | {"eval_every": config.epochs})
    with tempfile.TemporaryDirectory() as folder:
        Trainer(config, Path(folder), make_fabric(config), Silent(), Interruption()).run()
        last = [row for row in read_metrics(Path(folder)) if row["kind"] == "epoch"][-1]
    found = last["held_out_average"] if last.get("better") == "average" else last["held_out"]
    return {
        "study": study,
        "trial": label,
        "seed": seed,
        "options": config.to_dict(),
        "held_out": found,
        "loss": last["loss"],
        "core_minutes": last["elapsed"] * threads / 60,
        "machine": f"{cpu_model()}, torch {torch.__version__}",
    }


def read_trials() -> list[dict[str, Any]]:
    """All trials that were run."""
    if not RECORD.exists():
        return []
    return [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def table(study: str) -> str:
    """A study as a table: means over seeds, in the order of the study."""
    if not RECORD.exists():
        read_record(RECORD, f"lab {study}")
    rows, machines, missing = [], set(), []
    for label in STUDIES[study].trials:
        found = [trial for trial in read_trials() if (trial["study"], trial["trial"]) == (study, label)]
        if not found:
            missing.append(label)
            continue
        columns = [
            [trial["held_out"]["standard"] for trial in found],
            *([trial["held_out"]["certified"][radius] for trial in found] for radius in RADII),
        ]
        average = [mean(values) for values in zip(*columns, strict=True)]
        spread = f" ± {100 * stdev(average):.1f}" if len(average) > 1 else ""
        rows.append(
            [
                label,
                *(f"{100 * mean(values):.1f}" for values in columns),
                f"{100 * mean(average):.1f}{spread}",
                str(len(found)),
            ]
        )
        machines |= {trial["machine"] for trial in found}
    base = STUDIES[study].base
    head = ["trial", "standard", *RADII, "mean", "seeds"]
    return markdown_table(head, rows, numbers=len(head) - 1) + (
        f"\n\nLipConvnet-{base['depth']} of width {base['width']} on CIFAR-10, {base['epochs']} epochs of "
        "the fast recipe unless a trial says otherwise; percent of 5,000 held-out images, estimates. ± is "
        f"the standard deviation over seeds. Measured on {' and '.join(sorted(machines))}."
        + (f" Not run yet: {'; '.join(missing)}." if missing else "")
    )


def dial_figure() -> Figure:
    """Accuracy against certified accuracy at the largest radius; a line joins the settings of one loss."""
    radius = list(RADII)[-1]
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for label in STUDIES["dial"].trials:
        loss, _, setting = label.partition(", ")
        found = [trial["held_out"] for trial in read_trials() if trial["trial"] == label]
        if found:
            clean = 100 * mean(each["standard"] for each in found)
            certified = 100 * mean(each["certified"][radius] for each in found)
            lines.setdefault(loss, []).append((certified, clean, setting))
    with drawing():
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for position, (loss, points) in enumerate(lines.items()):
            look = stroke(position)
            axes.plot(
                [x for x, _, _ in points], [y for _, y, _ in points],
                label=loss, color=look.colour, linestyle=look.line, marker=look.marker,
            )  # fmt: skip
            for x, y, setting in points:
                axes.annotate(setting, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7)
        axes.set(xlabel=f"right and certified at {radius}, % of held-out images", ylabel="right, %")
        axes.legend(loc="lower left")
        return figure


def main() -> None:
    """Run what is missing of a study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", help="trials whose label contains this")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for seed in options.seeds:
        for label in STUDIES[options.study].trials:
            done = {(trial["study"], trial["trial"], trial["seed"]) for trial in read_trials()}
            if options.only not in label or (options.study, label, seed) in done:
                continue
            trial = run_trial(options.study, label, seed, options.threads)
            with RECORD.open("a", encoding="utf-8") as file:
                file.write(json.dumps(trial) + "\n")
            print(label, seed, json.dumps(trial["held_out"]), f"{trial['core_minutes']:.1f} min", flush=True)


if __name__ == "__main__":
    main()
