r"""Averaging resize of a square picture, as a linear map whose matrix is known.

One matrix A of shape (size, side) acts on rows and on columns, :math:`Y = A X A^T` for every channel. Its
rows sum to 1. Nothing is rounded to 8 bits, so that the map is linear and a radius on Y says something about
X (`lipcert.certify.resized`).
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 128
"""Rows of the picture that are converted to float64 at once."""


@lru_cache(maxsize=16)
def resize_matrix(side: int, size: int) -> NDArray[np.float64]:
    """(size, side): Keys' cubic filter, widened by side / size where the picture becomes smaller.

    The same filter as Pillow's BICUBIC. Every operation is rounded correctly and row sums are exact before
    they are rounded, so the matrix has the same bits on every machine.

    >>> resize_matrix(2, 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    scale = side / size
    wide = max(scale, 1.0)
    centres = (np.arange(size)[:, None] + 0.5) * scale
    columns = np.arange(side)[None]
    # Pillow leaves out taps whose centre is not within the support, rounded to whole pixels.
    first = np.maximum(np.trunc(centres - 2 * wide + 0.5), 0)
    last = np.minimum(np.trunc(centres + 2 * wide + 0.5), side)
    taps = np.where((columns >= first) & (columns < last), _cubic((columns - centres + 0.5) / wide), 0.0)
    matrix: NDArray[np.float64] = taps / np.array([[math.fsum(row)] for row in taps.tolist()])
    matrix.setflags(write=False)
    return matrix


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Piecewise cubic that interpolates, with slope -1/2 at 1."""
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def resize_square(pixels: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """A square picture (side, side, C) at another size, as float64 (size, size, C).

    Pixels are k / 255 rounded to float32, as everywhere; where the filter overshoots, results lie outside of
    [0, 1].
    """
    side = len(pixels)
    matrix = resize_matrix(side, size)
    rows: NDArray[np.float64] = np.zeros((size, side * pixels.shape[2]))
    for start in range(0, side, BLOCK):
        part = matrix[:, start : start + BLOCK]
        block = pixels[start : start + BLOCK].reshape(part.shape[1], -1).astype(np.float32)
        block /= np.float32(255)
        live = part.any(axis=1)
        rows[live] += part[live] @ block.astype(np.float64)
    both: NDArray[Any] = np.matmul(matrix, rows.reshape(size, side, -1))
    return both
