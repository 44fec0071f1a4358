"""Layers side by side: the same network with each convolution, trained for the same time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lipcert.certify.curve import RADII
from lipcert.machine import in_turns
from lipcert.models.freezing import freeze
from lipcert.models.storage import load
from lipcert.runs.config import TrainConfig
from lipcert.runs.run import Run
from lipcert.training.jobs import Job
from lipcert.training.memory import step_memory
from lipcert.training.parts import load_split
from lipcert.training.recipes import apply_recipe

BATCH = 256
"""Images of a forward pass that is timed."""


@dataclass(frozen=True)
class Contestant:
    """What a network with one kind of convolution came to.

    Attributes:
        conv: name of the convolution.
        standard: accuracy on the test images.
        certified: proved accuracy by radius, with the names of `RADII`.
        epochs: passes over the training images.
        training: images per second.
        inference: images per second of the frozen network in float32.
        parameters: how many numbers are trained.
        memory: bytes that tensors hold at most in a training step, of the batch size of the run.
    """

    conv: str
    standard: float
    certified: dict[str, float]
    epochs: float
    training: float
    inference: float
    parameters: int
    memory: int


def plan(convolutions: Sequence[str], given: Mapping[str, Any], out: Path) -> tuple[Job, ...]:
    """One run per convolution, with the options that the fast recipe takes for it.

    Args:
        convolutions: names in the registry.
        given: options of all runs; `series` is for SOC alone.
        out: folder of the runs' folders.
    """
    jobs = []
    for conv in convolutions:
        own = {name: value for name, value in given.items() if name != "series" or conv == "soc"}
        config = TrainConfig.from_dict(
            apply_recipe("fast", {"mirrored": False} | own | {"conv": conv}).options
        )
        jobs.append(Job(config, out / conv))
    return tuple(jobs)


def measure(runs: Sequence[Run], repetitions: int = 5) -> list[Contestant]:
    """Read what finished runs came to, the best at 36/255 first.

    Their frozen networks are timed in turns, and two steps of training are repeated to measure their memory.
    """
    models = [load(run.weights) for run in runs if run.weights is not None]
    images = torch.rand(BATCH, *models[0].config.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        seconds = in_turns([partial(freeze(model), images) for model in models], repetitions)
    split = load_split(runs[0].config)  # of all of them
    found = []
    for run, model, time in zip(runs, models, seconds, strict=True):
        test = run.summary.test["best"]
        found.append(
            Contestant(
                run.config.conv,
                test["standard"],
                test["certified"],
                run.summary.epochs,
                run.summary.images_per_second,
                BATCH / time,
                sum(parameter.numel() for parameter in model.parameters()),
                step_memory(run.config, split),
            )
        )
    first = next(iter(RADII))
    return sorted(found, key=lambda contestant: contestant.certified[first], reverse=True)
