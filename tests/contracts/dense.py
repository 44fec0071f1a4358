"""The oracle of the contracts: a layer's Jacobian, written out as a matrix in float64."""

import torch
from torch import Tensor, nn

from lipcert.nn.lipschitz import Shape

EPS = torch.finfo(torch.float64).eps


def dense_jacobian(layer: nn.Module, input_shape: Shape, point: Tensor | None = None) -> Tensor:
    """(outputs, inputs), one row per output by its own backward pass, at one point."""
    x = torch.randn(1, *input_shape, dtype=torch.float64) if point is None else point
    jacobian = torch.autograd.functional.jacobian(layer, x)
    return jacobian.detach().reshape(-1, x.numel())


def dense_matrix(layer: nn.Module, input_shape: Shape) -> Tensor:
    """The matrix of an affine layer, one column per input by forward passes alone: a second way."""
    size = torch.Size(input_shape).numel()
    with torch.no_grad():
        columns = layer(torch.eye(size, dtype=torch.float64).reshape(size, *input_shape))
        return (columns - layer(torch.zeros(1, *input_shape, dtype=torch.float64))).reshape(size, -1).T


def worst_singular_value(matrix: Tensor) -> float:
    """Largest |s - 1| over the singular values: 0 for orthonormal rows or columns."""
    return float((torch.linalg.svdvals(matrix) - 1).abs().max())


def rounding(matrix: Tensor) -> float:
    """What float64 arithmetic on operators of this size may add to a singular value: 64 eps per dimension."""
    return 64 * EPS * max(matrix.shape)
