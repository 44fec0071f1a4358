"""Approximate orthogonalisation of matrices by products alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lipcert.errors import ArgumentError

COEFFICIENTS = (
    (5.9258, -14.6909, 10.0348),
    (3.8644, -4.0744, 1.1836),
    (3.8644, -4.0744, 1.1836),
    (2.8292, -2.4551, 0.6644),
)
"""Of x, x^3 and x^5 in each iteration, from `tools/make_muon.py`: each is nearest to 1 on what those before
it made of [SMALLEST, 1], but for the lowest 8% of that: else a value in between would be sent so near 0 that
bfloat16 could turn it around."""

BAND = (0.745, 1.255)
"""Where the iterations put every singular value that is at least `SMALLEST` of the bound they start from."""

SMALLEST = 3.3e-3

WIDE = 2
"""Columns per row from which it takes fewer products to do several iterations on the Gram matrix.

With r columns per row of an m x r m matrix two plain iterations are 4 r + 2 products of m x m matrices, two
on the Gram matrix 2 r + 5; four are 8 r + 4 and 2 r + 13. Every iteration that follows on a Gram matrix
multiplies its rounding error by the square of the slope at 0. Float32 can spare that three times, bfloat16
once.
"""

TOGETHER = {torch.float64: 4, torch.float32: 4}
"""Iterations on one Gram matrix, by dtype; two in others."""

ALONE = 64
"""Rows from which a CPU takes the matrices of a batch one by one: its batched products are slower then."""

STRIP, STRIPS = 128, 6
"""Rows of a large symmetric product that are computed at once on a CPU, or strips at most; what is left of
them is mirrored."""


def orthogonalize(matrices: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    r"""Move all singular values of a matrix near 1 by Newton-Schulz iterations.

    .. math:: X \leftarrow a_k X + b_k X X^T X + c_k (X X^T)^2 X, \qquad
        X_0 = M / \|(M M^T)^2\|_F^{1/4}

    With M = U S V^T the result is U p(S / t) V^T for an odd polynomial p and t the root in X_0: the 8-norm of
    the singular values, which is at least the largest of them and much closer to it than ||M||_F where many
    are alike. It takes no product of its own, for the first iteration needs the same. The iterations do not
    converge: they lift small singular values quickly, and those above `SMALLEST` times t end inside `BAND`.
    That is all Muon needs.

    The Gram matrix is that of the shorter side. For matrices at least `WIDE` times as wide as high several
    iterations run on the Gram matrix G = X X^T alone: all iterates are polynomials in G_0 times X_0, so X
    takes part in the first and the last product only.

    Args:
        matrices: (..., m, n); a matrix of zeros stays zero.
        dtype: of the products; None is the dtype of `matrices`.

    Returns:
        the same shape and dtype as `matrices`.

    >>> orthogonalize(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).round(decimals=2)
    tensor([[0.7800, 0.0000],
            [0.0000, 1.1000]])

    References: K. Jordan et al., Muon, 2024, with one polynomial in all iterations; N. Amsel, D. Persson, C.
    Musco and R. Gower, The Polar Express, 2025, with the best one for each.
    """
    if matrices.dim() < 2 or not matrices.is_floating_point():
        raise ArgumentError(
            "matrices: expected floating point matrices (..., m, n), got "
            f"{matrices.dtype} of shape {tuple(matrices.shape)}"
        )
    norms = torch.linalg.matrix_norm(matrices, keepdim=True)
    # A power of two, so that nothing is rounded, and nothing over- or underflows where it matters.
    scale = torch.exp2(-torch.log2(norms.clamp_min(torch.finfo(matrices.dtype).tiny)).ceil())
    x = matrices * scale if dtype in (None, matrices.dtype) else matrices.to(dtype).mul_(scale.to(dtype))
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    rows, columns = x.shape[-2:]
    if x.dim() > 2 and x.device.type == "cpu" and rows >= ALONE and x.numel():
        x = torch.stack([_iterate(matrix) for matrix in x.reshape(-1, rows, columns)]).view(x.shape)
    else:
        x = _iterate(x)
    return (x.mT if is_tall else x).to(matrices.dtype)


def _iterate(x: Tensor) -> Tensor:
    """All iterations, on matrices (..., m, n) with m <= n of norm 1 or zero."""
    rows, columns = x.shape[-2:]
    together = TOGETHER.get(x.dtype, 2) if columns >= WIDE * rows else 1
    # An odd polynomial of a skew matrix is skew.
    is_skew = _pays(x) and rows == columns and torch.equal(x, -x.mT)
    for start in range(0, len(COEFFICIENTS), together):
        factor = _factor(x, COEFFICIENTS[start : start + together], is_first=start == 0)
        x = _product(factor, x, sign=-1) if is_skew else factor @ x
    return x


def _factor(x: Tensor, coefficients: Sequence[tuple[float, float, float]], *, is_first: bool) -> Tensor:
    """The symmetric matrix by which these iterations multiply X: X <- M X makes G <- M G M, and M = a + b G +
    c G^2 commutes with G.
    """
    gram = _product(x, x.mT, sign=1)
    total: Tensor | None = None
    for k, (a, b, c) in enumerate(coefficients):
        square = _product(gram, gram, sign=1)
        scale: Tensor | None = None
        if is_first and k == 0:
            wide = torch.promote_types(x.dtype, torch.float32)
            fourth = torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True, dtype=wide)
            scale = fourth.clamp_min(torch.finfo(wide).tiny) ** -0.25
            gram.mul_(scale.square().to(x.dtype))
            square.mul_(scale.square().square().to(x.dtype))
        factor = square.mul_(c).add_(gram, alpha=b)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        if k + 1 < len(coefficients):
            gram = _product(factor, _product(gram, factor, sign=1), sign=1)
        if scale is not None:
            factor = factor * scale.to(x.dtype)
        total = factor if total is None else _product(factor, total, sign=1)
    assert total is not None
    return total


def _pays(x: Tensor) -> bool:
    """Whether half of a symmetric product is worth several smaller ones."""
    return x.device.type == "cpu" and x.shape[-2] >= 4 * STRIP


def _product(left: Tensor, right: Tensor, *, sign: int) -> Tensor:
    """A product that is known to be symmetric (sign 1) or skew (-1): strips of its upper half, mirrored."""
    if not _pays(left):
        return left @ right
    rows = left.shape[-2]
    step = max(STRIP, -(-rows // STRIPS))
    result = left.new_empty(*left.shape[:-1], rows)
    for start in range(0, rows, step):
        strip = slice(start, start + step)
        result[..., strip, start:] = left[..., strip, :] @ right[..., start:]
        result[..., strip, :start] = result[..., :start, strip].mT.mul(sign)
    return result
