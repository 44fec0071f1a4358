"""Activations that preserve gradient norms: MaxMin, GroupSort and the Householder family."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError
from lipcert.kernels.activations import groupsort, householder, maxmin
from lipcert.kernels.householder import MAX_ORDER, householder_chain, householder_nd, householder_order
from lipcert.nn.contract import LipschitzModule, register_activation
from lipcert.operators import activations as operators
from lipcert.operators.operator import Operator, Shape
from lipcert.operators.tree import Sequence

TILT = math.pi / 64
"""Angle given to extra sectors at the start: with none at all their parameters would not learn."""


def _positive(name: str, value: int, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name}: expected an integer of at least {least}, got {value!r}")
    return value


class Activation(LipschitzModule):
    """Checks and promises that all activations share.

    Args:
        channels: channels of the input, or None where every number divisible by `group_size` will do.
        group_size: how many channels are mixed with each other.
    """

    def __init__(self, channels: int | None, group_size: int) -> None:
        super().__init__()
        _positive("group_size", group_size, 2)
        if channels is not None and _positive("channels", channels) % group_size:
            raise ArgumentError(
                f"channels: {type(self).__name__} needs a multiple of {group_size}, got {channels}"
            )
        self.channels, self.group_size = channels, group_size

    @abstractmethod
    def activate(self, x: Tensor) -> Tensor:
        """Apply the map to an input of checked shape."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to maps (N, C, H, W) or vectors (N, C)."""
        if x.dim() not in (2, 4) or not x.is_floating_point():
            raise ArgumentError(
                f"{type(self).__name__}: expected floating point (N, C) or (N, C, H, W), "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        self.output_shape(tuple(x.shape[1:]))
        return self.activate(x)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own shape; raises if the layer cannot take it."""
        name = type(self).__name__
        if len(input_shape) not in (1, 3):
            raise ArgumentError(f"{name}: expected samples (C,) or (C, H, W), got shape {tuple(input_shape)}")
        if self.channels is not None and input_shape[0] != self.channels:
            raise ArgumentError(f"{name}: expected {self.channels} channels, got shape {tuple(input_shape)}")
        if input_shape[0] % self.group_size:
            raise ArgumentError(
                f"{name}: expected a number of channels divisible by {self.group_size}, got {input_shape[0]}"
            )
        return input_shape

    def extra_repr(self) -> str:
        """The arguments."""
        return "" if self.channels is None else str(self.channels)


class MaxMin(Activation):
    """Maximum and minimum of every pair of channels (k, k + C/2).

    Guarantee: 1-Lipschitz, gradient norm preserving, exact in every precision.

    >>> MaxMin()(torch.tensor([[1.0, 2.0]]))
    tensor([[2., 1.]])
    """

    def __init__(self) -> None:
        super().__init__(None, 2)

    def freeze(self, input_shape: Shape) -> Operator:
        """Groups of two."""
        self.output_shape(input_shape)
        return operators.GroupSort(2)

    def activate(self, x: Tensor) -> Tensor:
        """Sort the pairs."""
        return maxmin(x)


class GroupSort(Activation):
    """Sort every group of channels (k, k + C/g, ...) in descending order; group size 2 is MaxMin.

    Guarantee: 1-Lipschitz, gradient norm preserving, exact in every precision.

    Args:
        group_size: channels per group, at least 2.

    >>> GroupSort(3)(torch.tensor([[1.0, 3.0, 2.0]]))
    tensor([[3., 2., 1.]])
    """

    def __init__(self, group_size: int) -> None:
        super().__init__(None, group_size)

    def freeze(self, input_shape: Shape) -> Operator:
        """The same."""
        self.output_shape(input_shape)
        return operators.GroupSort(self.group_size)

    def activate(self, x: Tensor) -> Tensor:
        """Sort the groups."""
        return groupsort(x, self.group_size)

    def extra_repr(self) -> str:
        """The arguments."""
        return str(self.group_size)


class Householder(Activation):
    r"""The Householder activation :math:`\sigma_\theta`, one angle per pair of channels (k, k + C/2).

    Guarantee: 1-Lipschitz and gradient norm preserving for every theta. It starts at pi/2: MaxMin, to
    the bit in float32 and float64.

    Args:
        channels: channels of the input, even.
        device, dtype: of `theta`.

    Attributes:
        theta: the angles, (channels / 2,).

    >>> Householder(2)(torch.tensor([[1.0, 2.0]])).detach()
    tensor([[2., 1.]])

    Reference: Corollary 1 of the paper.
    """

    def __init__(
        self, channels: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(channels, 2)
        self.theta = nn.Parameter(torch.full((channels // 2,), math.pi / 2, device=device, dtype=dtype))

    def freeze(self, input_shape: Shape) -> Operator:
        """The angles as numbers."""
        self.output_shape(input_shape)
        return operators.Householder(self.theta.detach().clone())

    def activate(self, x: Tensor) -> Tensor:
        """Reflect the pairs on the far side of their line."""
        return householder(x, self.theta)


class HouseholderOrder(Activation):
    r"""The Householder activation :math:`\sigma_\Theta` of order n: 2n linear regions from 2n - 1 numbers.

    Guarantee: 1-Lipschitz and gradient norm preserving for all real parameters. Order 1 is `Householder`. A
    higher order starts within 2 sin(pi/64) |z| < 0.1 |z| of MaxMin: the reflecting sectors of equal size, and
    between them n - 1 turning sectors of pi/64 together (with none they would get no gradient).

    Args:
        channels: channels of the input, even.
        order: n, from 1 to 128.
        device, dtype: of the parameters.

    Attributes:
        theta: twice the angle of the first boundary, (channels / 2,); for order 1 the theta of `Householder`.
        widths: logarithms of the sectors' angles relative to the last sector of the same kind, (2, order - 1,
            channels / 2), first the reflecting sectors, then the turning ones. None for order 1.

    >>> HouseholderOrder(2, order=2)(torch.tensor([[3.0, 1.0]])).detach()  # in the last sector: the identity
    tensor([[3., 1.]])

    Reference: Theorem 2 in the paper's appendix.
    """

    widths: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        order: int = 2,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, 2)
        if _positive("order", order) > MAX_ORDER:
            raise ArgumentError(f"order: expected at most {MAX_ORDER}, got {order}")
        self.order = order
        self.theta = nn.Parameter(torch.full((channels // 2,), math.pi / 2, device=device, dtype=dtype))
        self.widths = None
        if order > 1:
            widths = torch.zeros(2, order - 1, channels // 2, device=device, dtype=dtype)
            widths[1] = math.log(TILT / (order - 1) / (math.pi - TILT))
            self.widths = nn.Parameter(widths)

    def freeze(self, input_shape: Shape) -> Operator:
        """Angles and widths as numbers; order 1 is the plain reflection."""
        self.output_shape(input_shape)
        theta = self.theta.detach().clone()
        if self.widths is None:
            return operators.Householder(theta)
        return operators.HouseholderOrder(theta, self.widths.detach().clone())

    def activate(self, x: Tensor) -> Tensor:
        """Apply to every pair the matrix of its sector."""
        return (
            householder(x, self.theta)
            if self.widths is None
            else householder_order(x, self.theta, self.widths)
        )

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.channels}, order={self.order}"


class HouseholderChain(Activation):
    r""":math:`\sigma^{(n)}`: n Householder activations in sequence on the pairs of channels (k, k + C/2).

    Guarantee: 1-Lipschitz and gradient norm preserving for all real angles. Length 1 is `Householder`. The
    first link starts as MaxMin, the others with angles spread evenly over the next pi/32, so the chain starts
    within pi/32 |z| of MaxMin (a link like the one before would be the identity and get no gradient).

    Args:
        channels: channels of the input, even.
        length: n.
        device, dtype: of `theta`.

    Attributes:
        theta: the angles, (length, channels / 2), the first link first.

    >>> HouseholderChain(2, length=2)(torch.tensor([[1.0, 2.0]])).detach()
    tensor([[2., 1.]])

    Reference: appendix F of the paper.
    """

    def __init__(
        self,
        channels: int,
        length: int = 2,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, 2)
        self.length = _positive("length", length)
        start = math.pi / 2 + torch.linspace(0, 2 * TILT if length > 1 else 0, length, dtype=torch.float64)
        start = start.to(device=device, dtype=dtype or torch.get_default_dtype())
        self.theta = nn.Parameter(start[:, None].repeat(1, channels // 2))

    def freeze(self, input_shape: Shape) -> Operator:
        """One reflection after the other."""
        self.output_shape(input_shape)
        return Sequence.of(*(operators.Householder(theta.clone()) for theta in self.theta.detach()))

    def activate(self, x: Tensor) -> Tensor:
        """Apply the links in turn."""
        return householder_chain(x, self.theta)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.channels}, length={self.length}"


class HouseholderND(Activation):
    r""":math:`\sigma^{(m,n)}`: n reflections in sequence on every group of m channels (k, k + C/m, ...).

    Guarantee: 1-Lipschitz and gradient norm preserving for all nonzero vectors. Each link starts by sorting
    one pair of a group: first the members m/2 apart, so that even m with length m/2 starts as MaxMin (up to
    rounding), then those m/2 - 1 apart, and so on down to neighbours, and again. After the first m/2, every
    mirror is tilted by pi/64 more: a pair that is sorted already would leave its link without gradient.

    Args:
        channels: channels of the input, a multiple of `group_size`.
        group_size: m, at least 2.
        length: n.
        device, dtype: of `vectors`.

    Attributes:
        vectors: normals of the mirrors, of any nonzero length, (length, group_size, channels / group_size).

    >>> HouseholderND(4, group_size=4, length=2)(torch.tensor([[1.0, 2.0, 3.0, 1.0]])).detach()
    tensor([[3., 2., 1., 1.]])

    Reference: Definition 1 and appendix G of the paper.
    """

    def __init__(
        self,
        channels: int,
        group_size: int = 2,
        length: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, group_size)
        self.length = _positive("length", length)
        vectors = torch.zeros(length, group_size, channels // group_size, device=device, dtype=dtype)
        half = group_size // 2
        pairs = [(a, a + distance) for distance in range(half, 0, -1) for a in range(group_size - distance)]
        for link in range(length):
            first, second = pairs[link % len(pairs)]
            slope = math.tan(max(link - half + 1, 0) * TILT)
            vectors[link, first], vectors[link, second] = 1 - slope, -1 - slope
        self.vectors = nn.Parameter(vectors)

    def freeze(self, input_shape: Shape) -> Operator:
        """The normals as numbers."""
        self.output_shape(input_shape)
        return operators.HouseholderND(self.vectors.detach().clone())

    def activate(self, x: Tensor) -> Tensor:
        """Reflect the groups link by link."""
        return householder_nd(x, self.vectors)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.channels}, group_size={self.group_size}, length={self.length}"


register_activation("maxmin", lambda channels: MaxMin())
register_activation("groupsort4", lambda channels: GroupSort(4))
register_activation("hh1", Householder)
register_activation("hh2", lambda channels: HouseholderOrder(channels, order=2))
register_activation("hh3", lambda channels: HouseholderOrder(channels, order=3))
register_activation("chain2", lambda channels: HouseholderChain(channels, length=2))
register_activation("nd4", lambda channels: HouseholderND(channels, group_size=4, length=2))
