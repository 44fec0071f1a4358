"""Folders of finished runs, written as the training loop writes them, with chosen numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lipcert.files import CONFIG
from lipcert.paper.budget import Budget
from lipcert.paper.run import folder_name
from lipcert.paper.tables import tables
from lipcert.runs.summary import RunSummary

SMALL = Budget(epochs=5, width=16, schedule="onecycle", lr=0.3)


def accuracies(values: tuple[float, float, float, float], **more: Any) -> dict[str, Any]:
    """Percentages as the shares that the training writes."""
    standard, *certified = (value / 100 for value in values)
    return {
        "images": 10_000,
        "standard": standard,
        "certified": dict(zip(("36/255", "72/255", "108/255"), certified, strict=True)),
        **more,
    }


def evaluation(epoch: float, elapsed: float, held_out: dict[str, Any] | None = None) -> str:
    """A line of metrics.jsonl."""
    found = accuracies((50.0, 40.0, 30.0, 20.0)) if held_out is None else held_out
    rest = {"kind": "epoch", "step": 351, "loss": 1.0, "images_per_second": 9.0, "held_out": found}
    return json.dumps(rest | {"epoch": epoch, "elapsed": elapsed}) + "\n"


def verdict(**more: Any) -> str:
    """The content of audit.json."""
    counts = {"images": 1000, "certified": 1000, "broken": 0, "points_tried": 9, "points_inside": 4}
    return json.dumps(counts | {"ratio": {"smallest": 1.5, "median": 2.0}, "attacks": ["pgd"]} | more)


WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    def write(
        table: str,
        row: str,
        best: tuple[float, float, float, float],
        *,
        last: tuple[float, float, float, float] | None = None,
        held_out: tuple[float, float, float, float] = (50.0, 40.0, 30.0, 20.0),
        seed: int = 0,
        budget: Budget = SMALL,
    ) -> Path:
        config = budget.config(tables()[table].select([row])[0].network, seed)
        folder = tmp_path / "results" / folder_name(config)
        folder.mkdir(parents=True)
        (folder / CONFIG).write_text(config.to_toml())
        environment = {"cpu": "A CPU", "threads": 2, "gpus": [], "torch": "2.13.0", "lipcert": "0.1.0"}
        (folder / "environment.json").write_text(json.dumps(environment))
        RunSummary(
            out=str(folder),
            steps=1755,
            epochs=5.0 if config.minutes is not None else float(config.epochs),
            elapsed=5400.0,
            images_per_second=41.6,
            loss=1.0,
            held_out=accuracies(held_out),
            best=accuracies(held_out, step=1404),
            test={
                "last": accuracies(best if last is None else last, lipschitz=3.98885),
                "best": accuracies(best, lipschitz=3.988831),
            },
        ).write(folder)
        return folder

    return write
