"""The oracle of the contracts: the Jacobian of a layer or an operator, written out as a matrix in float64."""

from collections.abc import Callable

import torch
from torch import Tensor

from lipcert.nn.checks import EPS, allowed_difference, dense_jacobian
from lipcert.operators import Shape

__all__ = ["allowed_difference", "dense_jacobian", "dense_matrix", "rounding", "worst_singular_value"]

Function = Callable[[Tensor], Tensor]
"""A layer, or the `apply` of an operator."""


def dense_matrix(function: Function, input_shape: Shape, dtype: torch.dtype = torch.float64) -> Tensor:
    """The matrix of an affine function, one column per input by forward passes alone: a second way."""
    size = torch.Size(input_shape).numel()
    with torch.no_grad():
        columns = function(torch.eye(size, dtype=dtype).reshape(size, *input_shape))
        return (columns - function(torch.zeros(1, *input_shape, dtype=dtype))).reshape(size, -1).T


def worst_singular_value(matrix: Tensor) -> float:
    """Largest |s - 1| over the singular values: 0 for orthonormal rows or columns."""
    return float((torch.linalg.svdvals(matrix) - 1).abs().max())


def rounding(matrix: Tensor) -> float:
    """What float64 arithmetic on operators of this size may add to a singular value: 64 eps per dimension."""
    return 64 * EPS * max(matrix.shape)
