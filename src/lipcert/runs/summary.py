"""The summary of a finished run."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipcert.errors import ArgumentError
from lipcert.files import SUMMARY, write_atomically
from lipcert.runs.accuracies import Accuracies, Tested, check_accuracies
from lipcert.schema import read_json


@dataclass(frozen=True)
class RunSummary:
    """Results of a finished run; the content of summary.json.

    Args:
        out: folder of the run.
        steps: training steps done.
        epochs: the same in passes over the training images.
        elapsed: seconds of training and evaluation, over all interruptions, without the test line.
        images_per_second: training images per second of `elapsed`.
        loss: mean training loss since the evaluation before the last.
        held_out: accuracies of the last model on the held-out images, an estimate.
        best: the same of the best model, with its step; `selected_by` says how it was chosen.
        test: proved accuracies on the test set, of the models "last" and "best".
    """

    out: str
    steps: int
    epochs: float
    elapsed: float
    images_per_second: float
    loss: float
    held_out: dict[str, Any]
    best: dict[str, Any]
    test: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "elapsed"):
            if getattr(self, name) <= 0:
                raise ArgumentError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        check_accuracies(Accuracies, self.held_out, "held_out")
        check_accuracies(Accuracies, self.best, "best")
        for model in ("last", "best"):
            check_accuracies(Tested, self.test.get(model), f"test.{model}")

    def write(self, folder: Path) -> None:
        """Write summary.json."""
        write_atomically(folder / SUMMARY, (json.dumps(dataclasses.asdict(self), indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> "RunSummary":
        """Read the summary.json of a finished run.

        Raises:
            CheckpointError: it is not there, or damaged.
        """
        return read_json(folder / SUMMARY, cls)
