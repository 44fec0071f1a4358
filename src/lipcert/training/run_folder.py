"""The folder of a run: who may write into it, and what it holds from the start."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcert.errors import ArgumentError, CheckpointError, TrainingError
from lipcert.files import write_atomically
from lipcert.training.checkpoint import Checkpoint, read_checkpoint
from lipcert.training.config import TrainConfig
from lipcert.training.devices import on_rank_zero
from lipcert.training.metrics import ENVIRONMENT, environment

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CONFIG = "config.toml"


def find_start(config: TrainConfig, out: Path, *, resume: bool, fabric: "Fabric") -> Checkpoint | None:
    """Check that the run may use `out` and return where it goes on; writes nothing.

    None is the very start: a new run, or one that was killed before its first checkpoint.

    Raises:
        ArgumentError: `out` holds a run already, or is no folder.
        CheckpointError: nothing to resume, or a damaged checkpoint.
        TrainingError: an option that decides the weights is not what the run began with.
    """
    on_rank_zero(fabric, lambda: _check(config, out, resume))
    return read_checkpoint(out) if resume else None


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
    if resume and (out / ENVIRONMENT).exists():
        # The command that made the run stays; the one that went on with it stands beside it.
        try:
            before = json.loads((out / ENVIRONMENT).read_text(encoding="utf-8"))
            first = before["command"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{out / ENVIRONMENT} is damaged ({error}); remove it to go on") from error
        described |= {"command": first, "resumed_by": described["command"]}
        if "started_from" in before:
            described.setdefault("started_from", before["started_from"])
    write_atomically(out / ENVIRONMENT, (json.dumps(described, indent=2) + "\n").encode())
    write_atomically(out / CONFIG, config.to_toml().encode())


def _check(config: TrainConfig, out: Path, resume: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"out: expected a folder, got the file {out}")
    begun = (out / CONFIG).exists()
    if not resume:
        if begun:
            raise ArgumentError(f"out: {out} already holds a run; resume it, or choose another folder")
        return
    if not begun:
        raise CheckpointError(f"resume: {out} holds no run; start one without --resume")
    if changes := TrainConfig.read(out / CONFIG).changes(config):
        raise TrainingError(
            f"resume: {'; '.join(changes)} changed since the run in {out} began; resume with the old value, "
            "or start a new run in another folder"
        )
    checkpoint = read_checkpoint(out)  # a damaged one stops every process, with one message
    if checkpoint is None:
        return
    if changes := TrainConfig.from_dict(checkpoint.position.config).changes(config):
        raise TrainingError(
            f"resume: {checkpoint.path} was written with other options ({'; '.join(changes)}); "
            "it does not belong to this run"
        )
