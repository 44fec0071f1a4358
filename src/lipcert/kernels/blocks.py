"""Gram matrices and inverses by products of blocks, which run at several times the rate of LAPACK."""

import torch
from torch import Tensor

LEAF = 128
"""Sizes up to which LAPACK is as fast."""


def gram(matrix: Tensor) -> Tensor:
    """W W^H of (..., n, c): blocks above the diagonal are copies of those below.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]])).tolist()
    [[5.0, 2.0], [2.0, 1.0]]
    """
    size = matrix.shape[-2]
    if size <= 2 * LEAF:
        return matrix @ matrix.mH
    half = size // 2
    upper, lower = matrix[..., :half, :], matrix[..., half:, :]
    result = matrix.new_empty(*matrix.shape[:-1], size)
    result[..., :half, :half], result[..., half:, half:] = gram(upper), gram(lower)
    mixed = lower @ upper.mH
    result[..., half:, :half], result[..., :half, half:] = mixed, mixed.mH
    return result


def accretive_inverse(matrix: Tensor) -> Tensor:
    r"""Inverse of (..., n, n) with a Hermitian part of at least I, by elimination of blocks.

        [A B; C D]^-1 = [A^-1 + X S^-1 Y, -X S^-1; -S^-1 Y, S^-1],   X = A^-1 B, Y = C A^-1, S = D - C X.

    Nothing needs a pivot: <x, S x> = <y, M y> for y = (-X x, x), so that the Hermitian part of S is at
    least I as well, and all inverses have norms of at most 1.
    """
    size = matrix.shape[-1]
    if size <= LEAF:
        # There always is an inverse, so that nobody has to wait for a check.
        whole: Tensor = torch.linalg.inv_ex(matrix).inverse
        return whole
    half = size // 2
    above, below = matrix[..., :half, :], matrix[..., half:, :]
    first, c = accretive_inverse(above[..., :half]), below[..., :half]
    x, y = first @ above[..., half:], c @ first
    result = torch.empty_like(matrix)
    result[..., half:, half:] = second = accretive_inverse(below[..., half:] - c @ x)
    x_second = x @ second
    result[..., :half, half:], result[..., half:, :half] = -x_second, -(second @ y)
    result[..., :half, :half] = first + x_second @ y
    return result


def inverse_cholesky(positive: Tensor) -> Tensor:
    r"""L^-1 for G = L L^H of (..., n, n), Hermitian and well inside the positive ones.

    [A C^H; C D] gives [K 0; -M X K, M],    K of A, X = C K^H, M of D - X X^H.
    """
    size = positive.shape[-1]
    if size <= LEAF // 2:
        factor = torch.linalg.cholesky_ex(positive).L
        identity = torch.eye(size, dtype=factor.dtype, device=factor.device).expand_as(factor)
        whole: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
        return whole
    half = size // 2
    first = inverse_cholesky(positive[..., :half, :half])
    x = positive[..., half:, :half] @ first.mH
    second = inverse_cholesky(positive[..., half:, half:] - x @ x.mH)
    result = torch.zeros_like(positive)
    result[..., :half, :half], result[..., half:, half:] = first, second
    result[..., half:, :half] = -(second @ (x @ first))
    return result


def times_lower_adjoint(matrix: Tensor, lower: Tensor) -> Tensor:
    """B L^H of (..., m, n) and a lower triangle (..., n, n): blocks of columns leave out what is zero."""
    ends = range(LEAF, lower.shape[-1] + LEAF, LEAF)
    return torch.cat([matrix[..., :end] @ lower[..., end - LEAF : end, :end].mH for end in ends], -1)
