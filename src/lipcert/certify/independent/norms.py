r"""Norms of matrices, and of circular convolutions frequency by frequency.

The largest eigenvalue of the Gram matrix by LAPACK, with the error of the Gram matrix and
:math:`64\,n\,u\,\|G\|_F` for the eigenvalue added: LAPACK's eigenvalues of a Hermitian matrix are those of
one that is off by a modest multiple of u ||G|| (LAPACK Users' Guide, section 4.7). The package proves the
same by factorisations.
"""

import math

import numpy as np

from lipcert.certify.independent.tree import Array

UNIT: float = 2.0**-53
UP: float = 1 + 2.0**-45
"""Covers a few roundings of a bound."""
HELD = 2**21
"""Numbers of a stack of matrices that are held at once."""


def scale(x: Array) -> tuple[Array, int]:
    """Numbers times a power of two that makes the largest about 1, and the exponent of the way back."""
    parts = np.ascontiguousarray(x)
    exponent = int(np.frexp(np.abs(parts.view(np.float64)).max())[1])
    return np.ldexp(parts.view(np.float64), -exponent).view(parts.dtype), exponent


def norm_bound(matrices: Array) -> float:
    """Upper bound on the largest singular value of a stack (F, m, n)."""
    if not matrices.any():
        return 0.0
    scaled, exponent = scale(matrices)
    if scaled.shape[1] < scaled.shape[2]:
        scaled = scaled.swapaxes(1, 2)  # of the same norm
    m, n = scaled.shape[1:]
    largest, count = 0.0, max(1, HELD // (m * n))
    for start in range(0, len(scaled), count):
        stack = scaled[start : start + count]
        gram = stack.conj().swapaxes(1, 2) @ stack
        squares = (np.abs(stack) ** 2).sum(axis=(1, 2))
        error = 3 * (m + 4) * UNIT * squares + 64 * n * UNIT * np.linalg.norm(gram, axis=(1, 2))
        largest = max(largest, float((np.linalg.eigvalsh(gram)[:, -1] + error * 1.01).max()))
    return float(np.ldexp(math.sqrt(largest) * UP, exponent))


def circular_norm_bound(kernel: Array, height: int, width: int, stride: int = 1, dilation: int = 1) -> float:
    """Upper bound on the norm of a circular convolution with a kernel (out, in, k, k).

    Frequencies of the map that a stride s cannot tell apart, s^2 of them, fall on one of the output: there
    the matrices of all of them stand side by side, divided by s. Without a stride half of the frequencies
    are enough; those left out have conjugate matrices.
    """
    out, channels, size, _ = kernel.shape
    kernel, exponent = scale(kernel)
    offsets = dilation * (np.arange(size) - size // 2)
    kept = width // 2 + 1 if stride == 1 else width
    down = np.exp(2j * np.pi * (np.outer(np.arange(height), offsets) % height) / height)
    across = np.exp(2j * np.pi * (np.outer(np.arange(kept), offsets) % width) / width)
    bound = 0.0
    for row in range(height // stride):
        columns = np.einsum("oiyx,sy->sxoi", kernel, down[row :: height // stride])
        grid = across @ columns.reshape(stride, size, -1)
        # (s, kept, out * in) -> (kept / s, out, s * s * in): column v of the output has all v + j width / s.
        grid = grid.reshape(stride, stride, kept // stride, out, channels)
        grid = grid.transpose(2, 3, 0, 1, 4).reshape(kept // stride, out, -1)
        bound = max(bound, norm_bound(grid / stride))
    whole = (bound + 2 * phase_error(kernel.transpose(2, 3, 0, 1))) * UP
    return float(np.ldexp(whole, exponent))


def phase_error(grid: Array) -> float:
    """What the matrix of a frequency, a sum of taps (ky, kx, out, in) times phases, is off by, in norm.

    Phases are off by 32 u, and a sum of k^2 complex terms by sqrt(2) gamma_{2 k^2 + 2}.
    """
    count = int(grid.shape[0] * grid.shape[1])
    sizes = float(np.linalg.norm(grid, axis=(2, 3)).sum())
    return sizes * (32 + 3 * (count + 2)) * UNIT * 1.01
