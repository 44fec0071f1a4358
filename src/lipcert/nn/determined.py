"""Refuses weights that do not determine their orthogonal factor: machines would compute different ones."""

from torch import Tensor, nn

from lipcert.errors import NotProvedError
from lipcert.kernels.orthogonalize import LARGEST_CONDITION, condition

LARGEST_ERROR = 1e-6
"""Orthogonality error in float64 beyond which a Cayley transform is mostly rounding."""


def refuse_undetermined(layer: nn.Module, *weights: Tensor) -> None:
    """Raise for nearly singular weights, whose nearest orthogonal matrix is not unique."""
    for number in map(condition, weights):
        if not number <= LARGEST_CONDITION:
            raise NotProvedError(
                f"{type(layer).__name__} has weights with a condition number of {number:.1g}, which leave "
                f"open what their orthogonal factor is (at most {LARGEST_CONDITION:.0g}); train it again"
            )


def refuse_large_scale(layer: nn.Module, error: float) -> None:
    """Raise for a Cayley transform of matrices so large that even float64 loses its orthogonality.

    Args:
        layer: for its name.
        error: orthogonality error of the layer in float64.
    """
    if not error <= LARGEST_ERROR:
        raise NotProvedError(
            f"the Cayley transform in {type(layer).__name__} has a scale that makes its rounding error "
            f"larger than {LARGEST_ERROR}; train with a smaller scale"
        )
