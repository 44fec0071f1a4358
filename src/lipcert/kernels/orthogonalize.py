"""From any matrix to one with orthonormal rows or columns: polar factor, Householder basis, rotation."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.precision import without_autocast

WELL_CONDITIONED = 1e-3
"""Ratio of extreme eigenvalues of the Gram matrix down to which `polar_factor` trusts that matrix."""


LARGEST_CONDITION = 1e4
"""Up to this ratio of singular values two float64 implementations agree on a factor to some 1e-12."""


def condition(matrices: Tensor) -> float:
    """Largest ratio of extreme singular values in (..., m, n), by the Gram matrices: good up to some 1e7."""
    if not matrices.numel():
        return 1.0
    tall = matrices.detach().double().cpu()
    tall = tall.mT if tall.shape[-2] < tall.shape[-1] else tall
    tall = tall / tall.abs().amax((-2, -1), keepdim=True)
    squares = torch.linalg.eigvalsh(tall.mT @ tall) if bool(tall.isfinite().all()) else tall.new_zeros(1)
    return float((squares[..., -1] / squares[..., 0].clamp_min(0)).max().sqrt())


def polar_factor(matrix: Tensor) -> Tensor:
    r"""The nearest matrix with orthonormal columns (rows, if it is wide): the limit of Bjorck's iteration.

        Q = A (A^T A)^(-1/2),    the fixed point of  Q <- Q (3 I - Q^T Q) / 2.

    Bjorck's iteration from A / s with s >= ||A|| gains a factor of 1.5 per step on small singular values, so
    no fixed number of steps is enough for every A, and autograd through them triples the cost. This takes the
    eigenvalues of the Gram matrix instead, then one step of Bjorck, which squares the error; where the Gram
    matrix would lose the small singular values it takes a singular value decomposition. The gradient is exact
    (a Sylvester equation, diagonal in the same eigenvectors).

    Guarantee: orthonormal to a small multiple of the dtype's epsilon for every finite A, also a singular one
    (for which the nearest matrix is not unique and the gradient is cut off).

    Args:
        matrix: (m, n), float32 or float64.

    >>> polar_factor(torch.tensor([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])).round(decimals=5).tolist()
    [[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]]

    References: A. Bjorck and C. Bowie, SIAM J. Numer. Anal. 8, 1971; N. J. Higham, Functions of Matrices,
    2008, chapter 8; as used for convolutions by Q. Li et al., NeurIPS 2019.
    """
    with without_autocast(matrix):
        wide = matrix.shape[0] < matrix.shape[1]
        factor: Tensor = _PolarFactor.apply(matrix.T if wide else matrix)  # type: ignore[no-untyped-call]
        return factor.T.contiguous() if wide else factor


class _PolarFactor(torch.autograd.Function):
    """Polar factor of a tall matrix; saves it with the decomposition A^T A = V diag(s)^2 V^T."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        # A power of two near the largest entry: exact, and no square under- or overflows.
        scale = torch.exp2(
            torch.floor(torch.log2(matrix.abs().amax().clamp_min(torch.finfo(matrix.dtype).tiny)))
        )
        scaled = matrix / scale
        squares, vectors = torch.linalg.eigh(scaled.T @ scaled)
        if squares[0] > WELL_CONDITIONED * squares[-1]:
            singular = squares.sqrt()
            factor = scaled @ ((vectors / singular) @ vectors.T)
        else:
            left, singular, right = torch.linalg.svd(scaled, full_matrices=False)
            vectors = right.T
            factor = left @ right
        defect = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device) - factor.T @ factor
        factor = torch.addmm(factor, factor, defect, alpha=0.5)
        ctx.save_for_backward(factor, vectors, singular * scale)
        return factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # With A = Q H: dQ = Q X + (I - Q Q^T) dA H^-1, where the skew X solves H X + X H = Q^T dA - dA^T Q.
        # Both pieces are their own adjoints up to the order of factors.
        factor, vectors, singular = ctx.saved_tensors
        with without_autocast(grad):
            floor = torch.finfo(singular.dtype).eps * singular.max()
            inner = factor.T @ grad
            skew = vectors.T @ (inner - inner.T) @ vectors
            skew = skew / (singular[:, None] + singular).clamp_min(floor)
            inverse = (vectors / singular.clamp_min(floor)) @ vectors.T
            tangent = vectors @ skew @ vectors.T - inner @ inverse
            return torch.addmm(grad @ inverse, factor, tangent)


