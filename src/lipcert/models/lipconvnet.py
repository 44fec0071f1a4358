"""LipConvnet: stages of orthogonal convolutions and activations, then a head that knows its margins."""

import math
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive, choose
from lipcert.nn.contract import ACTIVATIONS, CONVOLUTIONS
from lipcert.nn.convolution import OrthogonalConv2d
from lipcert.nn.heads import Head, NormalizedLinear, OrthogonalHead
from lipcert.nn.normalize import Normalize
from lipcert.nn.shape import Flatten
from lipcert.nn.soc import SOC
from lipcert.operators.operator import Shape

HEADS = ("lln", "orthogonal")
MAX_STAGES = 5
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), 0.2507
NEUTRAL_MEAN, NEUTRAL_STD = 0.5, 0.25
# The orthogonal head of a network is made the way its convolutions are.
HEAD_METHODS = {"soc": "soc", "bcop": "bjorck", "cayley": "cayley"}


@dataclass(frozen=True, kw_only=True)
class LipConvnetConfig:
    """The arguments of `lipconvnet`, complete: all that a saved network needs beside its tensors."""

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

    @property
    def title(self) -> str:
        """The network in a few words."""
        head = "LLN" if self.head == "lln" else self.head
        kind = f"{self.conv.upper()}, {self.activation}, {head} head, width {self.width}"
        return f"LipConvnet-{self.depth} ({kind})"

    @property
    def stages(self) -> int:
        """One per halving of the image, at most five."""
        return min(MAX_STAGES, (self.image_size & -self.image_size).bit_length() - 1)

    @property
    def blocks(self) -> int:
        """Blocks in each stage."""
        return self.depth // MAX_STAGES

    @property
    def input_shape(self) -> Shape:
        """Shape of one image, (C, H, W)."""
        return (self.in_channels, self.image_size, self.image_size)

    @property
    def features(self) -> int:
        """Length of the vector that enters the head."""
        side = self.image_size >> self.stages
        return (self.width << self.stages) * side * side


class LipConvnet(nn.Sequential):
    """A network made by `lipconvnet`: `normalize`, `body` (stages), `flatten` and `head`, in this order.

    Shape:
        (N, in_channels, image_size, image_size), raw pixels in [0, 1] -> logits (N, num_classes)
    """

    normalize: Normalize
    body: nn.Sequential
    flatten: Flatten
    head: Head

    def __init__(self, config: LipConvnetConfig) -> None:
        super().__init__(
            OrderedDict(
                normalize=Normalize(config.mean, config.std),
                body=_body(config),
                flatten=Flatten(),
                head=_head(config),
            )
        )
        self.config = config

    def features(self, images: Tensor) -> Tensor:
        """What enters the head, (N, D)."""
        return self.flatten(self.body(self.normalize(images)))  # type: ignore[no-any-return]


