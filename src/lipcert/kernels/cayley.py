"""Cayley transform: from any matrix (or any matrix per frequency) to one with orthonormal rows or columns."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.blocks import accretive_inverse, gram
from lipcert.kernels.functions import OfWeights, rows_together
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
        rest = matrices[..., size:, :]
        inverse = _inverse(matrices)
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


def cayley_product(x: Tensor, matrix: Tensor) -> Tensor:
    r"""Rows x times the transpose of `cayley_transform(matrix)`, which is not formed.

    With W^T = [U; V] and x = [x_1, x_2], and M = I + A, N = M^-1 as above,

        y = 2 z - x_1,   z = (x_1 - x_2 V) N.

    With h = 2 g N^T for the gradient g of y, that of M is -z^T h, and those of W and x are products with as
    many rows as x has. For an eighth of the rows of W it is a quarter of the work of the matrix.

    Args:
        x: (p, in), real.
        matrix: W, (out, in), out <= in, real.
    """
    with without_autocast(matrix):
        result: Tensor = _CayleyProduct.apply(x, matrix)[0]  # type: ignore[no-untyped-call]
        return result


def _inverse(tall: Tensor) -> Tensor:
    """N of W = [U; V]."""
    size = tall.shape[-1]
    square, rest = tall[..., :size, :], tall[..., size:, :]
    total = square - square.mH
    # Training is in single precision, where blocks are several times as fast; proofs keep to LAPACK.
    single = torch.finfo(total.dtype).bits <= 32
    if rest.shape[-2]:
        total = total + (gram(rest.mH) if single else rest.mH @ rest)
    total.diagonal(dim1=-2, dim2=-1).add_(1)
    # There always is an inverse, so that nobody has to wait for a check.
    return accretive_inverse(total) if single else torch.linalg.inv_ex(total).inverse


class _CayleyProduct(torch.autograd.Function):
    """The product with x, with N and z."""

    @staticmethod
    def forward(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = len(matrix)
        inverse = _inverse(matrix.mT)
        first, second, rest = x[:, :size].to(matrix.dtype), x[:, size:].to(matrix.dtype), matrix[:, size:]
        z = torch.addmm(first, second, rest.mT, alpha=-1) @ inverse
        return torch.sub(2 * z, first).to(x.dtype), inverse, z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        x, matrix, inverse, z = ctx.saved_tensors
        size = len(matrix)
        with without_autocast(grad):
            grad, rest = grad.to(matrix.dtype), matrix[:, size:]
            h = (2 * grad) @ inverse.mT
            outer = h.mT @ z
            grad_x, grad_matrix = x.new_empty(x.shape), torch.empty_like(matrix)
            grad_x[:, :size] = h - grad
            grad_matrix[:, :size] = outer.mT - outer
            second = -(h @ rest)
            grad_x[:, size:] = second
            # The gradient of V is V (G + G^T) - x_2^T h with G = -z^T h, and V h^T = -second^T.
            mixed = torch.addmm(x[:, size:].to(matrix.dtype), z, rest)
            grad_matrix[:, size:] = torch.addmm(z.mT @ second, h.mT, mixed, alpha=-1)
        return grad_x, grad_matrix

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], x: Tensor, matrix: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        """A batch of batches is a larger batch."""
        return rows_together(_CayleyProduct, info, in_dims, x, matrix)
