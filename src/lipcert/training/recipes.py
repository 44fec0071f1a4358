"""Recipes: options that go well together, for whoever does not want to choose all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lipcert.data.archives import ARCHIVES
from lipcert.data.folder import find_images, has_splits
from lipcert.data.sources import check_exists
from lipcert.errors import choose
from lipcert.files import home_path
from lipcert.machine import has_bf16
from lipcert.nn import CONVOLUTIONS
from lipcert.runs.config import TrainConfig, checked_option
from lipcert.training.parts import fitted_padding

RECIPES = ("fast", "paper")
SMALL = 20_000
"""Fewer training images than this are passed more often."""
TRANSFER = "lipconvnet5-cifar10"
"""What a network for a folder of pictures starts from."""
TRANSFER_SIDE = 32
"""Side of the pictures that it was trained on. Its convolutions fit every multiple of it."""
NETWORK_OPTIONS = frozenset({"start_from", "architecture", "depth", "width", "conv", "activation", "series"})
"""Options that describe another network than the one to start from."""
PAPER = {"series": "exponential", "optimizer": "sgd", "schedule": "step", "batch_size": 128, "lr": 0.1}


@dataclass(frozen=True)
class Chosen:
    """The options of a recipe, those that were given included, and in words what was decided and why."""

    options: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class _Images:
    """What is known of a dataset before it is read.

    Attributes:
        count: images that train, which are neither held out nor for testing.
        total: images in all but a test set of their own.
        classes: how many.
        is_folder: whether they are files in a folder.
    """

    count: int
    total: int
    classes: int
    is_folder: bool


def apply_recipe(name: str, given: Mapping[str, Any]) -> Chosen:
    """Fill in what is not given.

    "paper" is the paper's training, with its series; "fast" is Muon at large batches, the wide series, an
    average of the weights, crops that fit the length of the run, and the precision that the processor is good
    at. It scales with `epochs` or `minutes`.

    Args:
        name: "fast" or "paper".
        given: options that were chosen already; they win.

    Raises:
        ArgumentError: no such recipe, or no such dataset.
        DataError: no such folder.
    """
    choose("recipe", name, RECIPES)
    given = {key: checked_option(key, value) for key, value in given.items()}
    check_exists(given.get("data", TrainConfig.data))
    if given.get("architecture") == "liresnet" and "start_from" not in given:
        given = {"conv": "liresnet"} | dict(given)
    if name == "paper":
        options = dict(PAPER)
        if given.get("conv", TrainConfig.conv) != "soc" or "start_from" in given:
            del options["series"]
        return Chosen(options | dict(given), "the paper's recipe")
    return _fast(given)


def _fast(given: Mapping[str, Any]) -> Chosen:
    images = _look_at(str(given.get("data", TrainConfig.data)), given.get("held_out", TrainConfig.held_out))
    side = given.get("image_size") or TRANSFER_SIDE
    transfers = images.is_folder and side % TRANSFER_SIDE == 0 and not given.keys() & NETWORK_OPTIONS
    # A step has a fixed cost, that of the weights; with few pictures it would be most of the time.
    fewest_steps = 4 if images.is_folder else 16
    processes = given.get("devices", 1) * given.get("nodes", 1)
    options: dict[str, Any] = {
        "batch_size": _batch_size(images.count // fewest_steps, processes),
        "optimizer": "muon",
        "lr": 0.3,
        "nesterov": True,
        "schedule": "onecycle",
        "ema": 0.99 if images.count < SMALL else 0.995,
        "augment": "fitted",
        "border": "reflect",
        "precision": _precision(),
        "epochs": 30 if images.count < SMALL else 18,
    }
    if images.is_folder and "start_from" not in given:
        options["image_size"] = TRANSFER_SIDE
    if transfers:
        options["start_from"] = TRANSFER
    elif "start_from" not in given:
        options |= {"width": 16, "depth": 5, "head": "orthogonal" if images.classes <= 10 else "lln"}
        if given.get("architecture") == "liresnet":
            options |= {"width": 32, "depth": 4, "head": "lln"}
        if given.get("conv", TrainConfig.conv) == "soc":
            options["series"] = "wide"
    if given.get("crop") is not None:
        options["augment"] = "crop-flip"
    conv = str(given.get("conv", TrainConfig.conv))
    if conv in CONVOLUTIONS and not CONVOLUTIONS[conv].matrices:
        options["optimizer"] = "sgd"
    options |= given
    if options["optimizer"] == "sgd":
        options["batch_size"] = given.get("batch_size", min(128, options["batch_size"]))
    if "eval_every" not in given:  # an evaluation takes a tenth of an epoch's time
        options["eval_every"] = 2 if "minutes" in given else max(1, options["epochs"] // 6)
    # Training on mirror images has made the classes symmetric already.
    options.setdefault("mirrored", TrainConfig(**options).crops)
    if "minutes" in given:
        del options["epochs"]
    elif images.is_folder and "ema" not in given:
        options["ema"] = _fitted_decay(options["epochs"] * max(1, images.count // options["batch_size"]))
    return Chosen(options, _explanation(options, given, images))


def _batch_size(most: int, processes: int) -> int:
    """A power of two from 16 to 512, at most `most`, then up to a multiple of the processes."""
    size = 1 << max(4, min(9, most.bit_length() - 1))
    return -(-size // processes) * processes


def _fitted_decay(steps: int) -> float:
    """Decay of an average that reaches back over a tenth of the steps, from 0.9 to 0.995.

    >>> _fitted_decay(120), _fitted_decay(10_000)
    (0.917, 0.995)
    """
    return max(0.9, min(0.995, round(1 - 10 / steps, 3)))


def _precision() -> str:
    import torch

    if torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16-mixed" if has_bf16() else "fp32"


def _look_at(data: str, held_out: int) -> _Images:
    if data in ARCHIVES:
        return _Images(50_000 - min(held_out, 5000), 50_000, 10 if data == "cifar10" else 100, False)
    if data == "digits":
        return _Images(1437 - min(held_out, 143), 1437, 10, False)
    found = find_images(data)
    train = len(found)
    total = train if has_splits(home_path(data)) else train + len(find_images(data, split="test"))
    return _Images(train - min(held_out, train // 10), total, len(found.classes), True)


def _explanation(options: Mapping[str, Any], given: Mapping[str, Any], images: _Images) -> str:
    """What was decided and why, a line for each matter."""
    lines = {
        "network": _network(options, given, images),
        "pictures": _pictures(options, images),
        "length": _length(options, images),
        "optimizer": f"{options['optimizer']}, batches of {options['batch_size']}",
        "certificates": "of the mean over a picture and its mirror image (--no-mirrored: of it alone)"
        if options["mirrored"]
        else "",
        "precision": "bfloat16, which is fast on this machine"
        if options["precision"] == "bf16-mixed"
        else "float32",
    }
    about = f"for {images.total:,} pictures of {images.classes} classes"
    return "\n".join([about, *(f"  {name}: {text}" for name, text in lines.items() if text)])


def _network(options: Mapping[str, Any], given: Mapping[str, Any], images: _Images) -> str:
    if start := options.get("start_from"):
        why = "" if "start_from" in given else ", because it was trained on photographs"
        return f"the weights of {start}{why}"
    kind = "LiResNet" if options.get("architecture") == "liresnet" else "LipConvnet"
    network = f"a {kind}-{options['depth']} of width {options['width']} with random weights"
    if images.is_folder and not given.keys() & NETWORK_OPTIONS:
        network += f", because {TRANSFER} takes only multiples of {TRANSFER_SIDE} pixels"
    return network


def _pictures(options: Mapping[str, Any], images: _Images) -> str:
    side = options.get("image_size")
    if not images.is_folder or not side:
        return ""
    start = options.get("start_from") == TRANSFER and side == TRANSFER_SIDE
    size = f"cut to their centre square and resized to {side}x{side}" + (", as its own were" if start else "")
    if options["augment"] != "fitted" or "epochs" not in options:
        return size
    padding = fitted_padding(options["epochs"], side)
    shifts = f" and shifted by up to {padding} pixel{'s' * (padding > 1)}" if padding else ""
    return f"{size}; in training mirrored{shifts} at random (--augment none leaves them as they are)"


def _length(options: Mapping[str, Any], images: _Images) -> str:
    if "minutes" in options:
        return f"{options['minutes']:g} minutes"
    epochs = _counted(options["epochs"], "epoch")
    steps = images.count // options["batch_size"]
    return f"{epochs} of {_counted(steps, 'step')}" if steps else epochs


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"
