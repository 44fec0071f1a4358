r"""Largest eigenvalues of block tridiagonal Hermitian matrices H, by a factorisation that is checked.

s I - H is factorised into L L^H strip by strip. Whatever L is,

.. math:: \lambda_{\max}(H) \le s + \| s I - H - L L^H \| ,

and the residual is computed, with the rounding of its own computation. So nothing is assumed of LAPACK.
"""

import math
from collections.abc import Callable

import numpy as np

from lipcert.certify.independent.norms import UNIT
from lipcert.certify.independent.tree import Array


def block_bound(block: Callable[[range, range], Array], strips: list[range], s: float) -> float | None:
    """Bound just above s on the eigenvalues of a block tridiagonal Hermitian matrix H; None if s fails.

    Args:
        block: the block of H from one strip of rows to another.
        strips: the rows of the map; a strip touches its neighbours only.
        s: the guess.
    """
    inside, across = [], [0.0]
    factor: Array = np.zeros((0, 0))
    for j, own in enumerate(strips):
        inner = block(own, own)
        shifted = s * np.eye(len(inner)) - inner
        residual = UNIT * np.linalg.norm(shifted)
        if j:
            coupling = -block(own, strips[j - 1])
            solved = _forward(factor, coupling.conj().T).conj().T
            left = coupling - _times_lower(solved, factor)
            across.append(float(np.linalg.norm(left)) * 1.01 + _product_error(solved, factor))
            shifted = shifted - _lower_product(solved, solved)
            residual += _product_error(solved, solved) + 2 * UNIT * np.linalg.norm(shifted)
        try:
            factor = np.linalg.cholesky(shifted)  # reads the lower triangle only
        except np.linalg.LinAlgError:
            return None
        left = np.tril(shifted - _lower_product(factor, factor, triangular=True))
        residual += 1.5 * float(np.linalg.norm(left)) + _product_error(factor, factor)
        inside.append(float(residual))
    return s + (max(inside) + 2 * max(across)) * (1 + 2.0**-20)


def _product_error(a: Array, b: Array) -> float:
    """Rounding of a product A B^H of complex matrices, and of its difference from another, in norm."""
    terms, size = 2 * len(a.T) + 8, float(np.linalg.norm(a) * np.linalg.norm(b))
    return math.sqrt(2) * terms * UNIT * size * 1.01


def _spans(n: int, step: int) -> list[tuple[int, int]]:
    return [(lo, min(lo + step, n)) for lo in range(0, n, step)]


def _forward(factor: Array, right: Array) -> Array:
    """X with L X = B, in blocks; how exact it is will be seen from the residual."""
    solution = np.empty_like(right)
    for lo, hi in _spans(len(factor), 128):
        rest = right[lo:hi] - factor[lo:hi, :lo] @ solution[:lo]
        solution[lo:hi] = np.linalg.solve(factor[lo:hi, lo:hi], rest)
    return solution


def _lower_product(a: Array, b: Array, *, triangular: bool = False) -> Array:
    """The lower triangle of A B^H, in blocks; parts of the upper one are left out."""
    result = np.zeros((len(a), len(b)), dtype=a.dtype)
    for lo, hi in _spans(len(b), max(64, -(-len(b) // 6))):
        end = hi if triangular else b.shape[1]
        result[lo:, lo:hi] = a[lo:, :end] @ b[lo:hi, :end].conj().T
    return result


def _times_lower(a: Array, factor: Array) -> Array:
    """A L^H for a lower triangular L, without the products with its zeros."""
    parts = [
        a[:, :hi] @ factor[lo:hi, :hi].conj().T
        for lo, hi in _spans(len(factor), max(64, -(-len(factor) // 6)))
    ]
    return np.concatenate(parts, axis=1)
