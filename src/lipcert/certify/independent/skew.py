r"""Polynomials of skew convolutions on zero-padded maps: max |p(iy)| over |y| <= rho for a rho >= ||A||.

The operator A is a block Toeplitz matrix of the rows of a map, so s I - iA is block tridiagonal (`strips`). A
guess s is a little above an estimate of the norm by Lanczos; one that is too small fails, and the next is
larger.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from lipcert.certify.independent.norms import UNIT, norm_bound, phase_error, scale
from lipcert.certify.independent.strips import block_bound
from lipcert.certify.independent.tree import Array

GAP, STEPS = 1e-4, 300
DENSE = 1024
"""Operators of at most this many rows and columns are bounded as one matrix."""
EXACT_PRODUCTS = 5e10
"""Beyond this many products in a factorisation, rows of a map are closed to circles."""
GRID = 2**18


def skew_taps(values: Mapping[str, Any]) -> Array:
    """All k^2 taps (k^2, c, c) of A in raster order: K[o, i, t] = -K[i, o, -t], one product per entry."""
    behind, c = values["taps"] * values["factor"], values["taps"].shape[1]
    centre = np.zeros((c, c))
    centre[np.triu_indices(c, 1)] = values["centre"] * values["centre_factor"]
    return np.concatenate([-behind[::-1].transpose(0, 2, 1), (centre - centre.T)[None], behind])


def skew_norm_bound(taps: Array, height: int, width: int) -> float:
    """Upper bound on ||A|| on zero-padded maps, from the taps (k^2, c, c)."""
    if height > width:
        size = math.isqrt(len(taps))
        order = np.arange(len(taps)).reshape(size, size).T.ravel()  # a map on its side has the same norm
        taps, height, width = taps[order], width, height
    if not (taps.any() and np.isfinite(taps).all()):
        return math.inf if taps.any() else 0.0
    taps, exponent = scale(taps)
    c, size = taps.shape[1], math.isqrt(len(taps))
    if size == 1:  # all pixels are alike and alone
        height = width = 1
    reach = min(size // 2, width - 1)
    grid = taps.reshape(size, size, c, c)[:, size // 2 - reach : size // 2 + reach + 1]
    if c * height * width <= DENSE:
        dense = _toeplitz(_rows(grid.swapaxes(0, 1), height), range(width), range(width))
        return float(np.ldexp(norm_bound(dense[None]), exponent))
    if width * (c * height) ** 3 <= EXACT_PRODUCTS:
        # Strips across the longer side are cheapest: their rows are short.
        stack, length, error = _rows(grid.swapaxes(0, 1), height)[None], width, 0.0
        estimate = _norm_estimate(grid, height, width)
    else:
        # A row of n pixels is a part of a circle of n + r, on which no tap gets from one of them to another
        # the wrong way round.
        stack, length, error = _rows_on_a_circle(grid, width + reach), height, phase_error(grid)
        estimate = _norm_estimate(grid, height, width + reach, circle=True)
    gap, bound = GAP, float(np.linalg.norm(grid, axis=(2, 3)).sum()) * (1 + 2.0**-20)  # the sum over all taps
    while (guess := estimate * (1 + gap) + 1e-12) < bound:
        bounds = [_bound(1j * rows, length, guess) for rows in stack]
        proved = [bound for bound in bounds if bound is not None]
        if len(proved) == len(bounds):
            bound = (max(proved) + error) * (1 + 2.0**-40)
            break
        gap *= 4
    return float(np.ldexp(bound, exponent))


def _rows(grid: Array, width: int) -> Array:
    """The matrices of A from row y + t to row y, (k, width c, width c), for t = -r, ..., r."""
    size, columns, c, _ = grid.shape
    reach = columns // 2
    rows = np.zeros((size, width, c, width, c))
    for x in range(width):
        for other in range(max(0, x - reach), min(width, x + reach + 1)):
            rows[:, x, :, other] = grid[:, other - x + reach]
    return rows.reshape(size, width * c, width * c)


def _rows_on_a_circle(grid: Array, around: int) -> Array:
    """The same with every row closed to a circle, for each of its frequencies: (around, k, c, c).

    All frequencies are taken, so that with an eigenvalue of iA its negative is among theirs.
    """
    offsets = np.arange(grid.shape[1]) - grid.shape[1] // 2
    turns = np.outer(np.arange(around), offsets) % around
    spectrum: Array = np.einsum("fx,yxoi->fyoi", np.exp(2j * np.pi * turns / around), grid)
    return spectrum


def _norm_estimate(grid: Array, height: int, width: int, *, circle: bool = False) -> float:
    """Lanczos of a skew operator: in its basis it is tridiagonal with zeros on the diagonal."""
    ky, kx, c, _ = grid.shape
    y, x = ky // 2, kx // 2
    taps = np.ascontiguousarray(grid.reshape(-1, c, c).swapaxes(1, 2))
    vector = np.random.default_rng(0).standard_normal((height, width, c))
    vector /= np.linalg.norm(vector)
    previous, lengths = np.zeros_like(vector), [0.0]
    for _ in range(min(STEPS, vector.size)):
        padded = np.pad(vector, ((0, 0), (x, x), (0, 0)), mode="wrap" if circle else "constant")
        padded = np.pad(padded, ((y, y), (0, 0), (0, 0)))
        moved = [padded[ty : ty + height, tx : tx + width].reshape(-1, c) for ty, tx in np.ndindex(ky, kx)]
        image = sum(m @ tap for m, tap in zip(moved, taps, strict=True)).reshape(vector.shape)
        image += lengths[-1] * previous
        length = float(np.linalg.norm(image))
        if length < 1e-13:
            break
        lengths.append(length)
        previous, vector = vector, image / length
    off = np.diag(lengths[1:], 1)
    return float(np.linalg.eigvalsh(off + off.T)[-1])


def _toeplitz(rows: Array, own: range, other: range) -> Array:
    """The block from some rows of a map to others, of the matrices (2r + 1, n, n)."""
    reach, zero = len(rows) // 2, np.zeros(rows.shape[1:])
    near = [[rows[b - a + reach] if abs(b - a) <= reach else zero for b in other] for a in own]
    return np.block(near)


def _bound(rows: Array, height: int, s: float) -> float | None:
    """Bound just above s on the eigenvalues of a block Toeplitz matrix (2r + 1, n, n); None if s fails."""
    step = max(1, len(rows) // 2)  # a strip of so many rows touches its neighbours only
    strips = [range(lo, min(lo + step, height)) for lo in range(0, height, step)]
    return block_bound(lambda own, other: _toeplitz(rows, own, other), strips, s)


def modulus_bound(coefficients: Sequence[float], rho: float) -> float:
    r"""Upper bound on max |p(iy)| over |y| <= rho.

    :math:`q(t) = |p(iy)|^2 = E(t)^2 + t O(t)^2` is a polynomial of t = y^2. Between two points of a grid of
    step h it exceeds the larger of its two values by at most :math:`h^2 \max |q''| / 8`. Its coefficients
    are computed in rational numbers; q'' is bounded by absolute values, and so is the rounding of q.
    """
    signed = [Fraction(c) * (-1) ** (j // 2) for j, c in enumerate(coefficients)]
    exact = [Fraction(0)] * len(signed)
    for i, a in enumerate(signed):
        for j, b in enumerate(signed):
            if (i - j) % 2 == 0:
                exact[(i + j) // 2] += a * b
    q = [float(a) for a in exact]
    end = rho * rho * (1 + 2.0**-50)
    t = np.linspace(0.0, end, GRID + 1)
    values = np.zeros_like(t)
    for a in reversed(q):
        values = values * t + a
    size = sum(abs(a) * end**j for j, a in enumerate(q))
    bend = sum(j * (j - 1) * abs(a) * end ** (j - 2) for j, a in enumerate(q) if j > 1)
    # Points of the grid are off by 2 u: the values by that times t q', at most the degree times the size.
    rounding = (6 * len(q) + 8) * UNIT * size
    square = float(values.max()) + (1.01 * end / GRID) ** 2 / 8 * bend * (1 + 2.0**-40) + rounding
    return math.sqrt(max(square, 0.0)) * (1 + 2.0**-50)
