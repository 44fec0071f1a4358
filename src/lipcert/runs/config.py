"""Every option of a training run: one frozen record, checked on construction, written as TOML.

A field describes its option in full: default, help, panel of the help page, range and choices.
The command line, `reproduce`, `RobustClassifier` and the table in docs/training.md are made from the fields.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from lipcert.errors import ArgumentError, choose
from lipcert.kernels.series import SERIES
from lipcert.schema import build, parse_toml

PANELS = DATA, NETWORK, TRAINING, MACHINE, RECORDS = "Data", "Network", "Training", "Machine", "Records"
"""Panels of the help page, in order."""
CHANGEABLE = ("checkpoint_every", "tensorboard", "mirrored")
"""Options that do not affect the weights, so that a resumed run may change them."""

ARCHITECTURES = ("lipconvnet", "liresnet")
"""Builders of networks."""

PAPER_WEIGHT_DECAY = {"soc": 5e-4}
"""Weight decay of the paper's networks by convolution; networks of any other convolution have none."""


@dataclass(frozen=True)
class Interval:
    """Interval between two checkpoints, in steps or in seconds; the other is None."""

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
        if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 0):
            raise ArgumentError(
                "checkpoint_every: expected steps such as '500', or a time such as '30s' or '10m', "
                f"got {text!r}"
            )
        if unit:
            return cls(seconds=int(number) * (60.0 if unit == "m" else 1.0))
        return cls(steps=int(number))


