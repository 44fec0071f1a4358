"""Composition: one after the other, weighted sums of branches, and branches side by side."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.operators.operator import EXACT, LARGEST_RADIUS, Flow, Operator, RoundingError, Shape, inflate
from lipcert.proofs.rounding import TINY, gamma, product_up, sqrt_up, sum_up

SMALLEST = 2.0**-500
"""Of a weight that is not zero: smaller ones make numbers that some processors take for zero."""


@dataclass(frozen=True, eq=False, repr=False)
class Sequence(Operator):
    """Operators one after the other; none at all is the identity."""

    parts: tuple[Operator, ...]

    @classmethod
    def of(cls, *parts: Operator) -> Operator:
        """A sequence in which no part is a sequence itself; a single part stays alone."""
        flat = [inner for part in parts for inner in (part.parts if type(part) is Sequence else (part,))]
        return flat[0] if len(flat) == 1 else cls(tuple(flat))

    def apply(self, x: Tensor) -> Tensor:
        """Each part on what the one before made."""
        for part in self.parts:
            x = part.apply(x)
        return x

    def output_shape(self, input_shape: Shape) -> Shape:
        """That of the last part."""
        for part in self.parts:
            input_shape = part.output_shape(input_shape)
        return input_shape

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """The product."""
        return self._product(self.parts, input_shape)[0]

    def channels_read(self, input_shape: Shape) -> range:
        """Those of the first part."""
        return self.parts[0].channels_read(input_shape) if self.parts else super().channels_read(input_shape)

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Errors of a part pass through the parts behind it; what enters a part has grown by those before."""
        relative = absolute = 0.0
        reach, offset = 1.0, 0.0
        for part in self.parts:
            lipschitz, own = part.lipschitz_bound(input_shape), part.rounding_error(input_shape)
            size = sum_up(reach, relative)  # of the computed input, per unit of the first input
            base = sum_up(offset, absolute)
            relative = sum_up(product_up(lipschitz, relative), product_up(own.relative, size))
            absolute = sum_up(product_up(lipschitz, absolute), product_up(own.relative, base), own.absolute)
            reach = product_up(lipschitz, reach)
            offset = sum_up(product_up(lipschitz, offset), _value_at_zero(part, input_shape))
            input_shape = part.output_shape(input_shape)
        return RoundingError(relative, absolute)

    def pair_bounds(self, input_shape: Shape) -> Tensor:
        """Those of the last part, times the constant of the parts before it.

        A product with one number at the end multiplies the pair bounds of the parts before it.
        """
        if not self.parts:
            return super().pair_bounds(input_shape)
        last = self.parts[-1]
        if isinstance(last, WeightedSum) and last.branches == (Sequence(()),) and len(self.parts) > 1:
            return WeightedSum((Sequence(self.parts[:-1]),), last.weights).pair_bounds(input_shape)
        before, shape = self._product(self.parts[:-1], input_shape)
        bounds = self.parts[-1].pair_bounds(shape)
        return bounds if before == 1 else bounds * before * (1 + 2.0**-50)

    def feature_bound(self, input_shape: Shape) -> float:
        """Of the parts in front of the last one, times what that says of itself."""
        if not self.parts:
            return 1.0
        before, shape = self._product(self.parts[:-1], input_shape)
        last = self.parts[-1].feature_bound(shape)
        return before if last == 1 else product_up(before, last)

    def run(self, flow: Flow, input_shape: Shape) -> Flow:
        """Through the parts in turn."""
        for part in self.parts:
            flow, input_shape = part.run(flow, input_shape), part.output_shape(input_shape)
        return flow

    @staticmethod
    def _product(parts: tuple[Operator, ...], shape: Shape) -> tuple[float, Shape]:
        total = 1.0
        for part in parts:
            bound = part.lipschitz_bound(shape)
            if bound != 1:  # a factor of one needs no rounding
                total = bound if total == 1 else product_up(total, bound)
            shape = part.output_shape(shape)
        return total, shape


