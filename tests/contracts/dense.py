"""The oracle of the contracts: the Jacobian of a layer or an operator, written out as a matrix in float64."""

from collections.abc import Callable

import torch
from torch import Tensor

from lipcert.operators import Operator, Shape

EPS = torch.finfo(torch.float64).eps
Function = Callable[[Tensor], Tensor]
"""A layer, or the `apply` of an operator."""


def dense_jacobian(function: Function, input_shape: Shape, point: Tensor | None = None) -> Tensor:
    """(outputs, inputs), one row per output by its own backward pass, at one point."""
    x = torch.randn(1, *input_shape, dtype=torch.float64) if point is None else point
    jacobian = torch.autograd.functional.jacobian(function, x)
    return jacobian.detach().reshape(-1, x.numel())


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


def allowed(operator: Operator, shape: Shape, x: Tensor) -> Tensor:
    """How far two computations of the operator on x may be apart, in l2, per sample.

    Each of the two errs by at most the operator's rounding error, which is linear in eps, so that float32 has
    2^29 times that of float64. Numbers that follow from the weights by a few roundings in another order are
    as good as another order of summation, which that error covers: twice again.
    """
    error = operator.to(dtype=torch.float64).rounding_error(shape)
    norms = x.double().flatten(1).norm(dim=1)
    return 4 * torch.finfo(x.dtype).eps / EPS * (error.relative * norms + error.absolute)
