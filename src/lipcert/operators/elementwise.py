"""Functions of one number, applied to every entry."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lipcert.errors import ArgumentError, choose
from lipcert.operators.operator import Operator, RoundingError, Shape
from lipcert.proofs.rounding import TINY, UNIT, product_up, sqrt_up, sum_up

LIBRARY = 32
"""Units of roundoff by which exp, log1p and tanh of a library may be off, relative to their result: 16 units
in the last place. None of them is correctly rounded; over 10^7 arguments between 1e-12 and 700 those of torch
and numpy were off by at most 1.2. tests/operators/test_pointwise.py measures some of it again."""


class Function(NamedTuple):
    """A function of one number.

    Attributes:
        apply: of a tensor, and the slope of a leaky ReLU.
        lipschitz: its constant; of a leaky ReLU max(1, |slope|).
        relative: rounding per unit of |x|, in units of roundoff.
        absolute: rounding of every entry besides that, in units of roundoff.
    """

    apply: Callable[[Tensor, float], Tensor]
    lipschitz: float
    relative: float
    absolute: float


def _softplus(x: Tensor, slope: float) -> Tensor:
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


FUNCTIONS = {
    "relu": Function(lambda x, slope: torch.relu(x), 1.0, 0, 0),
    "leaky relu": Function(lambda x, slope: torch.where(x >= 0, x, slope * x), 1.0, 2, 0),
    "abs": Function(lambda x, slope: x.abs(), 1.0, 0, 0),
    # |tanh(x)| <= |x|, and the library is off by so much of the result.
    "tanh": Function(lambda x, slope: torch.tanh(x), 1.0, LIBRARY, 0),
    # 1 / (1 + e), e = exp(-x): 1 + e is off by the error of e, relative to no more than 1 + e, and by one
    # rounding; the quotient, at most 1, by one more.
    "sigmoid": Function(lambda x, slope: torch.sigmoid(x), 0.25, 0, LIBRARY + 8),
    # exp(-|x|) <= 1 is off by LIBRARY u, its log1p, which has slope 1 and is below 1, by as much again; the
    # sum is at most |x| + 1 and rounded once.
    "softplus": Function(_softplus, 1.0, 2, 2 * LIBRARY + 8),
}


@dataclass(frozen=True, eq=False, repr=False)
class Elementwise(Operator):
    """One function on every entry: "relu", "leaky relu", "abs", "tanh", "sigmoid" or "softplus".

    Guarantee: the largest slope of the function, 1/4 for "sigmoid", max(1, |slope|) for "leaky relu", else 1.

    Args:
        function: its name.
        slope: of a leaky ReLU where x < 0; 0 for the others.

    >>> Elementwise("abs").apply(torch.tensor([[-2.0, 3.0]]))
    tensor([[2., 3.]])
    """

    function: str
    slope: float = 0.0

    def __post_init__(self) -> None:
        choose("function", self.function, tuple(FUNCTIONS))
        if not abs(self.slope) < 1e100 or (self.slope != 0 and self.function != "leaky relu"):
            raise ArgumentError(
                f"slope: expected a finite number, and 0 except of a leaky ReLU, got {self.slope}"
            )

    def apply(self, x: Tensor) -> Tensor:
        """The function of every entry."""
        return FUNCTIONS[self.function].apply(x, self.slope)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own."""
        return tuple(input_shape)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """The largest slope."""
        return max(FUNCTIONS[self.function].lipschitz, abs(self.slope))

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Of every entry, relative to it and besides that."""
        function = FUNCTIONS[self.function]
        if not function.relative and not function.absolute:
            return RoundingError(0.0, 0.0)
        entries = sqrt_up(float(torch.Size(input_shape).numel()))
        relative = product_up(function.relative * UNIT, max(1.0, abs(self.slope)))
        return RoundingError(
            relative if function.relative else 0.0,
            sum_up(product_up(function.absolute * UNIT, entries) if function.absolute else 0.0, TINY),
        )
