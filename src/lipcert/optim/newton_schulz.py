"""Approximate orthogonalisation of matrices by products alone."""

import torch
from torch import Tensor

from lipcert.errors import ArgumentError, check_positive

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of x, x^3 and x^5. K. Jordan's choice: the steepest slope at 0 for which iterates stay near 1."""

BAND = (0.68, 1.21)
"""Where five iterations put every singular value that is at least `SMALLEST` of the Frobenius norm."""

SMALLEST = 2e-3

WIDE = 2
"""Columns per row from which the iteration on the Gram matrix takes fewer products.

With r columns per row of an m x r m matrix five plain iterations are 5 (2 r + 1) products of m x m matrices,
five on the Gram matrix 17 + 2 r: 25 and 21 at r = 2, 55 and 27 at r = 5.
"""

ALONE = 64
"""Rows from which a CPU takes the matrices of a batch one by one: its batched products are slower then."""

STRIP = 128
"""Rows of a large symmetric product that are computed at once on a CPU; what is left of them is mirrored."""


def orthogonalize(matrices: Tensor, *, iterations: int = 5, dtype: torch.dtype | None = None) -> Tensor:
    r"""Move all singular values of a matrix near 1 by Newton-Schulz iterations.

    .. math:: X \leftarrow a X + b X X^T X + c (X X^T)^2 X, \qquad X_0 = M / \|M\|_F

    With M = U S V^T the result is U p(...p(S / ||M||_F)) V^T for the odd polynomial p(x) = a x + b x^3 + c
    x^5. It does not converge: the coefficients are chosen to lift small singular values quickly, and after
    five iterations those above `SMALLEST` times ||M||_F are inside `BAND`. That is all Muon needs.

    The Gram matrix is that of the shorter side. In float32 and better, and for matrices at least `WIDE` times
    as wide as high, the iteration runs on the Gram matrix G = X X^T alone: all iterates are polynomials in
    G_0 times X_0, so X takes part in the first and the last product only. Rounding errors of G grow by a^2
    per iteration, 2e4 in all, which bfloat16 does not have to spare.

    Args:
        matrices: (..., m, n); a matrix of zeros stays zero.
        iterations: of the polynomial.
        dtype: of the products; None is the dtype of `matrices`.

    Returns:
        the same shape and dtype as `matrices`.

    >>> orthogonalize(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).round(decimals=2)
    tensor([[0.7200, 0.0000],
            [0.0000, 1.1200]])
    """
    check_positive(iterations=iterations)
    if matrices.dim() < 2 or not matrices.is_floating_point():
        raise ArgumentError(
            "matrices: expected floating point matrices (..., m, n), got "
            f"{matrices.dtype} of shape {tuple(matrices.shape)}"
        )
    norms = torch.linalg.matrix_norm(matrices, keepdim=True)
    x = (matrices / norms.clamp_min(torch.finfo(matrices.dtype).tiny)).to(dtype)
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    rows, columns = x.shape[-2:]
    on_gram = columns >= WIDE * rows and x.dtype in (torch.float32, torch.float64)
    iterate = _iterate_gram if on_gram else _iterate
    if x.dim() > 2 and x.device.type == "cpu" and rows >= ALONE and x.numel():
        alone = [iterate(matrix, iterations) for matrix in x.reshape(-1, rows, columns)]
        x = torch.stack(alone).view(x.shape)
    else:
        x = iterate(x, iterations)
    return (x.mT if is_tall else x).to(matrices.dtype)


def _iterate(x: Tensor, iterations: int) -> Tensor:
    """The iteration as it is written."""
    is_skew = _pays(x) and x.shape[-2] == x.shape[-1] and torch.equal(x, -x.mT)
    for _ in range(iterations):
        factor = _factor(_product(x, x.mT, sign=1))
        # An odd polynomial of a skew matrix is skew.
        x = _product(factor, x, sign=-1) if is_skew else factor @ x
    return x


def _iterate_gram(x: Tensor, iterations: int) -> Tensor:
    """The same on G = X X^T: X <- M X makes G <- M G M, and M = a + b G + c G^2 commutes with G."""
    gram = _product(x, x.mT, sign=1)
    product: Tensor | None = None
    for k in range(iterations):
        factor = _factor(gram)
        product = factor if product is None else _product(factor, product, sign=1)
        if k + 1 < iterations:
            gram = _product(factor, _product(gram, factor, sign=1), sign=1)
    assert product is not None
    return product @ x


def _factor(gram: Tensor) -> Tensor:
    """The symmetric matrix a + b G + c G^2 that multiplies X."""
    a, b, c = COEFFICIENTS
    factor = _product(gram, gram, sign=1).mul_(c).add_(gram, alpha=b)
    factor.diagonal(dim1=-2, dim2=-1).add_(a)
    return factor


def _pays(x: Tensor) -> bool:
    """Whether half of a symmetric product is worth several smaller ones."""
    return x.device.type == "cpu" and x.shape[-2] >= 4 * STRIP


def _product(left: Tensor, right: Tensor, *, sign: int) -> Tensor:
    """A product that is known to be symmetric (sign 1) or skew (-1): strips of its upper half, mirrored."""
    if not _pays(left):
        return left @ right
    rows = left.shape[-2]
    result = left.new_empty(*left.shape[:-1], rows)
    for start in range(0, rows, STRIP):
        strip = slice(start, start + STRIP)
        result[..., strip, start:] = left[..., strip, :] @ right[..., start:]
        result[..., strip, :start] = result[..., :start, strip].mT.mul(sign)
    return result
