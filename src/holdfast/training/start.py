"""Weights to begin with: those of another network in the place of random ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast import zoo
from holdfast.certify.exact import network_hash
from holdfast.errors import ArgumentError
from holdfast.models.lipconvnet import LipConvnet, LipConvnetConfig
from holdfast.models.storage import load
from holdfast.training.metrics import ENVIRONMENT
from holdfast.training.summary import SUMMARY

SHAPING = ("depth", "conv", "activation", "width", "series", "in_channels", "mean", "std", "stages")
"""What two networks must have in common for the body of one to fit the other."""

OPTIONS = ("depth", "conv", "activation", "head", "width", "series")
"""Options of a run that its first weights decide, unless they are given."""


def network_options(source: str) -> dict[str, Any]:
    """Options of the network at `source`, as a run names them, and the side of its images.

    Raises:
        CheckpointError: no such network.
    """
    config = asdict(_load(source).config)
    return {name: config[name] for name in (*OPTIONS, "image_size")}


def begin_with(model: LipConvnet, source: str) -> dict[str, Any]:
    """Give `model` the weights of a saved network.

    The body is taken whole. The head is taken too if it is of the same kind, for as many classes; else it
    stays as it is, random.

    Args:
        model: a network on the CPU, whose weights are replaced.
        source: the folder of a run (its best model), a .safetensors file, or the name of one that ships.

    Returns:
        what tells later where it came from: the source, the hash of its network, and the epochs that this was
        trained for (None if nobody wrote that down).

    Raises:
        CheckpointError: no such network.
        ArgumentError: it is of another shape; all that differs is named.
    """
    given = _load(source)
    mine, theirs = _shape(model.config, SHAPING), _shape(given.config, SHAPING)
    if other := [name for name in SHAPING if mine[name] != theirs[name]]:
        found, asked = (", ".join(f"{name} {it[name]}" for name in other) for it in (theirs, mine))
        raise ArgumentError(
            f"start_from: {source} has {found}, but this run {asked}; make the two equal, or start from "
            "another network"
        )
    model.body.load_state_dict(given.body.state_dict())
    same = ("head", "num_classes", "features")
    if _shape(model.config, same) == _shape(given.config, same):
        model.head.load_state_dict(given.head.state_dict())
    return {"network": source, "weights_sha256": network_hash(given), "epochs": _epochs(source)}


def _load(source: str) -> LipConvnet:
    best = Path(source) / "best.safetensors"
    return load(best if best.is_file() else source)


def _shape(config: LipConvnetConfig, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


def _epochs(source: str) -> float | None:
    """For how many epochs a network was trained, those of the networks that it started from included."""
    folder = Path(source)
    if (folder / SUMMARY).is_file():
        own = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["epochs"]
        before = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8")).get("started_from")
    elif source in zoo.networks():
        training = json.loads((zoo.FOLDER / f"{source}.json").read_text(encoding="utf-8"))["training"]
        own, before = training["epochs"], training.get("started_from")
    else:
        return None
    if before is None:
        return float(own)
    return None if before["epochs"] is None else float(own + before["epochs"])