@dataclass(frozen=True, eq=False, repr=False)
class WeightedSum(Operator):
    r"""Branches on the same input, added: :math:`y = \sum_k w_k f_k(x)`. Residual blocks, and averages.

    Guarantee: :math:`L \le \sum_k |w_k| L_k`, for pairs of outputs too. Errors of the branches add with the
    same weights, and the sum itself rounds m products and m - 1 additions.

    Args:
        branches: at least one, all with the same output shape.
        weights: one finite number for each.
    """

    branches: tuple[Operator, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.branches or len(self.branches) != len(self.weights):
            raise ArgumentError(
                f"weights: expected one for each of {len(self.branches)} branches, got {len(self.weights)}"
            )
        if not all(weight == 0 or SMALLEST <= abs(weight) < math.inf for weight in self.weights):
            raise ArgumentError(
                f"weights: expected finite numbers of at least {SMALLEST:.0e} or zero, got {self.weights}"
            )

    def apply(self, x: Tensor) -> Tensor:
        """The sum, from the first branch to the last."""
        return self._sum([branch.apply(x) for branch in self.branches])

    def _sum(self, values: list[Tensor]) -> Tensor:
        total = values[0] * self.weights[0]
        for value, weight in zip(values[1:], self.weights[1:], strict=True):
            total = total + value * weight
        return total

    def output_shape(self, input_shape: Shape) -> Shape:
        """That of every branch."""
        shapes = [branch.output_shape(input_shape) for branch in self.branches]
        if len(set(shapes)) > 1:
            raise ArgumentError(
                f"WeightedSum: expected branches of one output shape, got {' and '.join(map(str, shapes))}"
            )
        return shapes[0]

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """The weighted sum of the branches' constants."""
        return self._weighted([branch.lipschitz_bound(input_shape) for branch in self.branches])

    def feature_bound(self, input_shape: Shape) -> float:
        """The weighted sum of the branches' own."""
        return self._weighted([branch.feature_bound(input_shape) for branch in self.branches])

    def _weighted(self, terms: list[float]) -> float:
        total = sum_up(*(product_up(abs(w), term) for w, term in zip(self.weights, terms, strict=True)))
        # The weights of an average add up to at most 1 exactly: then nothing has to be rounded up.
        is_average = sum(map(abs, map(Fraction, self.weights))) <= 1
        return min(total, max(terms)) if is_average else total

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Weighted errors of the branches, and gamma_{m+1} of the sizes that are added."""
        step = gamma(len(self.branches) + 2)
        relative, absolute = [], []
        for branch, weight in zip(self.branches, self.weights, strict=True):
            own, size = branch.rounding_error(input_shape), abs(weight)
            grown = sum_up(branch.lipschitz_bound(input_shape), own.relative)
            base = sum_up(_value_at_zero(branch, input_shape), own.absolute)
            relative += [product_up(size, own.relative), product_up(size, step, grown)]
            absolute += [product_up(size, own.absolute), product_up(size, step, base)]
        return RoundingError(sum_up(*relative), sum_up(*absolute, TINY))

    def pair_bounds(self, input_shape: Shape) -> Tensor:
        """The weighted sum of the branches' pair bounds."""
        total: Tensor | None = None
        for branch, weight in zip(self.branches, self.weights, strict=True):
            term = branch.pair_bounds(input_shape) * abs(weight)
            total = term if total is None else total + term
        assert total is not None
        exact = len(self.branches) == 1 and abs(self.weights[0]) == 1
        return total if exact else total * (1 + (len(self.branches) + 2) * 2.0**-52)

    def run(self, flow: Flow, input_shape: Shape) -> Flow:
        """Through every branch; the computed sum errs by its branches' errors and its own rounding."""
        flows = [branch.run(flow, input_shape) for branch in self.branches]
        step = gamma(len(self.branches) + 2)
        fixed, slope = torch.full_like(flow.fixed, TINY), 0.0
        for branch, weight in zip(flows, self.weights, strict=True):
            size = branch.size()
            fixed = inflate(fixed + abs(weight) * (branch.fixed + step * size[0]))
            slope = inflate(slope + abs(weight) * (branch.slope + step * size[1]))
        reach = sum_up(*(product_up(abs(w), f.reach) for f, w in zip(flows, self.weights, strict=True)))
        known = product_up(flow.reach, self.lipschitz_bound(input_shape))
        return Flow(
            self._sum([f.value for f in flows]),
            min(reach, known),
            fixed,
            slope,
            _largest(flows, self.weights),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Concatenation(Operator):
    r"""Branches on the same input, side by side along the channels.

    Guarantee: :math:`L \le (\sum_k L_k^2)^{1/2}`; errors add in the same way, and nothing is rounded. If no
    two branches read a common channel, each sees its own part :math:`x_k` of the input, and
    :math:`\sum_k L_k^2 \|x_k - x'_k\|^2 \le \max_k L_k^2 \|x - x'\|^2` gives :math:`L \le \max_k L_k`.

    Args:
        branches: at least one; their outputs differ in the number of channels at most.
    """

    branches: tuple[Operator, ...]

    def __post_init__(self) -> None:
        if not self.branches:
            raise ArgumentError("branches: expected at least one, got none")

    def apply(self, x: Tensor) -> Tensor:
        """The outputs, joined."""
        return torch.cat([branch.apply(x) for branch in self.branches], dim=1)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The channels of all branches together."""
        shapes = [branch.output_shape(input_shape) for branch in self.branches]
        if len({shape[1:] for shape in shapes}) > 1:
            raise ArgumentError(
                f"Concatenation: expected maps of one size, got {' and '.join(map(str, shapes))}"
            )
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """The root of the sum of squares; the maximum, if the branches read channels of their own."""
        constants = [branch.lipschitz_bound(input_shape) for branch in self.branches]
        read = [channel for branch in self.branches for channel in branch.channels_read(input_shape)]
        return max(constants) if len(set(read)) == len(read) else _length(constants)

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Lengths of the branches' errors."""
        errors = [branch.rounding_error(input_shape) for branch in self.branches]
        if all(error == EXACT for error in errors):
            return EXACT
        return RoundingError(_length([e.relative for e in errors]), _length([e.absolute for e in errors]))

    def run(self, flow: Flow, input_shape: Shape) -> Flow:
        r"""Minkowski: :math:`(\sum (a_k + b_k r)^2)^{1/2} \le \|a\| + r \|b\|`."""
        flows = [branch.run(flow, input_shape) for branch in self.branches]
        fixed = inflate(torch.linalg.vector_norm(torch.stack([f.fixed for f in flows]), dim=0))
        slope = inflate(math.hypot(*(f.slope for f in flows)))
        value = torch.cat([f.value for f in flows], dim=1)
        known = product_up(flow.reach, self.lipschitz_bound(input_shape))
        reach = min(_length([f.reach for f in flows]), known)
        return Flow(value, reach, fixed, slope, _largest(flows, (1.0,) * len(flows)))


def children(operator: Operator) -> tuple[Operator, ...] | None:
    """The operators that a combinator is made of; None for an operator that is no combinator.

    By exact type: a subclass of a combinator may state bounds of its own, so nothing looks inside it.
    """
    if type(operator) is Sequence:
        return operator.parts
    if type(operator) is WeightedSum or type(operator) is Concatenation:
        return operator.branches
    return None


def map_children(operator: Operator, change: Callable[[Operator], Operator]) -> Operator:
    """The same combinator of `change(child)` for every child; an operator without children stays as it is."""
    if type(operator) is Sequence:
        return Sequence(tuple(map(change, operator.parts)))
    if type(operator) is WeightedSum or type(operator) is Concatenation:
        return replace(operator, branches=tuple(map(change, operator.branches)))
    return operator


def _largest(flows: list[Flow], weights: tuple[float, ...]) -> Tensor:
    """Of all that was computed in the branches, and of their ends as they are added."""
    ends = []
    for flow, weight in zip(flows, weights, strict=True):
        fixed, slope = flow.size()
        ends.append((fixed + slope * LARGEST_RADIUS) * max(1.0, abs(weight)))
    return torch.stack([*(flow.largest for flow in flows), *ends]).amax(dim=0)


def _length(terms: list[float]) -> float:
    return terms[0] if len(terms) == 1 else sqrt_up(sum_up(*(product_up(t, t) for t in terms)))


def _value_at_zero(operator: Operator, input_shape: Shape) -> float:
    """Bound on ||f(0)||, which a rounding error relative to the output has to count."""
    zero = torch.zeros(1, *input_shape, dtype=torch.float64, device="cpu")
    error = operator.rounding_error(input_shape)
    computed = float(torch.linalg.vector_norm(operator.to(device="cpu", dtype=torch.float64).apply(zero)))
    return sum_up(product_up(computed, 1 + 2.0**-20), error.absolute)
