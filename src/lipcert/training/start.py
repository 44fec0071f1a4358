"""Starts a run from the weights of another network."""

from pathlib import Path
from typing import Any

import torch

from lipcert.data.split import held_out_by
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.files import home_path
from lipcert.models.network import Network, NetworkConfig
from lipcert.models.storage import load, read_config, weights_hash
from lipcert.nn.carried import complete_state
from lipcert.runs.checkpoint import read_checkpoint
from lipcert.runs.config import TrainConfig
from lipcert.runs.naming import find_run
from lipcert.runs.run import Run
from lipcert.training.parts import Split

BODY = (
    "architecture",
    "depth",
    "conv",
    "activation",
    "width",
    "series",
    "dense",
    "in_channels",
    "mean",
    "std",
)
"""Settings that must be equal for the body of one network to fit another; so must its layers."""

HEAD = ("head", "num_classes", "features")
"""The same of the head."""

OPTIONS = ("architecture", "depth", "conv", "activation", "head", "width", "dense", "series", "image_size")
"""Options of a run that come from the network it starts from, unless they are given."""


def network_options(source: str) -> dict[str, Any]:
    """Options of the network at `source`, as a run names them.

    Raises:
        CheckpointError: no such network.
    """
    config = read_config(weights_of(find_run(source)))
    return {name: getattr(config, name) for name in OPTIONS if hasattr(config, name)}


def weights_of(start: Run) -> Path:
    """The file of the weights that a run begins with.

    Raises:
        CheckpointError: only the proved network is there, which cannot be trained.
    """
    if start.weights is None:
        raise CheckpointError(f"start_from: {start.file} is a proved network; expected trainable weights")
    return start.weights


def begin_with(model: Network, start: Run, source: str) -> dict[str, Any]:
    """Give `model` the weights of a saved network.

    The body is taken whole. The head is taken too if it is of the same kind, for as many classes; else it
    stays as it is, random.

    Args:
        model: a network on the CPU, whose weights are replaced.
        start: the network, from `find_run`.
        source: what the user calls it.

    Returns:
        a record of the start: the source, the hash of its network, the epochs of its training (None if they
        are not recorded), and whether its head was taken.

    Raises:
        CheckpointError: no such network.
        ArgumentError: it has another shape; names all settings that differ.
    """
    given = load(weights_of(start))
    other = [name for name in BODY if getattr(model.config, name, None) != getattr(given.config, name, None)]
    if not other and _layers(model) != _layers(given):
        other = ["image_size"]
    if other:
        found, asked = (_describe(config, other) for config in (given.config, model.config))
        raise ArgumentError(
            f"start_from: {source} has {found}, but this run {asked}; make the two equal, or "
            "start from another network"
        )
    model.body.load_state_dict(complete_state(given.body))
    with_head = all(getattr(model.config, name) == getattr(given.config, name) for name in HEAD)
    if with_head:
        model.head.load_state_dict(given.head.state_dict())
    return {
        "network": source,
        "weights_sha256": weights_hash(given),
        "epochs": start.all_epochs,
        "head": "taken" if with_head else "random",
    }


def refuse_other_split(start: Run, config: TrainConfig, split: Split) -> None:
    """Raise if images that trained the start network may select or test this run.

    Every image that this run holds out must have been held out by the start too. A run may hold out fewer:
    what it then trains on in addition selects nothing.

    Args:
        start: the network, from `find_run`.
        config: of the run that begins.
        split: its images.

    Raises:
        ArgumentError: the data are the same, but were split otherwise.
    """
    if split.labels is None or start.data is None or _place(start.data) != _place(config.data):
        return
    held_out, image_size = (
        start.options.get(name, getattr(TrainConfig, name)) for name in ("held_out", "image_size")
    )
    then, now = (held_out_by(split.labels, count) for count in (held_out, config.held_out))
    kept = bool(torch.isin(now.validation, then.validation).all())
    if (recorded := _split_of(start)) is not None:
        images, _, cut = recorded.partition(", split ")
        # Images of another size have another hash; the second part still shows how they were split.
        kept = kept and cut == then.fingerprint
        kept = kept and (image_size != config.image_size or split.fingerprint.startswith(f"{images}, "))
    if not kept:
        raise ArgumentError(
            f"start_from: {config.start_from} was trained on {config.data} too, but with another split, so "
            f"images that trained it would select or test this run; use its held_out {held_out} or "
            "fewer, and the same files"
        )


def _split_of(run: Run) -> str | None:
    """Fingerprint of the images of a run and their split, from its checkpoint; None if there is none."""
    try:
        checkpoint = None if run.folder is None else read_checkpoint(run.folder)
    except CheckpointError:
        return None
    return None if checkpoint is None else checkpoint.position.data


def _place(data: str) -> Path:
    return home_path(data).resolve()


def _layers(model: Network) -> list[str]:
    return [name for name, _ in model.body.named_modules()]


def _describe(config: NetworkConfig, names: list[str]) -> str:
    return ", ".join(f"{name} {getattr(config, name)}" for name in names if hasattr(config, name))
