"""Checkpoints: everything that a bit-identical resume needs, as safetensors with JSON metadata."""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lipcert.errors import ArgumentError, CheckpointError, TrainingError
from lipcert.files import CHECKPOINT, PREVIOUS, write_atomically
from lipcert.nn.carried import carried_vectors, complete_state
from lipcert.runs.accuracies import Accuracies, check_accuracies
from lipcert.runs.metrics import Evaluation
from lipcert.schema import build, parse_json

FORMAT = "lipcert training checkpoint 1"


@dataclass(frozen=True)
class Position:
    """The position of a run. Data order and augmentation follow from seed and step, the rate from the step.

    Args:
        step: steps done.
        total_steps: steps of the whole run; fixed once, also under a time budget.
        elapsed: seconds of work so far, over all interruptions.
        config: the options of the run.
        data: fingerprint of the images and their split.
        best: accuracies of the best model so far, if any.
        latest: record of the latest evaluation, if any.
        losses: sum of the losses and number of steps since the last record in metrics.jsonl.
    """

    step: int
    total_steps: int
    elapsed: float
    config: dict[str, Any]
    data: str
    best: dict[str, Any] | None = None
    latest: dict[str, Any] | None = None
    losses: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        if not 0 <= self.step <= self.total_steps:
            raise ArgumentError(f"step: expected one of {self.total_steps} steps, got {self.step}")
        if self.elapsed < 0 or self.losses[1] < 0:
            raise ArgumentError("elapsed, losses: expected a time and a count that are not negative")
        if self.best is not None:
            check_accuracies(Accuracies, self.best, "best")
            build(int, self.best.get("step"), "best.step")
        if self.latest is not None:
            build(Evaluation, self.latest, "latest")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and validated."""

    path: Path
    position: Position
    tensors: dict[str, Tensor]
    generators: dict[str, Any]


def write_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    *,
    average: nn.Module | None = None,
) -> None:
    """Write model, momentum, position and random state as the latest checkpoint; the one before is kept.

    Args:
        folder: of the run.
        model: its parameters and buffers are written.
        optimizer: its momentum is written; nothing else changes from step to step.
        position: of the run.
        average: a copy of the model whose parameters are averages, if the run keeps one.

    Raises:
        TrainingError: a weight is not finite; nothing is written, so the last good state survives.
        CheckpointError: the file cannot be written; the last checkpoint is intact.
    """
    tensors = {f"model.{name}": value for name, value in complete_state(model).items()}
    for name, parameter in model.named_parameters():
        momentum = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum.{name}"] = momentum
    if average is not None:
        tensors |= {f"average.{name}": value for name, value in average.named_parameters()}
    broken = [
        name for name, value in tensors.items() if value.is_floating_point() and not value.isfinite().all()
    ]
    if broken:
        raise TrainingError(
            f"step {position.step}: {broken[0]} is no longer finite{last_good(folder)}; "
            "try a smaller lr, a schedule with a warmup or precision fp32"
        )
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    generators, states = _generator_states()
    header = {
        "format": FORMAT,
        "position": json.dumps(asdict(position)),
        "generators": json.dumps(generators),
    }
    try:
        write_atomically(folder / CHECKPOINT, save(tensors | states, metadata=header), keep=folder / PREVIOUS)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {folder / CHECKPOINT} at step {position.step}: {error.strerror or error}"
            f"{last_good(folder)}; free disk space or repair the folder, then continue with --resume"
        ) from error


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the latest checkpoint of a run; None if it has none yet.

    Raises:
        CheckpointError: it is truncated, damaged or not a checkpoint of lipcert.
    """
    # A crash between the two renames of a write leaves only the previous one, which is good.
    path = next((folder / name for name in (CHECKPOINT, PREVIOUS) if (folder / name).exists()), None)
    if path is None:
        return None
    try:
        return _read(path)
    except CheckpointError as error:
        previous = folder / PREVIOUS
        if isinstance(error.__cause__, OSError):  # the content may be good
            raise
        if path == previous or not previous.exists():
            raise CheckpointError(f"{error}; remove it to begin again at step 0") from error
        try:
            step = _read(previous).position.step
        except CheckpointError:
            raise CheckpointError(
                f"{error}, and so is {previous}; remove both to begin again at step 0"
            ) from error
        raise CheckpointError(
            f"{error}; the checkpoint before it ({previous}, step {step}) is good: rename it to {CHECKPOINT} "
            "and resume again"
        ) from error


