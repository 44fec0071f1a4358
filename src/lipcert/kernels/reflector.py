"""Block reflectors: the mirror image of a space at the complement of a span."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.functions import OfWeights
from lipcert.kernels.orthogonalize import orthonormal_basis
from lipcert.kernels.precision import without_autocast


def block_reflector(vectors: Tensor, rows: int, columns: int) -> Tensor:
    r"""The first rows and columns of I - 2 V (V^H V)^-1 V^H, for each matrix V of a stack.

    V (V^H V)^-1 V^H = U U^H projects on the span of the columns of V, with U the Q of a Householder QR, so
    that no inverse is taken and any V makes an orthogonal matrix: one that is unitary, Hermitian and its own
    inverse. The gradient is exact; with G the gradient of the result it is

    .. math:: -2 (I - U U^H) (G + G^H) V (V^H V)^{-1}, \qquad V (V^H V)^{-1} = U R^{-H}.

    Guarantee: orthonormal rows or columns, to a small multiple of the dtype's epsilon, for every finite V and
    max(rows, columns) = c. A singular V leaves its span open, and the gradient is cut off.

    Args:
        vectors: V, (..., c, r) with r <= c, real or complex, in single or double precision.
        rows: how many rows to keep.
        columns: how many columns to keep.

    >>> block_reflector(torch.tensor([[3.0], [0.0]]), 2, 2).tolist()
    [[-1.0, 0.0], [0.0, 1.0]]

    Reference: R. Schreiber and B. Parlett, Block reflectors: theory and computation, SIAM J. Numer. Anal. 25,
    1988.
    """
    with without_autocast(vectors):
        result: Tensor = _BlockReflector.apply(vectors, rows, columns)[0]  # type: ignore[no-untyped-call]
        return result


class _BlockReflector(OfWeights):
    """The reflector, with the orthonormal basis U that it is made of."""

    @staticmethod
    def forward(vectors: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        basis = orthonormal_basis(vectors)
        result = basis[..., :rows, :] @ (-2 * basis[..., :columns, :].mH)
        result.diagonal(dim1=-2, dim2=-1).add_(1)
        return result, basis

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        vectors, basis = ctx.saved_tensors
        rows, columns = grad.shape[-2:]
        with without_autocast(grad):
            triangle = basis.mH @ vectors  # R, below whose diagonal there is only rounding
            size = triangle.diagonal(dim1=-2, dim2=-1).abs()
            floor = torch.finfo(size.dtype).eps * size.amax(-1, keepdim=True)
            triangle.diagonal(dim1=-2, dim2=-1).add_(torch.where(size > floor, 0.0, 1.0))
            inverse = torch.linalg.solve_triangular(triangle.mH, basis, upper=False, left=False)
            image = torch.zeros_like(basis)
            image[..., :rows, :] = grad @ inverse[..., :columns, :]
            image[..., :columns, :] += grad.mH @ inverse[..., :rows, :]
            return 2 * (basis @ (basis.mH @ image) - image), None, None
