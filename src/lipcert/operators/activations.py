"""Activations: sorted groups and the Householder family, all 1-Lipschitz.

The constants of the rounding errors are those of docs/layers/activations.md with room to spare.
"""

from dataclasses import dataclass

from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.activations import groupsort, householder, maxmin
from lipcert.kernels.householder import MAX_ORDER, householder_nd, householder_order
from lipcert.operators.operator import EXACT, Operator, RoundingError, Shape
from lipcert.proofs.rounding import TINY, UNIT, product_up


class GroupedActivation(Operator):
    """A 1-Lipschitz map of every group of channels (k, k + C/g, ...)."""

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own."""
        channels, group = self.sizes()
        if len(input_shape) not in (1, 3) or input_shape[0] % group or channels not in (None, input_shape[0]):
            wanted = f"a multiple of {group}" if channels is None else str(channels)
            raise self._refuse(f"{wanted} channels", input_shape)
        return tuple(input_shape)

    def sizes(self) -> tuple[int | None, int]:
        """Channels, or None for any number, and the size of a group."""
        raise NotImplementedError

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Exactly 1."""
        self.output_shape(input_shape)
        return 1.0


@dataclass(frozen=True, eq=False, repr=False)
class GroupSort(GroupedActivation):
    """Every group in descending order; groups of two are MaxMin."""

    group: int

    def __post_init__(self) -> None:
        if self.group < 2:
            raise ArgumentError(f"group: expected at least 2, got {self.group}")

    def apply(self, x: Tensor) -> Tensor:
        """Sort the groups."""
        return maxmin(x) if self.group == 2 else groupsort(x, self.group)

    def sizes(self) -> tuple[int | None, int]:
        """Any number of channels that the group divides."""
        return None, self.group

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """None: numbers are compared and moved."""
        return EXACT


@dataclass(frozen=True, eq=False, repr=False)
class Householder(GroupedActivation):
    """Pairs on the far side of a line are mirrored at it; one angle per pair (Corollary 1 of the paper)."""

    theta: Tensor

    def __post_init__(self) -> None:
        _refuse_not_finite("theta", self.theta, 1)

    def apply(self, x: Tensor) -> Tensor:
        """Reflect the pairs."""
        return householder(x, self.theta)

    def sizes(self) -> tuple[int | None, int]:
        """Two channels per angle."""
        return 2 * len(self.theta), 2

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """A few roundings per entry; those of sine and cosine grow with the angle."""
        return _per_norm(_largest(self.theta) + 64)


@dataclass(frozen=True, eq=False, repr=False)
class HouseholderOrder(GroupedActivation):
    """The Householder activation of order n (Theorem 2 of the paper).

    Args:
        theta: (C / 2,), twice the angle of the first boundary.
        widths: (2, n - 1, C / 2), logarithms of the sectors' angles; n > 1.
    """

    theta: Tensor
    widths: Tensor

    def __post_init__(self) -> None:
        _refuse_not_finite("theta", self.theta, 1)
        _refuse_not_finite("widths", self.widths, 3)
        shape = tuple(self.widths.shape)
        if shape[0] != 2 or shape[2:] != self.theta.shape or not 2 <= shape[1] + 1 <= MAX_ORDER:
            raise ArgumentError(
                f"widths: expected (2, order - 1, {len(self.theta)}) with an order of 2 to {MAX_ORDER}, got "
                f"shape {shape}"
            )

    def apply(self, x: Tensor) -> Tensor:
        """Apply to every pair the matrix of its sector."""
        return householder_order(x, self.theta, self.widths)

    def sizes(self) -> tuple[int | None, int]:
        """Two channels per angle."""
        return 2 * len(self.theta), 2

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Boundaries are sums over the sectors, so their rounding grows with the order."""
        return _per_norm(4 * _largest(self.theta) + 80 * (self.widths.shape[1] + 1) + 400)


@dataclass(frozen=True, eq=False, repr=False)
class HouseholderND(GroupedActivation):
    """Reflections in sequence on every group of m channels (Definition 1 and appendix G of the paper).

    Args:
        vectors: normals of the mirrors, not zero, (length, m, C / m).
    """

    vectors: Tensor

    def __post_init__(self) -> None:
        _refuse_not_finite("vectors", self.vectors, 3)
        if not all(self.vectors.shape):
            raise ArgumentError(
                f"vectors: expected (length, group size, groups), each at least 1, got shape "
                f"{tuple(self.vectors.shape)}"
            )
        if not bool((self.vectors != 0).any(dim=1).all()):
            raise ArgumentError("vectors: expected nonzero vectors, got one of zeros, which has no mirror")

    def apply(self, x: Tensor) -> Tensor:
        """Reflect the groups link by link."""
        return householder_nd(x, self.vectors)

    def sizes(self) -> tuple[int | None, int]:
        """M times the number of groups."""
        _, group, count = self.vectors.shape
        return group * count, group

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Inner products of m terms, once per link."""
        length, group, _ = self.vectors.shape
        return _per_norm((8 * group + 64) * (length + 1))


def _per_norm(units: float) -> RoundingError:
    return RoundingError(product_up(units, UNIT, 1 + 2.0**-20), TINY)


def _largest(values: Tensor) -> float:
    return float(values.double().abs().max()) if values.numel() else 0.0


def _refuse_not_finite(name: str, values: Tensor, axes: int) -> None:
    if values.dim() != axes or not bool(values.isfinite().all()):
        raise ArgumentError(
            f"{name}: expected finite numbers with {axes} axes, got shape {tuple(values.shape)} or numbers "
            "that are not finite; the model diverged or is damaged"
        )