def lipconvnet(
    depth: int = 15,
    conv: str = "soc",
    activation: str = "hh1",
    head: str = "lln",
    num_classes: int = 100,
    width: int = 32,
    image_size: int = 32,
    *,
    in_channels: int = 3,
    mean: tuple[float, ...] | float | None = None,
    std: tuple[float, ...] | float | None = None,
    series: str = "isometric",
) -> LipConvnet:
    r"""Build a LipConvnet, a classifier with a proved Lipschitz constant.

    Stages of depth / 5 blocks (convolution, then activation), one stage per halving of the image and at most
    five. The last block of stage s has stride 2 and width * 2^s channels; the blocks before it keep the
    channels of the stage's input (`width` in the first stage). Kernels are 3x3 but that of the very last
    block, 1x1. A 32x32 image passes five stages down to one pixel, as in the paper. An 8x8 image passes
    three, and depth 5 then has three blocks; a 64x64 image passes five and leaves 2x2 pixels, which the head
    sees as one vector.

    Guarantee: Lipschitz constant 1 / min(std) up to the head, times the stated error of each convolution.

    Args:
        depth: 5, 10, 15, ...: five times the number of blocks in a stage.
        conv: "soc", "bcop", "cayley", or any registered convolution.
        activation: "maxmin", "hh1", "hh2", or any registered activation.
        head: "lln" (unit rows, free directions) or "orthogonal" (orthonormal rows).
        num_classes: number of logits.
        width: channels of the first stage.
        image_size: height and width of the images, even.
        in_channels: channels of the images.
        mean: subtracted from the pixels, one number or one per channel. By default CIFAR's
            (0.4914, 0.4822, 0.4465) for three channels, else 0.5.
        std: divides the pixels, one number or one per channel. By default 0.2507 for three channels, as in
            the paper, else 0.25, which takes [0, 1] to [-2, 2].
        series: polynomial of the SOC layers, "isometric", "wide" or "exponential" (the paper's); see `SOC`.

    Raises:
        ArgumentError: an argument out of range, or an unknown name (the nearest one is suggested).

    >>> model = lipconvnet(depth=5, num_classes=10, width=2, image_size=8, in_channels=1)
    >>> model.head
    NormalizedLinear(16, 10)

    Paper: section "Experiments", table of LipConvnets; the network is that of Singla and Feizi (2021).
    """
    check_positive(
        depth=depth, num_classes=num_classes, width=width, image_size=image_size, in_channels=in_channels
    )
    if depth % MAX_STAGES:
        nearest = max(MAX_STAGES, MAX_STAGES * round(depth / MAX_STAGES))
        raise ArgumentError(
            f"depth: expected a multiple of 5, five times the blocks of a stage, got {depth}; use {nearest}"
        )
    if image_size % 2:
        raise ArgumentError(
            f"image_size: expected an even size, since every stage halves the image, got {image_size}; "
            f"pad the images to {image_size + 1} or crop them to {image_size - 1}"
        )
    choose("conv", conv, CONVOLUTIONS)
    choose("activation", activation, ACTIVATIONS)
    choose("head", head, HEADS)
    if not issubclass(CONVOLUTIONS[conv], SOC) and series != "isometric":
        raise ArgumentError(
            f"series: only conv='soc' has one, got {series!r} with conv={conv!r}; leave it out"
        )
    colour = in_channels == len(CIFAR_MEAN)
    return LipConvnet(
        LipConvnetConfig(
            depth=depth,
            conv=conv,
            activation=activation,
            head=head,
            num_classes=num_classes,
            width=width,
            image_size=image_size,
            in_channels=in_channels,
            mean=_per_channel("mean", mean, in_channels, CIFAR_MEAN if colour else NEUTRAL_MEAN),
            std=_per_channel("std", std, in_channels, CIFAR_STD if colour else NEUTRAL_STD),
            series=series,
        )
    )


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


def _body(config: LipConvnetConfig) -> nn.Sequential:
    stages: OrderedDict[str, nn.Module] = OrderedDict()
    channels = config.in_channels
    for stage in range(1, config.stages + 1):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for block in range(1, config.blocks + 1):
            last = block == config.blocks
            out = config.width * 2**stage if last else config.width * 2 ** (stage - 1)
            kernel = 1 if last and stage == config.stages else 3
            layers[f"conv{block}"] = _convolution(config, channels, out, kernel, 2 if last else 1)
            layers[f"activation{block}"] = ACTIVATIONS[config.activation](out)
            channels = out
        stages[f"stage{stage}"] = nn.Sequential(layers)
    return nn.Sequential(stages)


def _convolution(
    config: LipConvnetConfig, inputs: int, outputs: int, kernel: int, stride: int
) -> OrthogonalConv2d:
    kind = CONVOLUTIONS[config.conv]
    if issubclass(kind, SOC):
        return kind(inputs, outputs, kernel, stride=stride, series=config.series)
    return kind(inputs, outputs, kernel, stride=stride)


def _head(config: LipConvnetConfig) -> Head:
    if config.head == "lln":
        return NormalizedLinear(config.features, config.num_classes)
    method = HEAD_METHODS.get(config.conv, "soc")
    return OrthogonalHead(config.features, config.num_classes, method=method)