@dataclass(frozen=True)
class Option:
    """Description of an option, stored in its field of `TrainConfig`.

    Attributes:
        panel: of the help page.
        help: one sentence or two.
        within: the interval of a number, such as "[0, 1)"; round brackets leave the end out.
        choices: all values, if there are only some.
    """

    panel: str
    help: str
    within: str = ""
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Raise an ArgumentError unless `value` is a choice, or in range; None is always allowed."""
        if self.choices:
            choose(name, value, self.choices)
        if not self.within or value is None:
            return
        low, high = map(float, self.within[1:-1].split(","))
        above = value >= low if self.within[0] == "[" else value > low
        below = value <= high if self.within[-1] == "]" else value < high
        if not (above and below):
            raise ArgumentError(f"{name}: expected a number in {self.within}, got {value!r}")


def option(default: Any, panel: str, text: str, within: str = "", choices: Iterable[str] = ()) -> Any:
    """A field of `TrainConfig`."""
    return dataclasses.field(
        default=default, metadata={"option": Option(panel, text, within, tuple(choices))}
    )


@dataclass(frozen=True)
class TrainConfig:
    """The options of one run. The defaults are the paper's recipe, with lipcert's SOC.

    Every option is a keyword; docs/training.md has the table of all of them.

    Raises:
        ArgumentError: an option has the wrong type or value.

    >>> TrainConfig(data="digits", epochs=3).epochs
    3
    >>> TrainConfig(epochs=0)
    Traceback (most recent call last):
    ...
    lipcert.errors.ArgumentError: epochs: expected a number in [1, 1e6], got 0
    """

    data: str = option("cifar10", DATA, "digits, cifar10, cifar100, or a folder of images.")
    image_size: int | None = option(
        None, DATA, "Side to which images are cut and resized, in pixels.", "[1, 4096]"
    )
    architecture: str = option(
        "lipconvnet",
        NETWORK,
        "lipconvnet: stages that halve the image; liresnet: blocks on maps of one size, then a dense part.",
        choices=ARCHITECTURES,
    )
    depth: int = option(
        5,
        NETWORK,
        "Convolutions of a lipconvnet, for 32x32 images: 5, 10, 15, ..., or 9, 13, 17, ...; blocks of a "
        "liresnet.",
        "[1, 1000]",
    )
    conv: str = option(
        "soc", NETWORK, "soc, bcop, cayley, lot, bro, aoc, aol, cpl, sll, liresnet, or any registered name."
    )
    activation: str = option("hh1", NETWORK, "hh1, hh2, maxmin, or any registered name.")
    head: str = option("lln", NETWORK, "lln, orthogonal, or any registered name.")
    width: int = option(
        32,
        NETWORK,
        "Channels of the first stage, doubled in every stage; for a liresnet, of all blocks.",
        "[1, 4096]",
    )
    dense: int = option(2, NETWORK, "Layers of the dense part of a liresnet.", "[1, 1000]")
    series: str = option(
        "isometric",
        NETWORK,
        "Polynomial of SOC: isometric (fastest), wide (learns more), or the paper's exponential.",
        choices=SERIES,
    )
    start_from: str | None = option(
        None,
        NETWORK,
        "Start with the weights of a run, a file or a network of the zoo. The options above come from it; a "
        "head for other classes starts at random.",
    )
    mirrored: bool = option(
        False,
        NETWORK,
        "Prove the mean of the network's logits over an image and its mirror image: more accurate, half as "
        "fast.",
    )
    gamma: float = option(
        0.5, TRAINING, "Weight of the certificate in the loss; 0: plain cross entropy.", "[0, inf)"
    )
    loss: str = option(
        "certificate",
        TRAINING,
        "certificate: cross entropy less --gamma times the radius; annealing, or emma: see docs/training.md.",
        choices=("certificate", "annealing", "emma"),
    )
    offset: float = option(
        0.0, TRAINING, "Margin that is subtracted from the true logit in the cross entropy.", "[0, inf)"
    )
    temperature: float = option(1.0, TRAINING, "Divides the logits in the cross entropy.", "(0, inf)")
    beta: float = option(
        5.0, TRAINING, "For annealing: how little images of high confidence count.", "[0, inf)"
    )
    epsilon: float = option(0.42, TRAINING, "For emma: the target radius at the end, in pixels.", "[0, inf)")
    epochs: int = option(200, TRAINING, "Passes over the training images.", "[1, 1e6]")
    minutes: float | None = option(
        None, TRAINING, "Time budget, replaces --epochs: fixes the number of steps at the start.", "(0, inf)"
    )
    batch_size: int = option(128, TRAINING, "Images per step, of all processes together.", "[1, 1e6]")
    optimizer: str = option(
        "sgd",
        TRAINING,
        "sgd, or muon: Muon for the convolutions' matrices, SGD for the rest.",
        choices=("sgd", "muon"),
    )
    muon_step: float = option(
        0.04, TRAINING, "Largest step of Muon, relative to the norm of the matrix.", "(0, inf)"
    )
    lr: float = option(0.1, TRAINING, "Highest learning rate of SGD.", "(0, inf)")
    momentum: float = option(0.9, TRAINING, "Momentum of SGD.", "[0, 1)")
    nesterov: bool = option(False, TRAINING, "Nesterov's momentum.")
    weight_decay: float | None = option(
        None,
        TRAINING,
        "On convolutions and head, not on what Muon trains; if not given 5e-4 for soc and 0 for others.",
        "[0, inf)",
    )
    schedule: str = option(
        "step",
        TRAINING,
        "step (x0.1 at 1/2 and 3/4), onecycle (up, then linear to 0), or cosine.",
        choices=("step", "onecycle", "cosine"),
    )
    warmup: float = option(
        0.1, TRAINING, "Share of the steps in which onecycle and cosine increase the rate.", "[0, 1)"
    )
    ema: float = option(
        0.0,
        TRAINING,
        "Also keep an average of the weights, with this decay per step (0.998); 0: none.",
        "[0, 1)",
    )
    augment: str = option(
        "auto",
        DATA,
        "crop-flip, none, auto: crop-flip for all but digits, or fitted: the same with smaller crops in "
        "shorter runs.",
        choices=("auto", "crop-flip", "fitted", "none"),
    )
    crop: int | None = option(
        None,
        DATA,
        "Padding of the random crops in pixels, 0: only flips; if not given an eighth of the side, with "
        "--augment fitted less in shorter runs.",
        "[0, 4096]",
    )
    border: str = option(
        "black",
        DATA,
        "What crops show beside a picture: black pixels, or reflect, its mirror image.",
        choices=("black", "reflect"),
    )
    held_out: int = option(
        5000, DATA, "Training images kept for selection, at most a tenth of them.", "[1, 1e9]"
    )
    eval_every: int = option(1, RECORDS, "Epochs between held-out evaluations.", "[1, 1e6]")
    seed: int = option(
        0,
        TRAINING,
        "Seed of weights, order and augmentation; the same images are held out with every seed.",
        "[0, 4294967295]",
    )
    precision: str = option("fp32", MACHINE, "fp32 or bf16-mixed.", choices=("fp32", "bf16-mixed"))
    devices: int = option(1, MACHINE, "Processes per machine, one device each.", "[1, 1024]")
    nodes: int = option(1, MACHINE, "Machines (with torchrun or SLURM).", "[1, 1e6]")
    threads: int | None = option(
        None, MACHINE, "CPU threads per process; default: chosen by torch.", "[1, 1024]"
    )
    checkpoint_every: str = option("5m", RECORDS, "Steps (500) or time (30s, 10m) between checkpoints.")
    tensorboard: bool = option(False, RECORDS, "Also log to TensorBoard (needs the extra: log).")

    def __post_init__(self) -> None:
        for name in options():
            object.__setattr__(self, name, checked_option(name, getattr(self, name)))
        if self.nesterov and self.momentum == 0:
            raise ArgumentError("nesterov: needs a momentum above 0, got momentum 0.0; drop one of the two")
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
        return self.augment == "crop-flip" or (self.augment in ("auto", "fitted") and self.data != "digits")

    @property
    def decay(self) -> float:
        """Weight decay in use: the given one, or the paper's for this convolution."""
        return PAPER_WEIGHT_DECAY.get(self.conv, 0.0) if self.weight_decay is None else self.weight_decay

    def to_dict(self) -> dict[str, Any]:
        """The options that are set (None is left out), in the order of the class."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def to_toml(self) -> str:
        """The options as a flat TOML table that `read` reads back to an equal record."""
        return "".join(f"{name} = {_toml_value(value)}\n" for name, value in self.to_dict().items())

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "TrainConfig":
        """Build from a mapping; an unknown name raises and suggests the nearest."""
        return cls(**{choose("option", name, options()): value for name, value in given.items()})

    @classmethod
    def read(cls, path: Path) -> "TrainConfig":
        """Read a config.toml that `to_toml` or a person wrote.

        Raises:
            ArgumentError: it cannot be read, or sets an option wrongly.
        """
        return cls.from_dict(read_options(path))

    def changes(self, other: "TrainConfig") -> list[str]:
        """Options that differ and affect the weights, as "name: mine -> other's".

        >>> TrainConfig(lr=0.1).changes(TrainConfig(lr=0.2, checkpoint_every="10"))
        ['lr: 0.1 -> 0.2']
        """
        return [
            f"{field.name}: {getattr(self, field.name)!r} -> {getattr(other, field.name)!r}"
            for field in fields(self)
            if field.name not in CHANGEABLE and getattr(self, field.name) != getattr(other, field.name)
        ]


def read_options(path: Path) -> dict[str, Any]:
    """The options that a config.toml sets, checked as those of a run whose others are the defaults."""
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
        config = TrainConfig.from_dict(table)
    except OSError as error:
        raise ArgumentError(f"config: cannot read {path}: {error}") from error
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from error
    except ValueError as error:
        raise ArgumentError(f"{path}: expected TOML, but it cannot be read: {error}") from error
    return {name: getattr(config, name) for name in table}


@cache
def options() -> dict[str, tuple[Any, Option]]:
    """Type and description of every option, by name."""
    kinds = get_type_hints(TrainConfig)
    return {field.name: (kinds[field.name], field.metadata["option"]) for field in fields(TrainConfig)}


def checked_option(name: str, value: Any) -> Any:
    """The value of an option in its type.

    Raises:
        ArgumentError: there is no such option, or its value has another type, is out of range or no choice.
    """
    kind, about = options()[choose("option", name, options())]
    value = build(kind, value, name)
    about.check(name, value)
    return value


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
