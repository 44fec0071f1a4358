"""LiResNet: residual convolutions on maps of one size, a neck of orthogonal ones, dense layers, a head."""

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import nn

from lipcert.errors import check_positive, choose
from lipcert.models.network import Network, NetworkConfig, normalisation
from lipcert.nn.bcop import BCOP
from lipcert.nn.composition import Center
from lipcert.nn.contract import ACTIVATIONS, CONVOLUTIONS
from lipcert.nn.linear_residual import LinearResidualConv2d
from lipcert.nn.shape import Flatten, SpaceToDepth

LARGEST_SIDE = 16
"""Pixels of the body's maps, if the image can be halved so often."""
WIDEST = 8
"""Channels of the dense part over those of the body."""


@dataclass(frozen=True, kw_only=True)
class LiResNetConfig(NetworkConfig):
    """The arguments of `liresnet`, complete; `conv` is its `block`."""

    architecture: ClassVar[str] = "liresnet"
    dense: int

    def __post_init__(self) -> None:
        check_positive(dense=self.dense)
        super().__post_init__()

    @property
    def title(self) -> str:
        """The network in a few words."""
        return f"LiResNet of depth {self.depth} ({self.kind})"

    @property
    def stem(self) -> int:
        """Halvings of the image in front of the body: at least one, at most until the map is small."""
        count = 1
        while self.image_size >> count > LARGEST_SIDE and not (self.image_size >> count) % 2:
            count += 1
        return count

    @property
    def neck(self) -> tuple[int, ...]:
        """Channels behind each halving of the body's map: doubled, up to those of the dense part."""
        side = self.image_size >> self.stem
        count = (side & -side).bit_length() - 1
        return tuple(self.width * min(WIDEST, 2**halving) for halving in range(1, count + 1))

    @property
    def channels(self) -> int:
        """Channels of the dense part."""
        return self.neck[-1] if self.neck else self.width

    @property
    def features(self) -> int:
        """Length of the vector that enters the head."""
        side = self.image_size >> (self.stem + len(self.neck))
        return self.channels * side * side

    @property
    def least_numbers(self) -> int:
        """Lower bound on the numbers in such a network, without building it."""
        stem = (self.width * self.in_channels << 2 * self.stem) // 8
        body, dense = self.depth * self.width**2 // 8, self.dense * self.channels**2
        return max(stem, body, dense, self.features * self.num_classes // 8)

    def build(self) -> "LiResNet":
        """The network, with new weights."""
        arguments = asdict(self)
        return liresnet(block=arguments.pop("conv"), **arguments)


class LiResNet(Network):
    """A network made by `liresnet`: `normalize`, `body` (`stem`, `blocks`, `neck`, `dense`), `flatten` and
    `head`, in this order.

    Shape:
        (N, in_channels, image_size, image_size), raw pixels in [0, 1] -> logits (N, num_classes)
    """

    flatten: Flatten

    def __init__(self, config: LiResNetConfig) -> None:
        super().__init__(config, body=_body(config), flatten=Flatten())


def liresnet(
    depth: int = 4,
    width: int = 32,
    block: str = "liresnet",
    activation: str = "hh1",
    head: str = "lln",
    num_classes: int = 100,
    image_size: int = 32,
    *,
    dense: int = 2,
    in_channels: int = 3,
    mean: tuple[float, ...] | float | None = None,
    std: tuple[float, ...] | float | None = None,
    series: str = "isometric",
) -> LiResNet:
    r"""Build a residual network with a proved Lipschitz constant, in the manner of LiResNets.

    - Stem: the image is halved, once for sides up to 32 and else until its map has at most 16 x 16 pixels, by
      a convolution with `width` channels, and an activation.
    - Body: `depth` blocks on maps of that size. A block centers its channels (`Center`), convolves, and
      applies the activation; CPL and SLL have one of their own.
    - Neck: orthogonal convolutions with stride 2 and an activation each, until the map is one pixel or has an
      odd side; channels double up to 8 times the width.
    - Dense part: `dense` orthogonal matrices with an activation each, then the head.

    The published networks have a width of 128 and more, eight dense layers and 2048 features; the sizes here
    are for a CPU.

    Guarantee: Lipschitz constant 1 / min(std) up to the head, times the proved constant of each convolution.

    Args:
        depth: blocks of the body.
        width: channels of the body.
        block: convolution of the body: "liresnet" (identity plus kernel, over its norm), "cpl" or "sll"
            (steps of gradient descent), or any other registered convolution, orthogonal ones too.
        activation: "maxmin", "hh1", "hh2", or any registered activation.
        head: "lln" (unit rows, free directions), "orthogonal" (orthonormal rows), or any registered head.
        num_classes: number of logits.
        image_size: height and width of the images, even.
        dense: layers of the dense part.
        in_channels: channels of the images.
        mean: subtracted from the pixels, one number or one per channel; by default as in `lipconvnet`.
        std: divides the pixels, one number or one per channel; by default as in `lipconvnet`.
        series: polynomial of SOC layers, "isometric", "wide" or "exponential"; see `SOC`.

    Raises:
        ArgumentError: an argument out of range, or an unknown name (the nearest one is suggested).

    >>> model = liresnet(depth=2, width=4, num_classes=10, image_size=8, in_channels=1)
    >>> model.body.blocks.conv2.out_channels, model.head
    (4, NormalizedLinear(16, 10))

    Reference: K. Hu, A. Zou, Z. Wang, K. Leino, M. Fredrikson, Unlocking deterministic robustness
    certification on ImageNet, NeurIPS 2023.
    """
    choose("block", block, CONVOLUTIONS)
    config = LiResNetConfig(
        depth=depth,
        conv=block,
        activation=activation,
        head=head,
        num_classes=num_classes,
        width=width,
        image_size=image_size,
        in_channels=in_channels,
        series=series,
        dense=dense,
        **normalisation(in_channels, mean, std),
    )
    return LiResNet(config)


def _body(config: LiResNetConfig) -> nn.Sequential:
    width, activation = config.width, ACTIVATIONS[config.activation]
    linear = CONVOLUTIONS[config.conv].linear
    make: Any = config.convolution if linear else LinearResidualConv2d
    inputs = config.in_channels * 4 ** (config.stem - 1)
    stem: OrderedDict[str, nn.Module] = OrderedDict()
    for halving in range(1, config.stem):
        stem[f"blocks{halving}"] = SpaceToDepth()
    stem |= {"conv": make(inputs, width, 3, stride=2), "activation": activation(width)}
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for block in range(1, config.depth + 1):
        blocks |= {f"center{block}": Center(width), f"conv{block}": config.convolution(width, width, 3)}
        if linear:
            blocks[f"activation{block}"] = activation(width)
    neck, channels = OrderedDict[str, nn.Module](), width
    for halving, outputs in enumerate(config.neck, start=1):
        neck[f"conv{halving}"] = BCOP(channels, outputs, 1, stride=2)
        neck[f"activation{halving}"] = activation(outputs)
        channels = outputs
    dense: OrderedDict[str, nn.Module] = OrderedDict()
    for layer in range(1, config.dense + 1):
        dense |= {f"conv{layer}": BCOP(channels, channels, 1), f"activation{layer}": activation(channels)}
    parts = {"stem": stem, "blocks": blocks, "neck": neck, "dense": dense}
    return nn.Sequential(OrderedDict((name, nn.Sequential(part)) for name, part in parts.items()))
