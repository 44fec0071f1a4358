"""An operator at its place in a network, with what is proved of it there."""

import math
from dataclasses import dataclass

from torch import Tensor

from lipcert.errors import ArgumentError, NotProvedError
from lipcert.operators.linear import Matrix
from lipcert.operators.operator import LARGEST_MAP, Operator, RoundingError, Shape
from lipcert.operators.tree import Concatenation, Sequence, WeightedSum


@dataclass(frozen=True, eq=False, repr=False)
class Proved(Operator):
    """One operator with its proved constants as numbers: nothing is proved when it runs.

    Args:
        operator: no combinator.
        path: where it stands in the network, such as "body.stage1.conv1".
        layer: class of the layer that it came from, such as "SOC".
        input_shape: the one shape that the constants hold for.
        lipschitz: proved Lipschitz constant.
        relative, absolute: proved rounding error in float64.
    """

    operator: Operator
    path: str
    layer: str
    input_shape: Shape
    lipschitz: float
    relative: float
    absolute: float

    def __post_init__(self) -> None:
        if isinstance(self.operator, (Sequence, WeightedSum, Concatenation, Proved)):
            raise ArgumentError(f"operator: expected no combinator, got {type(self.operator).__name__}")
        for name in ("lipschitz", "relative", "absolute"):
            if not 0 <= getattr(self, name) < math.inf:
                raise NotProvedError(
                    f"{self.layer} has no finite {name} bound of at least 0, got {getattr(self, name)}"
                )

    @classmethod
    def of(cls, operator: Operator, path: str, layer: str, input_shape: Shape) -> "Proved":
        """Prove what has to be known of an operator for inputs of one shape."""
        lipschitz = float(operator.lipschitz_bound(input_shape))
        error = operator.rounding_error(input_shape)
        return cls(operator, path, layer, input_shape, lipschitz, error.relative, error.absolute)

    def apply(self, x: Tensor) -> Tensor:
        """What the operator computes."""
        return self.operator.apply(x)

    def output_shape(self, input_shape: Shape) -> Shape:
        """That of the operator; raises for another shape than the proof's."""
        if tuple(input_shape) != self.input_shape:
            raise self._refuse(f"shape {self.input_shape}, which it was proved for", input_shape)
        made = self.operator.output_shape(input_shape)
        if math.prod(made) > LARGEST_MAP:
            raise ArgumentError(f"{self.layer} makes {made}, more than {LARGEST_MAP:,} numbers")
        return made

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """The stored constant."""
        return self.lipschitz

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """The stored error."""
        return RoundingError(self.relative, self.absolute)

    def channels_read(self, input_shape: Shape) -> range:
        """Those of the operator."""
        return self.operator.channels_read(input_shape)

    def pair_bounds(self, input_shape: Shape) -> Tensor:
        """Those of a matrix are cheap; every other operator has them from its constant."""
        if isinstance(self.operator, Matrix):
            return self.operator.pair_bounds(input_shape)
        return super().pair_bounds(input_shape)

    def feature_bound(self, input_shape: Shape) -> float:
        """1 for a matrix, whose input are the features."""
        return 1.0 if isinstance(self.operator, Matrix) else self.lipschitz
