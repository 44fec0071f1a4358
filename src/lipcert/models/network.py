"""Base classes of the networks that builders make, and of their configs."""

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive, choose
from lipcert.nn.contract import ACTIVATIONS, CONVOLUTIONS, HEADS
from lipcert.nn.convolution import LipschitzConv2d
from lipcert.nn.heads import Head, OrthogonalHead
from lipcert.nn.normalize import Normalize
from lipcert.nn.soc import SOC
from lipcert.operators.operator import Shape

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), 0.2507
NEUTRAL_MEAN, NEUTRAL_STD = 0.5, 0.25


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(ABC):
    """Arguments that all builders share, complete and checked; a subclass adds its own.

    Attributes:
        architecture: name of the builder, by which files and runs know it.

    Raises:
        ArgumentError: an argument out of range, or an unknown name (the nearest one is suggested).
    """

    architecture: ClassVar[str]
    depth: int
    conv: str
    activation: str
    head: str
    num_classes: int
    width: int
    image_size: int
    in_channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    series: str

    def __post_init__(self) -> None:
        check_positive(
            depth=self.depth,
            num_classes=self.num_classes,
            width=self.width,
            image_size=self.image_size,
            in_channels=self.in_channels,
        )
        if self.image_size % 2:
            raise ArgumentError(
                "image_size: expected an even size, since the network halves the image, got "
                f"{self.image_size}; pad the images to {self.image_size + 1} or crop them to "
                f"{self.image_size - 1}"
            )
        choose("conv", self.conv, CONVOLUTIONS)
        choose("activation", self.activation, ACTIVATIONS)
        choose("head", self.head, HEADS)
        if not issubclass(CONVOLUTIONS[self.conv], SOC) and self.series != "isometric":
            raise ArgumentError(
                f"series: only 'soc' convolutions have one, got {self.series!r} with {self.conv!r}; leave it "
                "out"
            )

    @property
    def input_shape(self) -> Shape:
        """Shape of one image, (C, H, W)."""
        return (self.in_channels, self.image_size, self.image_size)

    @property
    def kind(self) -> str:
        """Convolution, activation, head and width in a few words."""
        head = "LLN" if self.head == "lln" else self.head
        return f"{self.conv.upper()}, {self.activation}, {head} head, width {self.width}"

    @property
    @abstractmethod
    def title(self) -> str:
        """The network in a few words."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Length of the vector that enters the head."""

    @property
    @abstractmethod
    def least_numbers(self) -> int:
        """Lower bound on the numbers in such a network, without building it."""

    @abstractmethod
    def build(self) -> "Network":
        """The network, with new weights."""

    def convolution(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> LipschitzConv2d:
        """A convolution of the kind `conv`."""
        kind = CONVOLUTIONS[self.conv]
        if issubclass(kind, SOC):
            return kind(inputs, outputs, kernel, stride=stride, series=self.series)
        return kind(inputs, outputs, kernel, stride=stride)

    def make_head(self) -> Head:
        """The head; an orthogonal one is made the way the network's convolutions are."""
        if self.head == "orthogonal":
            method = CONVOLUTIONS[self.conv].head_method
            return OrthogonalHead(self.features, self.num_classes, method=method)
        return HEADS[self.head](self.features, self.num_classes)


class Network(nn.Sequential):
    """A network that a builder made: `normalize`, `body`, parts of the builder's own, and `head`.

    Attributes:
        config: the arguments of the builder, all that a saved network needs beside its tensors.
    """

    normalize: Normalize
    body: nn.Sequential
    head: Head

    def __init__(self, config: NetworkConfig, **parts: nn.Module) -> None:
        ends = {"normalize": Normalize(config.mean, config.std)}, {"head": config.make_head()}
        super().__init__(OrderedDict(ends[0] | parts | ends[1]))
        self.config = config

    def features(self, images: Tensor) -> Tensor:
        """What enters the head, (N, D)."""
        for part in list(self)[:-1]:
            images = part(images)
        return images


def normalisation(
    in_channels: int, mean: tuple[float, ...] | float | None, std: tuple[float, ...] | float | None
) -> dict[str, tuple[float, ...]]:
    """`mean` and `std` of a config: one number per channel, the defaults of `lipconvnet` where it is None."""
    check_positive(in_channels=in_channels)
    colour = in_channels == len(CIFAR_MEAN)
    return {
        "mean": _per_channel("mean", mean, in_channels, CIFAR_MEAN if colour else NEUTRAL_MEAN),
        "std": _per_channel("std", std, in_channels, CIFAR_STD if colour else NEUTRAL_STD),
    }


def _per_channel(
    name: str, value: tuple[float, ...] | float | None, channels: int, default: tuple[float, ...] | float
) -> tuple[float, ...]:
    given = default if value is None else value
    numbers = (given,) * channels if isinstance(given, (int, float)) else tuple(given)
    if len(numbers) != channels:
        raise ArgumentError(
            f"{name}: expected one number, or one for each of the {channels} channels, got {len(numbers)}"
        )
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in numbers):
        raise ArgumentError(f"{name}: expected finite numbers, got {value!r}")
    return tuple(float(v) for v in numbers)
