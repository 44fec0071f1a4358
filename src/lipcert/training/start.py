"""Weights to begin with: those of another network in the place of random ones."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipcert import zoo
from lipcert.errors import ArgumentError, CheckpointError, LipcertError
from lipcert.files import BEST
from lipcert.models.lipconvnet import LipConvnet, LipConvnetConfig
from lipcert.models.storage import load, weights_hash
from lipcert.training.checkpoint import read_checkpoint
from lipcert.training.config import TrainConfig
from lipcert.training.metrics import ENVIRONMENT
from lipcert.training.run_folder import CONFIG
from lipcert.training.summary import SUMMARY

BODY = ("depth", "conv", "activation", "width", "series", "in_channels", "mean", "std")
"""What two networks must have in common for the body of one to fit the other; and the number of stages."""

HEAD = ("head", "num_classes", "features")
"""The same of the head."""

OPTIONS = ("depth", "conv", "activation", "head", "width", "series", "image_size")
"""Options of a run that its first weights decide, unless they are given."""


@dataclass(frozen=True)
class Start:
    """A network to begin with, and what is written down about its training.

    Attributes:
        source: as the user named it.
        file: its weights.
        epochs: for how many it was trained, those of the networks that it started from included, if known.
        data, seed, held_out, image_size: the images that trained it, if known.
        run: the folder of its run, if it is one.
    """

    source: str
    file: Path
    epochs: float | None = None
    data: str | None = None
    seed: int = TrainConfig.seed
    held_out: int = TrainConfig.held_out
    image_size: int | None = None
    run: Path | None = None


def look_up(source: str) -> Start:
    """The network that `source` names: a file, the folder of a run (its best model), or one that ships.

    Raises:
        CheckpointError: a folder without a network; a name that nothing has is left for `load` to refuse.
    """
    path, shipped = Path(source), zoo.networks()
    if path.is_file():
        return Start(source, path)
    best = path / BEST
    if best.is_file():
        return _of_run(source, best)
    if source in shipped:
        card = json.loads((zoo.FOLDER / f"{source}.json").read_text(encoding="utf-8"))
        training = card["training"]
        epochs = _sum(training["epochs"], training.get("started_from"))
        held_out = training.get("held_out", TrainConfig.held_out)
        return Start(source, shipped[source], epochs, card["data"], training["seed"], held_out)
    if path.is_dir():
        raise CheckpointError(
            f"start_from: {source} holds no best.safetensors; expected the folder of a run that has been "
            "evaluated, a .safetensors file, or the name of a network that ships"
        )
    return Start(source, path)


def network_options(source: str) -> dict[str, Any]:
    """Options of the network at `source`, as a run names them.

    Raises:
        CheckpointError: no such network.
    """
    config = asdict(load(look_up(source).file).config)
    return {name: config[name] for name in OPTIONS}


def begin_with(model: LipConvnet, start: Start) -> dict[str, Any]:
    """Give `model` the weights of a saved network.

    The body is taken whole. The head is taken too if it is of the same kind, for as many classes; else it
    stays as it is, random.

    Args:
        model: a network on the CPU, whose weights are replaced.
        start: from `look_up`.

    Returns:
        what tells later where it came from: the source, the hash of its network, the epochs of its training
        (None if nobody wrote them down), and whether its head was taken.

    Raises:
        CheckpointError: no such network.
        ArgumentError: it is of another shape; all that differs is named.
    """
    given = load(start.file)
    other = [name for name in BODY if getattr(model.config, name) != getattr(given.config, name)]
    if not other and model.config.stages != given.config.stages:
        other = ["image_size"]
    if other:
        found, asked = (_told(config, other) for config in (given.config, model.config))
        raise ArgumentError(
            f"start_from: {start.source} has {found}, but this run {asked}; make the two equal, or "
            "start from another network"
        )
    model.body.load_state_dict(given.body.state_dict())
    with_head = all(getattr(model.config, name) == getattr(given.config, name) for name in HEAD)
    if with_head:
        model.head.load_state_dict(given.head.state_dict())
    return {
        "network": start.source,
        "weights_sha256": weights_hash(given),
        "epochs": start.epochs,
        "head": "taken" if with_head else "random",
    }


def refuse_other_split(start: Start, config: TrainConfig, split: str) -> None:
    """Raise if the network that a run starts from has learned images that select or test that run.

    Args:
        start: from `look_up`.
        config: of the run that begins.
        split: fingerprint of its images and of where they were cut.

    Raises:
        ArgumentError: the images are of the same name, but were cut otherwise.
    """
    if start.data is None or _place(start.data) != _place(config.data):
        return
    same = (start.seed, start.held_out) == (config.seed, config.held_out)
    if (theirs := _split_of(start.run)) is not None:
        mine = split
        if start.image_size != config.image_size:
            # Images of another size have another hash; where they are cut tells at least how many there are.
            theirs, mine = (text.partition(", split ")[2] for text in (theirs, mine))
        same = same and theirs == mine
    if not same:
        raise ArgumentError(
            f"start_from: {start.source} was trained on {config.data} too, but cut otherwise, so that images "
            f"it has learned would select or test this run; give seed {start.seed} and held_out "
            f"{start.held_out} as it had, and the same files"
        )


def _of_run(source: str, best: Path) -> Start:
    """A run may be unfinished, or not all there; its weights are."""
    folder = best.parent
    try:
        config = TrainConfig.read(folder / CONFIG)
    except LipcertError:
        return Start(source, best)
    try:
        own = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["epochs"]
        before = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8")).get("started_from")
        epochs = _sum(own, before)
    except (OSError, ValueError, KeyError, TypeError):
        epochs = None
    return Start(source, best, epochs, config.data, config.seed, config.held_out, config.image_size, folder)


def _split_of(run: Path | None) -> str | None:
    """Fingerprint of the images that trained a run and of where they were cut, if its checkpoint tells."""
    try:
        checkpoint = None if run is None else read_checkpoint(run)
    except CheckpointError:
        return None
    return None if checkpoint is None else checkpoint.position.data


def _sum(own: float, before: dict[str, Any] | None) -> float | None:
    """Epochs of a training, and of those before it."""
    if before is None:
        return float(own)
    return None if before["epochs"] is None else float(own + before["epochs"])


def _place(data: str) -> Path:
    return Path(data).expanduser().resolve()


def _told(config: LipConvnetConfig, names: list[str]) -> str:
    return ", ".join(f"{name} {getattr(config, name)}" for name in names)
