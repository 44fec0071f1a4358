"""Operators that move numbers and change none: isometries, exact in every precision."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.channels import space_to_depth
from lipcert.operators.operator import EXACT, Operator, RoundingError, Shape


class Rearrangement(Operator):
    """An isometry without arithmetic."""

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Exactly 1."""
        self.output_shape(input_shape)
        return 1.0

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """None."""
        self.output_shape(input_shape)
        return EXACT


@dataclass(frozen=True, eq=False, repr=False)
class SpaceToDepth(Rearrangement):
    """Every 2x2 block of pixels as channels, (C, H, W) -> (4 C, H / 2, W / 2)."""

    def apply(self, x: Tensor) -> Tensor:
        """Move pixels to channels."""
        return space_to_depth(x)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Four times the channels, half of both sides."""
        if len(input_shape) != 3 or input_shape[1] % 2 or input_shape[2] % 2:
            raise self._refuse("maps of even height and width", input_shape)
        channels, height, width = input_shape
        return (4 * channels, height // 2, width // 2)


@dataclass(frozen=True, eq=False, repr=False)
class Reshape(Rearrangement):
    """Samples of one shape laid out in another; all axes in one is a flattening.

    Args:
        shape: of one output sample, or None for one axis as long as all axes of the input.
    """

    shape: Shape | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and not (self.shape and all(side > 0 for side in self.shape)):
            raise ArgumentError(f"shape: expected positive sides, got {self.shape}")

    def apply(self, x: Tensor) -> Tensor:
        """Change the shape and keep the numbers."""
        return x.flatten(1) if self.shape is None else x.reshape(x.shape[0], *self.shape)

    def output_shape(self, input_shape: Shape) -> Shape:
        """`shape`; raises if it holds another number of entries."""
        count = math.prod(input_shape)
        if self.shape is not None and math.prod(self.shape) != count:
            raise self._refuse(f"{math.prod(self.shape)} numbers", input_shape)
        return (count,) if self.shape is None else self.shape


@dataclass(frozen=True, eq=False, repr=False)
class Transpose(Rearrangement):
    """The axes of a sample in another order; between two `Reshape`, blocks of pixels become channels.

    Args:
        order: for every axis of the output, which axis of the input it is.
    """

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.order or sorted(self.order) != list(range(len(self.order))):
            raise ArgumentError(f"order: expected each axis once, such as (0, 2, 1), got {self.order}")

    def apply(self, x: Tensor) -> Tensor:
        """Move the axes."""
        return x.permute(0, *(axis + 1 for axis in self.order))

    def output_shape(self, input_shape: Shape) -> Shape:
        """The sides of the input in the new order."""
        if len(input_shape) != len(self.order):
            raise self._refuse(f"samples of {len(self.order)} axes", input_shape)
        return tuple(input_shape[axis] for axis in self.order)


@dataclass(frozen=True, eq=False, repr=False)
class Mirror(Rearrangement):
    """The mirror image: columns from right to left."""

    def apply(self, x: Tensor) -> Tensor:
        """Flip the last axis."""
        return x.flip(-1)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own."""
        if len(input_shape) != 3:
            raise self._refuse("maps (C, H, W)", input_shape)
        return tuple(input_shape)


@dataclass(frozen=True, eq=False, repr=False)
class ChannelPad(Rearrangement):
    """Channels of zeros behind those of the input.

    Args:
        channels: of the output.
    """

    channels: int

    def apply(self, x: Tensor) -> Tensor:
        """Add zeros."""
        return F.pad(x, (*(0, 0) * (x.dim() - 2), 0, self.channels - x.shape[1]))

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own with `channels` channels."""
        if not input_shape or input_shape[0] > self.channels:
            raise self._refuse(f"at most {self.channels} channels", input_shape)
        return (self.channels, *input_shape[1:])


@dataclass(frozen=True, eq=False, repr=False)
class ChannelSlice(Rearrangement):
    """Channels start, ..., stop - 1 of the input: a projection, of constant 1 as well."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ArgumentError(f"start, stop: expected 0 <= start < stop, got {self.start} and {self.stop}")

    def apply(self, x: Tensor) -> Tensor:
        """Drop the other channels."""
        return x[:, self.start : self.stop]

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own with stop - start channels."""
        if not input_shape or input_shape[0] < self.stop:
            raise self._refuse(f"at least {self.stop} channels", input_shape)
        return (self.stop - self.start, *input_shape[1:])

    def channels_read(self, input_shape: Shape) -> range:
        """Those that are kept."""
        return range(self.start, self.stop)


@dataclass(frozen=True, eq=False, repr=False)
class Frame(Rearrangement):
    """Rows and columns of zeros on all four sides of a map; a negative margin takes as many away.

    Guarantee: an isometry if it adds, and a projection, of constant 1 as well, if it takes away.

    Args:
        margin: pixels on each side, not zero.
    """

    margin: int

    def __post_init__(self) -> None:
        if not self.margin:
            raise ArgumentError("margin: expected pixels to add or, below 0, to take away, got 0")

    def apply(self, x: Tensor) -> Tensor:
        """Pad, or crop."""
        return F.pad(x, (self.margin,) * 4)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Both sides longer by twice the margin."""
        if len(input_shape) != 3 or min(input_shape[1:]) + 2 * self.margin < 1:
            raise self._refuse(f"maps of more than {max(0, -2 * self.margin)} rows and columns", input_shape)
        channels, height, width = input_shape
        return (channels, height + 2 * self.margin, width + 2 * self.margin)