def restore(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    average: nn.Module | None = None,
) -> None:
    """Restore weights, buffers, momentum, averages and the random generators from a checkpoint.

    Raises:
        CheckpointError: it belongs to another network, or holds no averages where the run keeps some.
    """
    saved = {k.removeprefix("model."): v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    expected, carried = complete_state(model), carried_vectors(model)
    for name in [*expected, *saved]:
        wanted, found = expected.get(name), saved.get(name)
        # A layer that has not run yet does not know the shape of its vector.
        if wanted is None or found is None or (name not in carried and wanted.shape != found.shape):
            raise CheckpointError(
                f"{checkpoint.path} belongs to another network: {name} is {_describe(found)} in the file "
                f"and {_describe(wanted)} in the model"
            )
    try:
        model.load_state_dict(saved)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{checkpoint.path} belongs to another network: {reason}") from error
    for name, parameter in model.named_parameters():
        momentum = checkpoint.tensors.get(f"momentum.{name}")
        if momentum is not None:
            if momentum.shape != parameter.shape:
                raise CheckpointError(
                    f"{checkpoint.path} belongs to another network: the momentum of {name} is "
                    f"{_describe(momentum)} in the file and {_describe(parameter)} in the model"
                )
            # empty_like keeps the memory format that the optimizer itself would have chosen.
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
    if average is not None:
        _restore_average(checkpoint, average)
    _restore_generators(checkpoint)


@torch.no_grad()
def _restore_average(checkpoint: Checkpoint, average: nn.Module) -> None:
    for name, parameter in average.named_parameters():
        saved = checkpoint.tensors.get(f"average.{name}")
        if saved is None or saved.shape != parameter.shape:
            raise CheckpointError(
                f"{checkpoint.path} belongs to another run: the average of {name} is {_describe(saved)} in "
                f"the file and {_describe(parameter)} in the model"
            )
        parameter.copy_(saved)


def _read(path: Path) -> Checkpoint:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(
                    f"{path} is not a training checkpoint of this version of lipcert: expected format "
                    f"{FORMAT!r}, got {header.get('format')!r}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        position = build(Position, parse_json(header["position"]))
        generators = _generators(parse_json(header["generators"]), tensors)
        return Checkpoint(path, position, tensors, generators)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is truncated or damaged and cannot be read ({error})") from error


def last_good(folder: Path) -> str:
    """The end of an error message that names the last good checkpoint; empty if there is none."""
    return (
        f"; the last good checkpoint, {folder / CHECKPOINT}, is intact"
        if (folder / CHECKPOINT).exists()
        else ""
    )


def _describe(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"of shape {list(tensor.shape)}"


def _generator_states() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """State of every global random generator of this process, as JSON or as tensors."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    generators = {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, gauss],
    }
    states = {"generator.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["generator.cuda"] = torch.cuda.get_rng_state()
    return generators, states


def _generators(saved: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """States as `random` and numpy take them, each validated by setting a new generator to it.

    Raises:
        ValueError, TypeError, KeyError, RuntimeError: one of them is no state.
    """
    kinds = {"python": tuple[int, tuple[int, ...], float | None],
             "numpy": tuple[str, tuple[int, ...], int, int, float]}  # fmt: skip
    states = {name: build(kind, saved[name], name) for name, kind in kinds.items()}
    kind, keys, *rest = states["numpy"]
    if not all(0 <= key < 2**32 for key in (*keys, *states["python"][1])) or not 0 <= rest[0] <= len(keys):
        raise ValueError("a generator's state has numbers that are no part of one")
    states["numpy"] = (kind, np.array(keys, dtype=np.uint32), *rest)
    random.Random().setstate(states["python"])
    np.random.RandomState().set_state(states["numpy"])
    torch.Generator().set_state(tensors["generator.cpu"])
    return states


def _restore_generators(checkpoint: Checkpoint) -> None:
    random.setstate(checkpoint.generators["python"])
    np.random.set_state(checkpoint.generators["numpy"])
    torch.set_rng_state(checkpoint.tensors["generator.cpu"])
    if "generator.cuda" in checkpoint.tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(checkpoint.tensors["generator.cuda"])
