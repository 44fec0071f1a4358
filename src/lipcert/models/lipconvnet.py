"""LipConvnet: stages of orthogonal convolutions and activations, then a head that knows its margins."""

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import ClassVar

from torch import nn

from lipcert.errors import ArgumentError, check_positive
from lipcert.models.network import Network, NetworkConfig, normalisation
from lipcert.nn.contract import ACTIVATIONS
from lipcert.nn.shape import Flatten

MAX_STAGES = 5


@dataclass(frozen=True, kw_only=True)
class LipConvnetConfig(NetworkConfig):
    """The arguments of `lipconvnet`, complete."""

    architecture: ClassVar[str] = "lipconvnet"

    def __post_init__(self) -> None:
        check_positive(depth=self.depth)
        if self.depth % MAX_STAGES and (self.depth < MAX_STAGES or self.depth % (MAX_STAGES - 1) != 1):
            nearest = max(MAX_STAGES, MAX_STAGES * round(self.depth / MAX_STAGES))
            raise ArgumentError(
                "depth: expected a multiple of 5, five times the blocks of a stage, or 9, 13, 17, ... (one "
                f"block in the first stage), got {self.depth}; use {nearest}"
            )
        super().__post_init__()

    @property
    def title(self) -> str:
        """The network in a few words."""
        return f"LipConvnet-{self.depth} ({self.kind})"

    @property
    def stages(self) -> int:
        """One per halving of the image, at most five."""
        return min(MAX_STAGES, (self.image_size & -self.image_size).bit_length() - 1)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks in each stage."""
        if self.depth % MAX_STAGES:
            return (1, *[self.depth // (MAX_STAGES - 1)] * (self.stages - 1))
        return (self.depth // MAX_STAGES,) * self.stages

    @property
    def features(self) -> int:
        """Length of the vector that enters the head."""
        side = self.image_size >> self.stages
        return (self.width << self.stages) * side * side

    @property
    def least_numbers(self) -> int:
        """Lower bound on the numbers in such a network, without building it."""
        widest, first = self.width << self.stages, 4 * self.in_channels if self.conv in ("soc", "bcop") else 0
        return max(widest**2 // 8, first**2 // 8, self.in_channels, self.features * self.num_classes // 8)

    def build(self) -> "LipConvnet":
        """The network, with new weights."""
        return lipconvnet(**asdict(self))


class LipConvnet(Network):
    """A network made by `lipconvnet`: `normalize`, `body` (stages), `flatten` and `head`, in this order.

    Shape:
        (N, in_channels, image_size, image_size), raw pixels in [0, 1] -> logits (N, num_classes)
    """

    flatten: Flatten

    def __init__(self, config: LipConvnetConfig) -> None:
        super().__init__(config, body=_body(config), flatten=Flatten())


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
    five. Depths 9, 13, 17, ... have one block in the first stage and (depth - 1) / 4 in each of the others:
    on a CPU a block on the first stage's large map takes longer than one in each of the others. The last
    block of stage s has stride 2 and width * 2^s channels; the blocks before it keep the channels of the
    stage's input (`width` in the first stage). Kernels are 3x3 but that of the very last block, 1x1. A
    32x32 image passes five stages down to one pixel, as in the paper. An 8x8 image passes three, and depth 5
    then has three blocks; a 64x64 image passes five and leaves 2x2 pixels, which the head sees as one vector.

    Guarantee: Lipschitz constant 1 / min(std) up to the head, times the stated error of each convolution.

    Args:
        depth: 5, 10, 15, ... as in the paper, or 9, 13, 17, ...
        conv: "soc", "bcop", "cayley", "lot", "bro", "aoc", "aol", "cpl", "sll", "liresnet", or any registered
            convolution.
        activation: "maxmin", "hh1", "hh2", or any registered activation.
        head: "lln" (unit rows, free directions), "orthogonal" (orthonormal rows), or any registered head.
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
    config = LipConvnetConfig(
        depth=depth,
        conv=conv,
        activation=activation,
        head=head,
        num_classes=num_classes,
        width=width,
        image_size=image_size,
        in_channels=in_channels,
        series=series,
        **normalisation(in_channels, mean, std),
    )
    return LipConvnet(config)


def _body(config: LipConvnetConfig) -> nn.Sequential:
    stages: OrderedDict[str, nn.Module] = OrderedDict()
    channels = config.in_channels
    for stage, blocks in enumerate(config.blocks, start=1):
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for block in range(1, blocks + 1):
            last = block == blocks
            out = config.width * 2**stage if last else config.width * 2 ** (stage - 1)
            kernel = 1 if last and stage == config.stages else 3
            layers[f"conv{block}"] = config.convolution(channels, out, kernel, stride=2 if last else 1)
            layers[f"activation{block}"] = ACTIVATIONS[config.activation](out)
            channels = out
        stages[f"stage{stage}"] = nn.Sequential(layers)
    return nn.Sequential(stages)
