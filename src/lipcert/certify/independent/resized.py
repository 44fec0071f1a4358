"""How far a resize can pull pictures apart, derived a second time: by Pillow's own resize and LAPACK."""

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=64)
def stretch(side: int, size: int) -> float:
    """Largest factor by which resizing a square from `side` to `size` pixels makes a difference longer.

    Pillow resizes the rows of an identity matrix, in float32, which gives the matrix of one direction; the
    factor is the square of its largest singular value. Accurate to about 1e-6.
    """
    from PIL import Image

    rows = Image.fromarray(np.eye(side, dtype=np.float32))
    matrix = np.asarray(rows.resize((size, side), Image.Resampling.BICUBIC), dtype=np.float64)
    return float(np.linalg.norm(matrix, 2)) ** 2
