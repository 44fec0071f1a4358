"""Pooling over windows of a map, and upsampling by repetition."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError, choose
from lipcert.operators.operator import EXACT, Operator, RoundingError, Shape
from lipcert.proofs.rounding import TINY, gamma, product_up, sqrt_up, up
from lipcert.proofs.spectral import matrix_norm_upper_bound

POOLS = ("average", "max", "norm")
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Pool(Operator):
    r"""Mean, largest number or l2 norm of every window of every channel.

    Guarantee: with m the largest number of windows that one pixel is in, "max" and "norm" have the constant
    :math:`\sqrt m`: of one window they change by no more than the norm of the change inside of it, and every
    pixel counts m times at most. So windows that do not overlap have 1. "average" is linear; rows and columns
    are averaged one after the other, so its norm is the product of the norms of two small matrices:
    :math:`1 / \sqrt{\text{pixels of a window}}` where windows do not overlap.

    Args:
        function: "average", "max" or "norm".
        window: height and width.
        stride: from one window to the next.
        padding: pixels on each side; zeros, which count in averages, and no candidates for "max". At most
            half of the window.

    >>> operator = Pool("max", (3, 3), (2, 2), (1, 1))
    >>> operator.output_shape((8, 16, 16)), operator.lipschitz_bound((8, 16, 16))
    ((8, 8, 8), 2.0)
    """

    function: str
    window: Pair
    stride: Pair
    padding: Pair

    def __post_init__(self) -> None:
        choose("function", self.function, POOLS)
        if min(*self.window, *self.stride) < 1:
            raise ArgumentError(
                f"window, stride: expected positive sides, got {self.window} and {self.stride}"
            )
        if not all(0 <= p <= k // 2 for p, k in zip(self.padding, self.window, strict=True)):
            raise ArgumentError(
                f"padding: expected 0 to half of the window {self.window}, got {self.padding}"
            )

    def apply(self, x: Tensor) -> Tensor:
        """Pool every channel."""
        if self.function == "average":
            return F.avg_pool2d(x, self.window, self.stride, self.padding)
        if self.function == "max":
            return F.max_pool2d(x, self.window, self.stride, self.padding)
        (py, px), (ky, kx), (sy, sx) = self.padding, self.window, self.stride
        windows = F.pad(x, (px, px, py, py)).unfold(2, ky, sy).unfold(3, kx, sx)
        norms: Tensor = torch.linalg.vector_norm(windows, dim=(4, 5))  # of a window of zeros: gradient 0
        return norms

    def output_shape(self, input_shape: Shape) -> Shape:
        """The number of windows in each direction; what is left of a map at its end is in no window."""
        sizes = zip(input_shape[1:], self.window, self.stride, self.padding, strict=False)
        sides = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)
        if len(input_shape) != 3 or min(sides) < 1:
            raise self._refuse(
                f"maps of at least {self.window}, with {self.padding} around them", input_shape
            )
        return (input_shape[0], *sides)

    def memberships(self, input_shape: Shape) -> tuple[Tensor, Tensor]:
        """Two matrices (windows, pixels) of zeros and ones: which rows, and columns, are in which window."""
        sides = zip(self.output_shape(input_shape)[1:], input_shape[1:], strict=True)
        rows, columns = (
            _membership(count, n, k, s, p)
            for (count, n), k, s, p in zip(sides, self.window, self.stride, self.padding, strict=True)
        )
        return rows, columns

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """See the class."""
        parts = self.memberships(input_shape)
        overlap, size = math.prod(int(part.sum(dim=0).max()) for part in parts), math.prod(self.window)
        if self.function != "average":
            return _root(overlap)
        if overlap == 1:  # windows side by side: the longest row times the longest column
            longest = math.prod(int(part.sum(dim=1).max()) for part in parts)
            return _root(longest) / size if size & (size - 1) == 0 else up(_root(longest) / size)
        return up(product_up(*map(matrix_norm_upper_bound, parts)) / size)

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        r"""A sum over the window, a product and a root: :math:`\gamma_{k + 4}` of absolute values.

        Their sums have the same constant. Squares of numbers below 2^-511 vanish.
        """
        bound = self.lipschitz_bound(input_shape)
        if self.function == "max":
            return EXACT
        lost = TINY if self.function == "average" else product_up(
            sqrt_up(2.0 * math.prod(input_shape)), bound, 2.0**-510
        )  # fmt: skip
        return RoundingError(product_up(gamma(math.prod(self.window) + 4), bound), lost)


@dataclass(frozen=True, eq=False, repr=False)
class Repeat(Operator):
    r"""Every pixel as a block of equal pixels: upsampling by repetition.

    Guarantee: Lipschitz constant :math:`\sqrt{\text{pixels of a block}}`, attained; nothing is rounded.

    Args:
        block: height and width.

    >>> Repeat((2, 2)).lipschitz_bound((3, 4, 4))
    2.0
    """

    block: Pair

    def __post_init__(self) -> None:
        if min(self.block) < 1:
            raise ArgumentError(f"block: expected positive sides, got {self.block}")

    def apply(self, x: Tensor) -> Tensor:
        """Repeat rows and columns."""
        return x.repeat_interleave(self.block[0], dim=2).repeat_interleave(self.block[1], dim=3)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Both sides, times those of a block."""
        if len(input_shape) != 3:
            raise self._refuse("maps (C, H, W)", input_shape)
        return (input_shape[0], input_shape[1] * self.block[0], input_shape[2] * self.block[1])

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """The root of the number of pixels that one becomes."""
        self.output_shape(input_shape)
        return _root(math.prod(self.block))

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """None."""
        return EXACT


def _membership(count: int, pixels: int, window: int, stride: int, padding: int) -> Tensor:
    starts = torch.arange(count, device="cpu").view(-1, 1) * stride - padding
    places = torch.arange(pixels, device="cpu").view(1, -1)
    return ((places >= starts) & (places < starts + window)).double()


def _root(count: int) -> float:
    """A square root, exact or rounded up."""
    root = math.isqrt(count)
    return float(root) if root * root == count else sqrt_up(float(count))