def orthonormal_basis(matrix: Tensor) -> Tensor:
    """Orthonormal basis of the span of the columns, by Householder reflections (the Q of a QR decomposition).

    Guarantee: orthonormal to a small multiple of the dtype's epsilon for every finite matrix, also a singular
    one.

    Args:
        matrix: (..., m, n) with m >= n, float32 or float64.

    >>> orthonormal_basis(torch.tensor([[0.0], [-2.0]])).abs().tolist()
    [[0.0], [1.0]]
    """
    with without_autocast(matrix):
        basis: Tensor = torch.linalg.qr(matrix).Q
        return basis


def rotation(weight: Tensor, rows: int, columns: int) -> Tensor:
    r"""The first rows and columns of exp(A / ||A||), A = (W - W^T) / 2: a slice of an orthogonal matrix.

    The exponential is a Taylor polynomial (degree 14 in float32, 20 in float64) and only the slice is
    computed. The norm is estimated by `skew_norm_estimate`: an estimate from below by a third still leaves a
    remainder below the dtype's epsilon (1.5^15 / 15! = 3e-10, 1.5^21 / 21! = 1e-16), and the exponential of
    any skew matrix is orthogonal, so orthogonality does not rest on it.

    Args:
        weight: (c, c), float32 or float64.
        rows: how many rows to keep.
        columns: how many columns to keep; max(rows, columns) = c, so that rows or columns stay complete.

    >>> rotation(torch.tensor([[0.0, -1.0], [1.0, 0.0]]), 2, 2)  # by one radian
    tensor([[ 0.5403, -0.8415],
            [ 0.8415,  0.5403]])

    Reference: SOC with kernel size 1; S. Singla and S. Feizi, ICML 2021.
    """
    with without_autocast(weight):
        skew = (weight - weight.T) / 2
        skew = skew / skew_norm_estimate(skew)
        # exp(A)^T = exp(-A): columns are the rows of the opposite rotation.
        keep, skew = (rows, skew) if columns == len(weight) else (columns, -skew)
        start = torch.eye(keep, len(weight), dtype=weight.dtype, device=weight.device)
        result = start
        for power in range(20 if weight.dtype == torch.float64 else 14, 0, -1):
            result = torch.addmm(start, result, skew, alpha=1 / power)
        return result if columns == len(weight) else result.T.contiguous()


def skew_norm_estimate(skew: Tensor, *, block: int = 8, steps: int = 12) -> Tensor:
    """Largest singular value of a skew matrix, from below, by block power iteration from one fixed start.

    Depends on the matrix alone (no state), and is differentiable with the singular vectors held fixed. Never
    below the root mean square of the singular values, and positive for the zero matrix.

    Args:
        skew: (c, c), antisymmetric.
        block: vectors iterated together.
        steps: products with the matrix.
    """
    size, dtype = len(skew), skew.dtype
    root_mean_square: Tensor = torch.linalg.matrix_norm(skew) / math.sqrt(size)
    if size < 2:
        return root_mean_square.clamp_min(1.0)
    with torch.no_grad():
        generator = torch.Generator(device="cpu").manual_seed(0)
        start = torch.randn(size, min(block, size), dtype=torch.float64, device="cpu", generator=generator)
        vectors = start.to(skew)
        fixed = skew / root_mean_square.clamp_min(torch.finfo(dtype).tiny)
        for _ in range(steps):
            vectors = torch.linalg.qr(fixed @ vectors).Q
        left, _, right = torch.linalg.svd(fixed @ vectors, full_matrices=False)
        left, right = left[:, 0], vectors @ right[0]
    estimate = left @ (skew @ right)
    return torch.maximum(estimate, root_mean_square).clamp_min(torch.finfo(dtype).tiny)
