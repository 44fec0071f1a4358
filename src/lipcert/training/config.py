"""Every option of a training run: one frozen record, checked on construction, written as TOML."""

import dataclasses
import json
import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from lipcert.errors import ArgumentError, choose
from lipcert.kernels.series import SERIES

OPTIMIZERS = ("sgd", "muon")
SCHEDULES = ("step", "onecycle", "cosine")
PRECISIONS = ("fp32", "bf16-mixed")
AUGMENTATIONS = ("auto", "crop-flip", "none")
CHANGEABLE = ("checkpoint_every", "tensorboard")
"""Options that do not touch the weights, so that a resumed run may change them."""

PAPER_WEIGHT_DECAY = {"soc": 5e-4}
"""Weight decay of the paper's networks by convolution; networks of any other convolution have none."""


@dataclass(frozen=True)
class Interval:
    """A distance between two checkpoints: in steps or in seconds, the other is None."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Interval":
        """Read "500" (steps), "30s" or "10m" (time).

        >>> Interval.parse("500"), Interval.parse("10m")
        (Interval(steps=500, seconds=None), Interval(steps=None, seconds=600.0))
        """
        number, unit = (text[:-1], text[-1:]) if text[-1:] in ("s", "m") else (text, "")
        # isascii: int() would also read the digits of other scripts.
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            raise ArgumentError(
                "checkpoint_every: expected steps such as '500', or a time such as '30s' or '10m', "
                f"got {text!r}"
            )
        if unit:
            return cls(seconds=int(number) * (60.0 if unit == "m" else 1.0))
        return cls(steps=int(number))


@dataclass(frozen=True)
class TrainConfig:
    """The options of one run. The defaults are the paper's recipe, with lipcert's SOC.

    Args:
        data: "digits", "cifar10", "cifar100" or a folder of images in class subfolders.
        image_size: side of the images; None takes the dataset's own.
        depth: convolutions of the LipConvnet: 5, 10, ..., 40.
        conv: name of a registered convolution.
        activation: name of a registered activation.
        head: "lln" or "orthogonal".
        width: channels of the first stage; every stage doubles them.
        series: polynomial of the SOC layers, "isometric", "wide" or "exponential" (the paper's); other
            convolutions have none.
        start_from: weights to begin with in the place of random ones: the folder of a run, a .safetensors
            file, or the name of a network that ships. It has the same body; another head stays random.
        gamma: weight of the certificate in the loss; 0 is plain cross entropy.
        offset: subtracted from the true class's logit inside the cross entropy, which asks for a margin.
        epochs: passes over the training images; ignored when `minutes` is given.
        minutes: time budget; the run times a few steps first and fixes its number of steps once.
        batch_size: images per step, over all processes together.
        optimizer: "sgd", or "muon": Muon for the matrices of the convolutions and SGD for all else.
        muon_step: share of its own length by which Muon moves a matrix at the schedule's highest point.
        lr: learning rate of SGD at the schedule's highest point.
        momentum: of SGD.
        nesterov: Nesterov's form of the momentum.
        weight_decay: on convolutions and head, never on activations or on what Muon trains; None is the
            paper's choice, 5e-4 for SOC networks and 0 for all others.
        schedule: "step" (x0.1 at 1/2 and 3/4), "onecycle" (linear up, linear to zero) or "cosine".
        warmup: fraction of the steps over which "onecycle" and "cosine" rise.
        ema: decay per step of a moving average of the weights, which is evaluated beside the weights
            themselves and may become the best model; 0 is no average.
        augment: "crop-flip", "none", or "auto": crops and flips for everything but digits.
        crop: pixels by which an image is padded before its random crop; 0 leaves only flips, None is an
            eighth of the side (the paper's 4 of 32).
        held_out: training images kept for selection, but never more than a tenth of them.
        eval_every: epochs between two evaluations on the held-out images.
        seed: of weights, split, data order and augmentation.
        precision: "fp32" or "bf16-mixed" (bfloat16 arithmetic on float32 weights).
        devices: processes per machine, one device each.
        nodes: machines.
        threads: CPU threads per process; None leaves the choice to torch.
        checkpoint_every: steps ("500") or time ("10m") between checkpoints.
        tensorboard: also log to TensorBoard.

    Raises:
        ArgumentError: an option has the wrong type or value.

    >>> TrainConfig(data="digits", epochs=3).epochs
    3
    >>> TrainConfig(epochs=0)
    Traceback (most recent call last):
    ...
    lipcert.errors.ArgumentError: epochs: expected a number at least 1, got 0
    """

    data: str = "cifar10"
    image_size: int | None = None
    depth: int = 5
    conv: str = "soc"
    activation: str = "hh1"
    head: str = "lln"
    width: int = 32
    series: str = "isometric"
    start_from: str | None = None
    gamma: float = 0.5
    offset: float = 0.0
    epochs: int = 200
    minutes: float | None = None
    batch_size: int = 128
    optimizer: str = "sgd"
    muon_step: float = 0.04
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float | None = None
    schedule: str = "step"
    warmup: float = 0.1
    ema: float = 0.0
    augment: str = "auto"
    crop: int | None = None
    held_out: int = 5000
    eval_every: int = 1
    seed: int = 0
    precision: str = "fp32"
    devices: int = 1
    nodes: int = 1
    threads: int | None = None
    checkpoint_every: str = "5m"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            value = _checked(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        for name in ("depth", "width", "image_size", "epochs", "batch_size", "eval_every", "devices", "nodes",
                     "threads", "held_out"):  # fmt: skip
            _require(name, getattr(self, name), 1, math.inf, "at least 1")
        for name in ("gamma", "offset", "weight_decay", "crop"):
            _require(name, getattr(self, name), 0, math.inf, "at least 0")
        _require("seed", self.seed, 0, 2**32 - 1, "from 0 to 2**32 - 1")
        for name in ("lr", "muon_step", "minutes"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ArgumentError(f"{name}: expected a number above 0, got {value!r}")
        for name in ("momentum", "warmup", "ema"):
            _require(name, getattr(self, name), 0, math.nextafter(1, 0), "in [0, 1)")
        if self.nesterov and self.momentum == 0:
            raise ArgumentError("nesterov: needs a momentum above 0, got momentum 0.0; drop one of the two")
        choose("optimizer", self.optimizer, OPTIMIZERS)
        choose("schedule", self.schedule, SCHEDULES)
        choose("precision", self.precision, PRECISIONS)
        choose("series", self.series, SERIES)
        choose("augment", self.augment, AUGMENTATIONS)
        if self.crop is not None and not self.crops:
            raise ArgumentError(
                f"crop: {self.data} with augment {self.augment!r} has no crops; leave crop out, or ask for "
                "augment 'crop-flip'"
            )
        Interval.parse(self.checkpoint_every)
        if self.batch_size % (self.devices * self.nodes):
            raise ArgumentError(
                f"batch_size: expected a multiple of the {self.devices * self.nodes} processes, "
                f"got {self.batch_size}; it counts the images of all processes together"
            )

    @property
    def crops(self) -> bool:
        """Whether images are cropped and flipped. "auto" leaves the digits alone: a mirrored 2 is no 2."""
        return self.augment == "crop-flip" or (self.augment == "auto" and self.data != "digits")

    @property
    def decay(self) -> float:
        """Weight decay in use: the given one, or the paper's for this convolution."""
        return PAPER_WEIGHT_DECAY.get(self.conv, 0.0) if self.weight_decay is None else self.weight_decay

    def to_dict(self) -> dict[str, Any]:
        """The options that are set (None is left out), in the order of the class."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def to_toml(self) -> str:
        """The options as a flat TOML table that `from_toml` reads back to an equal record."""
        return "".join(f"{name} = {_toml_value(value)}\n" for name, value in self.to_dict().items())

    @classmethod
    def from_dict(cls, options: dict[str, Any]) -> "TrainConfig":
        """Build from a mapping; an unknown name raises and suggests the nearest."""
        known = [field.name for field in fields(cls)]
        return cls(**{choose("option", name, known): value for name, value in options.items()})

    @classmethod
    def from_toml(cls, text: str) -> "TrainConfig":
        """Read what `to_toml` wrote, or a file written by hand."""
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ArgumentError(f"config: expected TOML, but it cannot be read: {error}") from error

    @classmethod
    def read(cls, path: Path) -> "TrainConfig":
        """Read a config.toml."""
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"config: cannot read {path}: {error}") from error
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {error}") from error

    def changes(self, other: "TrainConfig") -> list[str]:
        """Options that differ and decide the weights, as "name: mine -> other's".

        >>> TrainConfig(lr=0.1).changes(TrainConfig(lr=0.2, checkpoint_every="10"))
        ['lr: 0.1 -> 0.2']
        """
        return [
            f"{field.name}: {getattr(self, field.name)!r} -> {getattr(other, field.name)!r}"
            for field in fields(self)
            if field.name not in CHANGEABLE and getattr(self, field.name) != getattr(other, field.name)
        ]


def _checked(name: str, value: object, hint: Any) -> object:
    """Return `value` as one of the types of `hint` (an int is a valid float, a bool never a number)."""
    kinds = get_args(hint) or (hint,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) not in kinds:
        names = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ArgumentError(f"{name}: expected {names}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{name}: expected a finite number, got {value!r}")
    return value


def _require(name: str, value: float | None, low: float, high: float, expected: str) -> None:
    if value is not None and not low <= value <= high:
        raise ArgumentError(f"{name}: expected a number {expected}, got {value!r}")


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
