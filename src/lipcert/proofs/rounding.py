"""Rounding errors of float64 as numbers: what a proof in floating point adds to what it computed.

Model: every operation rounds to nearest, |fl(a op b) - (a op b)| <= u |a op b| + eta with u = 2^-53. Sums may
be taken in any order, with or without fused multiply-adds, so a result holds for every ordinary BLAS;
algorithms that trade additions for products (Strassen, 3M) are excluded. Results that may underflow are
covered by `TINY`. Reference: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapters 2
and 3.
"""

import math

import torch
from torch import Tensor

from lipcert.errors import ArgumentError

UNIT = 2.0**-53
"""Unit roundoff u of float64."""

TINY = 2.0**-900
"""Covers all underflow in data whose largest entry is scaled to [1/2, 1]: each loses at most
2^-1022 (also when subnormals are flushed to zero), and no computation here has more than 2^100 of them."""


def up(x: float) -> float:
    """The next larger float: undoes the rounding of one operation.

    >>> up(1.0) > 1.0
    True
    """
    return math.nextafter(x, math.inf)


def down(x: float) -> float:
    """The next smaller float."""
    return math.nextafter(x, -math.inf)


def sum_up(*terms: float) -> float:
    """Upper bound on an exact sum: `math.fsum` rounds once."""
    return up(math.fsum(terms)) if all(map(math.isfinite, terms)) else math.inf


def product_up(*factors: float) -> float:
    """Upper bound on an exact product of nonnegative factors, also where subnormals are flushed to zero."""
    product = 1.0
    for factor in factors:
        product = max(up(product * factor), 2.0**-1021)
    return product


def sqrt_up(x: float) -> float:
    """Upper bound on a square root; x >= 0."""
    return up(math.sqrt(x))


def gamma(n: int) -> float:
    r"""Upper bound on :math:`\gamma_n = n u / (1 - n u)`, the relative error of `n` roundings in a row."""
    if n * UNIT >= 0.5:
        raise ArgumentError(f"n: the error analysis holds for fewer than 2^52 operations, got {n}")
    return product_up(n * UNIT, up(1 / down(1 - n * UNIT)))


def largest_entry_exponent(*tensors: Tensor) -> int:
    """Smallest e with |entries| <= 2^e over all tensors (0 if all are zero): divide by 2^e without rounding.

    Raises:
        ArgumentError: an entry is NaN or infinite.
    """
    # One pass over the numbers; NaN is passed on.
    extremes = [float(e) for t in tensors if t.numel() for e in torch.aminmax(t)]
    largest = max(map(abs, extremes), default=0.0)
    if not all(map(math.isfinite, extremes)):
        raise ArgumentError(
            "weights: expected finite numbers, got NaN or infinity; the model has diverged or is damaged"
        )
    return math.frexp(largest)[1] if largest else 0


def times_power_of_two(x: Tensor, exponent: int) -> Tensor:
    """Return x * 2^exponent; exact where nothing underflows or overflows."""
    if abs(exponent) < 1000:
        return x * 2.0**exponent
    half = exponent // 2  # 2^exponent itself may be out of range when x * 2^exponent is not
    return x * 2.0**half * 2.0 ** (exponent - half)


def scale_up(x: float, exponent: int) -> float:
    """Upper bound on x * 2^exponent, x >= 0; infinity on overflow."""
    try:
        scaled = math.ldexp(x, exponent)
    except OverflowError:
        return math.inf
    return scaled if math.frexp(scaled)[1] > -1020 or x == 0 else up(scaled)


def frobenius_upper_bound(matrices: Tensor) -> float:
    """Upper bound on the largest Frobenius norm in a stack (..., rows, columns); entries up to 2^500."""
    parts = torch.view_as_real(matrices).flatten(-2) if matrices.is_complex() else matrices
    squares = float(parts.square().sum(dim=(-2, -1)).max())
    # s >= (1 - gamma_m) S for the computed s and the exact S, m entries plus one; 1 / (1 - gamma_m) <= 1 +
    # gamma_2m.
    terms = parts.shape[-2] * parts.shape[-1] + 1
    return sqrt_up(sum_up(product_up(squares, sum_up(1.0, gamma(2 * terms))), TINY))
