"""Checks and creates the folder of a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcert.errors import ArgumentError, CheckpointError, TrainingError
from lipcert.files import CONFIG, ENVIRONMENT, write_atomically
from lipcert.runs.checkpoint import Checkpoint, read_checkpoint
from lipcert.runs.config import TrainConfig
from lipcert.runs.metrics import environment, read_environment
from lipcert.training.devices import on_rank_zero

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def find_start(config: TrainConfig, out: Path, *, resume: bool, fabric: "Fabric") -> Checkpoint | None:
    """Check that the run may use `out` and return the checkpoint to continue from; writes nothing.

    None for a new run, and for one that was killed before its first checkpoint.

    Raises:
        ArgumentError: `out` holds a run already, or is no folder.
        CheckpointError: nothing to resume, or a damaged checkpoint.
        TrainingError: an option that decides the weights is not what the run began with.
    """
    read: list[Checkpoint | None] = []
    on_rank_zero(fabric, lambda: read.append(_check(config, out, resume)))
    return read[0] if read else read_checkpoint(out) if resume else None


def describe_run(
    config: TrainConfig,
    out: Path,
    checkpoint: Checkpoint | None,
    started_from: dict[str, Any] | None,
    *,
    resume: bool,
) -> None:
    """Make the folder and write config.toml and environment.json; from here on it holds a run.

    Raises:
        ArgumentError: the folder cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"out: cannot make the folder {out}: {error.strerror or error}") from error
    step = None if checkpoint is None else checkpoint.position.step
    described = environment(step)
    if started_from is not None:
        described["started_from"] = started_from
    if resume and (before := read_environment(out)):
        # The command that made the run stays; the one that went on with it stands beside it.
        if "command" in before:
            described |= {"command": before["command"], "resumed_by": described["command"]}
        if "started_from" in before:
            described.setdefault("started_from", before["started_from"])
    write_atomically(out / ENVIRONMENT, (json.dumps(described, indent=2) + "\n").encode())
    write_atomically(out / CONFIG, config.to_toml().encode())


def _check(config: TrainConfig, out: Path, resume: bool) -> Checkpoint | None:
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"out: expected a folder, got the file {out}")
    begun = (out / CONFIG).exists()
    if not resume:
        if begun:
            raise ArgumentError(f"out: {out} already holds a run; resume it, or choose another folder")
        return None
    if not begun:
        raise CheckpointError(f"resume: {out} holds no run; start one without --resume")
    if changes := TrainConfig.read(out / CONFIG).changes(config):
        raise TrainingError(
            f"resume: {'; '.join(changes)} changed since the run in {out} began; resume with the old value, "
            "or start a new run in another folder"
        )
    checkpoint = read_checkpoint(out)  # a damaged one stops every process, with one message
    if checkpoint is not None and (
        changes := TrainConfig.from_dict(checkpoint.position.config).changes(config)
    ):
        raise TrainingError(
            f"resume: {checkpoint.path} was written with other options ({'; '.join(changes)}); "
            "it does not belong to this run"
        )
    return checkpoint
