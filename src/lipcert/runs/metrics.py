"""What a run writes beside its weights: metrics.jsonl, environment.json, TensorBoard."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch

from lipcert.errors import CheckpointError, not_installed
from lipcert.files import ENVIRONMENT, METRICS, write_atomically
from lipcert.machine import command_line, cpu_model
from lipcert.runs.accuracies import Accuracies, check_accuracies
from lipcert.schema import build, parse_json, read_json


class Record(TypedDict):
    """A line of metrics.jsonl: an evaluation, or a test of a model."""

    kind: str
    step: int
    epoch: float


class Evaluation(Record):
    """A line of the kind "epoch"."""

    loss: float
    elapsed: float
    images_per_second: float
    held_out: Accuracies


class Start(TypedDict):
    """The network that a run started from; None epochs are unknown."""

    network: str
    weights_sha256: str
    epochs: float | None


class Environment(TypedDict):
    """The fields of environment.json that are read back."""

    command: NotRequired[str]
    resumed_by: NotRequired[str]
    started_from: NotRequired[Start]
    gpus: NotRequired[list[str]]


OnMetrics = Callable[[int, dict[str, float]], None]
"""Callback of `train`: called with the step and the numbers of each new record, by their path."""


class MetricsLog:
    """Appends records to metrics.jsonl, one JSON object per line, and mirrors their numbers to TensorBoard.

    Args:
        folder: of the run.
        after_step: step of the run; records of later steps are removed from the file.
        tensorboard: also write TensorBoard events to folder/tensorboard.
        on_metrics: called with the step and all numbers of every record that is written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        after_step: int,
        tensorboard: bool = False,
        on_metrics: OnMetrics | None = None,
    ) -> None:
        self.on_metrics = on_metrics
        self.path = folder / METRICS
        self.writer = import_tensorboard()(str(folder / "tensorboard")) if tensorboard else None
        # Without the test lines, which are written again at the end.
        kept = [r for r in read_metrics(folder) if r["kind"] != "test" and r["step"] <= after_step]
        write_atomically(self.path, "".join(f"{json.dumps(r)}\n" for r in kept).encode())

    def write(self, record: dict[str, Any]) -> None:
        """Append one record."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(record)}\n")
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self.path}: {error.strerror or error}; make room and go on with --resume"
            ) from error
        if self.writer is not None:
            for tag, value in _numbers(record):
                self.writer.add_scalar(tag, value, record["step"])
        if self.on_metrics is not None:
            self.on_metrics(record["step"], dict(_numbers(record)))

    def close(self) -> None:
        """Flush TensorBoard's events."""
        if self.writer is not None:
            self.writer.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All whole records of a run; the half-written last line of a killed run is left out."""
    path = folder / METRICS
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        # What follows the last newline is empty or half a record.
        return [_record(line) for line in lines[:-1]]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove that line, or the file") from error


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of environment.json, {} if there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    path = folder / ENVIRONMENT
    return dict(read_json(path, Environment, "remove it to go on")) if path.exists() else {}


def _record(line: str) -> dict[str, Any]:
    try:
        value = parse_json(line)
        record: dict[str, Any] = build(Record, value)
        if record["kind"] == "epoch":
            record = build(Evaluation, record)
            check_accuracies(Accuracies, record["held_out"], "held_out")
    except ValueError as error:
        raise ValueError(f"{line[:60]!r} is not a JSON record: {error}") from error
    return record


def import_tensorboard() -> Any:
    """The class of TensorBoard's writer.

    Raises:
        ArgumentError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise not_installed("tensorboard", "tensorboard", "log") from error
    return SummaryWriter


def environment(resumed_from_step: int | None) -> dict[str, Any]:
    """Versions, machine, threads and command of this process, for environment.json."""
    return {
        "lipcert": importlib.metadata.version("lipcert"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "lightning-fabric": importlib.metadata.version("lightning-fabric"),
        "system": platform.platform(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": command_line(),
        "resumed_from_step": resumed_from_step,
    }


def _numbers(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """All numbers of a nested record with their path, e.g. ("held_out/standard", 0.61)."""
    if not prefix and record.get("kind") == "test":
        prefix = f"test/{record['model']}/"
    found: list[tuple[str, float]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((f"{prefix}{key}", float(value)))
    return found
