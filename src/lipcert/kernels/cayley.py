"""Cayley transform: from any matrix (or any matrix per frequency) to one with orthonormal rows or columns."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.functions import OfWeights
from lipcert.kernels.precision import without_autocast


def cayley_transform(matrices: Tensor) -> Tensor:
    r"""Orthonormal columns (rows, if wide) from each matrix of a stack, real or complex.

    A tall W = [U; V] with square U gives A = U - U^H + V^H V and

        Q = [(I + A)^-1 (I - A); -2 V (I + A)^-1] = [2 N - I; -2 V N],    N = (I + A)^-1,

    and Q^H Q = I because A + A^H = 2 V^H V. The Hermitian part of I + A is at least I, so ||N|| <= 1: the
    inverse always exists, and its condition number is at most 1 + ||A||. A wide W goes through its transpose.
    Only W and N are kept for the gradient.

    Args:
        matrices: (..., m, n), real or complex.

    >>> cayley_transform(torch.tensor([[0.0, 0.5], [-0.5, 0.0]])).tolist()
    [[0.0, -1.0], [1.0, 0.0]]

    Reference: A. Trockman and J. Z. Kolter, Orthogonalizing convolutional layers with the Cayley transform,
    ICLR 2021, section 4.
    """
    with without_autocast(matrices):
        wide = matrices.shape[-2] < matrices.shape[-1]
        tall = matrices.mT if wide else matrices
        result: Tensor = _CayleyTransform.apply(tall)[0]  # type: ignore[no-untyped-call]
        return result.mT.contiguous() if wide else result


class _CayleyTransform(OfWeights):
    """The transform of tall matrices, with N."""

    @staticmethod
    def forward(matrices: Tensor) -> tuple[Tensor, Tensor]:
        size = matrices.shape[-1]
        square, rest = matrices[..., :size, :], matrices[..., size:, :]
        total = square - square.mH
        if rest.shape[-2]:
            total = total + rest.mH @ rest
        total.diagonal(dim1=-2, dim2=-1).add_(1)
        # There always is an inverse, so that nobody has to wait for a check.
        inverse = torch.linalg.inv_ex(total).inverse
        result = torch.empty_like(matrices)
        torch.mul(inverse, 2, out=result[..., :size, :])
        result[..., :size, :].diagonal(dim1=-2, dim2=-1).sub_(1)
        if rest.shape[-2]:
            result[..., size:, :] = -2 * rest @ inverse
        return result, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
        # dN = -N dA N with dA = dU - dU^H + dV^H V + V^H dV; each term's adjoint in turn.
        matrices, inverse = ctx.saved_tensors
        size = matrices.shape[-1]
        rest, adjoint = matrices[..., size:, :], inverse.mH
        grad_square, grad_rest = 2 * grad[..., :size, :], -2 * grad[..., size:, :]
        with without_autocast(grad):
            if rest.shape[-2]:
                grad_square = grad_square + rest.mH @ grad_rest
            outer = -(adjoint @ grad_square @ adjoint)
            result = torch.empty_like(matrices)
            result[..., :size, :] = outer - outer.mH
            if rest.shape[-2]:
                result[..., size:, :] = grad_rest @ adjoint + rest @ (outer + outer.mH)
        return result
