"""From any matrix to one with orthonormal rows or columns: polar factor, Householder basis, rotation."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.constants import constant
from lipcert.kernels.functions import OfWeights
from lipcert.kernels.precision import without_autocast

WELL_CONDITIONED = 1e-3
"""Ratio of extreme eigenvalues of the Gram matrix down to which `polar_factor` trusts that matrix."""


LARGEST_CONDITION = 1e4
"""Up to this ratio of singular values two float64 implementations agree on a factor to some 1e-12."""


def condition(matrices: Tensor) -> float:
    """Largest ratio of extreme singular values in (..., m, n), by the Gram matrices: good up to some 1e7."""
    if not matrices.numel():
        return 1.0
    tall = matrices.detach().cpu()
    tall = tall.to(torch.complex128 if tall.is_complex() else torch.float64)
    tall = tall.mT if tall.shape[-2] < tall.shape[-1] else tall
    tall = tall / tall.abs().amax((-2, -1), keepdim=True)
    if not bool(tall.isfinite().all()):
        return math.nan
    squares = torch.linalg.eigvalsh(tall.mH @ tall)
    return float((squares[..., -1] / squares[..., 0].clamp_min(0)).max().sqrt())


def polar_factor(matrix: Tensor, *, any_condition: bool = True) -> Tensor:
    r"""The nearest matrix with orthonormal columns (rows, if it is wide): the limit of Bjorck's iteration.

        Q = A (A^H A)^(-1/2),    the fixed point of  Q <- Q (3 I - Q^H Q) / 2.

    Bjorck's iteration from A / s with s >= ||A|| gains a factor of 1.5 per step on small singular values, so
    no fixed number of steps is enough for every A, and autograd through them triples the cost. This takes the
    eigenvalues of the Gram matrix instead, then one step of Bjorck, which squares the error; matrices of
    which the Gram matrix would lose the small singular values go through a singular value decomposition. The
    gradient is exact (a Sylvester equation, diagonal in the same eigenvectors).

    Guarantee: orthonormal to a small multiple of the dtype's epsilon for every finite A, also a singular one
    (for which the nearest matrix is not unique and the gradient is cut off).

    Args:
        matrix: (..., m, n), real or complex, in single or double precision.
        any_condition: choose between the two ways by the matrix's own eigenvalues, for which an accelerator
            has to be waited for. Training does without: the guarantee then holds up to a condition number of
            some 30 in float32, to 1e-4 up to 100, and beyond that small singular values come out below 1.

    >>> polar_factor(torch.tensor([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])).round(decimals=5).tolist()
    [[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]]

    References: A. Bjorck and C. Bowie, SIAM J. Numer. Anal. 8, 1971; N. J. Higham, Functions of Matrices,
    2008, chapter 8; as used for convolutions by Q. Li et al., NeurIPS 2019.
    """
    with without_autocast(matrix):
        wide = matrix.shape[-2] < matrix.shape[-1]
        tall = matrix.mT if wide else matrix
        factor: Tensor = _PolarFactor.apply(tall, any_condition)[0]  # type: ignore[no-untyped-call]
        return factor.mT.contiguous() if wide else factor


class _PolarFactor(OfWeights):
    """Polar factor of tall matrices, with V and s of the decomposition A^H A = V diag(s)^2 V^H."""

    @staticmethod
    def forward(matrix: Tensor, any_condition: bool) -> tuple[Tensor, Tensor, Tensor]:
        factor: Tensor
        # A power of two near the largest entry: exact, and no square under- or overflows.
        largest = matrix.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(matrix.dtype).tiny)
        scale = torch.exp2(torch.floor(torch.log2(largest)))
        scaled = matrix / scale
        squares, vectors = torch.linalg.eigh(scaled.mH @ scaled)
        # Rounding moves the squares by about this much: smaller ones could make a factor larger than 1.
        floor = 16 * torch.finfo(squares.dtype).eps * squares[..., -1:]
        singular = torch.maximum(squares, floor.clamp_min(torch.finfo(squares.dtype).tiny)).sqrt()
        factor = scaled @ ((vectors / singular.unsqueeze(-2)) @ vectors.mH)
        lost = ~(squares[..., 0] > WELL_CONDITIONED * squares[..., -1])
        if any_condition and bool(lost.any()):
            left, singular[lost], right = torch.linalg.svd(scaled[lost], full_matrices=False)
            vectors[lost], factor[lost] = right.mH, left @ right
        defect = factor.mH @ factor
        defect.diagonal(dim1=-2, dim2=-1).sub_(1)
        factor = factor - factor @ (defect / 2)
        return factor, vectors, singular * scale.squeeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None]:
        # With A = Q H: dQ = Q X + (I - Q Q^H) dA H^-1, where the skew X solves H X + X H = Q^H dA - dA^H Q.
        # The nuclear norm has Q as its gradient, so that this is a Hessian, which is its own adjoint.
        factor, vectors, singular = ctx.saved_tensors
        with without_autocast(grad):
            floor = torch.finfo(singular.dtype).eps * singular.amax(-1)[..., None, None]
            values = torch.maximum(singular.unsqueeze(-2), floor)
            inner = factor.mH @ grad
            skew = vectors.mH @ (inner - inner.mH) @ vectors
            skew = skew / torch.maximum(singular.unsqueeze(-1) + singular.unsqueeze(-2), floor)
            inverse = (vectors / values) @ vectors.mH
            tangent = vectors @ skew @ vectors.mH - inner @ inverse
            result: Tensor = grad @ inverse + factor @ tangent
        return result, None


def orthonormal_basis(matrix: Tensor) -> Tensor:
    """Orthonormal basis of the span of the columns, by Householder reflections (the Q of a QR decomposition).

    Guarantee: orthonormal to a small multiple of the dtype's epsilon for every finite matrix, also a singular
    one.

    Args:
        matrix: (..., m, n) with m >= n, real or complex, in single or double precision.

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
        vectors = start_vectors(size, min(block, size), dtype, skew.device)
        fixed = skew / root_mean_square.clamp_min(torch.finfo(dtype).tiny)
        for _ in range(steps):
            vectors = torch.linalg.qr(fixed @ vectors).Q
        left, _, right = torch.linalg.svd(fixed @ vectors, full_matrices=False)
        left, right = left[:, 0], vectors @ right[0]
    estimate = left @ (skew @ right)
    return torch.maximum(estimate, root_mean_square).clamp_min(torch.finfo(dtype).tiny)


@constant(kept=16)
def start_vectors(size: int, block: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The vectors that every block power iteration starts from."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    start = torch.randn(size, block, dtype=torch.float64, device="cpu", generator=generator)
    return start.to(device, dtype)
