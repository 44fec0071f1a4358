"""A convolution by a matrix function at every frequency of a full transform, one at a time, in numpy."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.complex128]


def convolution_by_frequency(
    kernel: NDArray[np.float64], x: NDArray[np.float64], function: Callable[[Matrix], Matrix]
) -> NDArray[np.float64]:
    """One map (C, H, W) times function(K(w)), with K(w) the matrix of a kernel (m, n, k, k)."""
    size = kernel.shape[-1]
    _, height, width = x.shape
    coefficients = np.fft.fft2(x)
    columns = []
    for u in range(height):
        for v in range(width):
            matrix = np.zeros(kernel.shape[:2], dtype=complex)
            for d in range(size):
                for e in range(size):
                    angle = 2 * np.pi * (u * (d - size // 2) / height + v * (e - size // 2) / width)
                    matrix += kernel[:, :, d, e] * np.exp(1j * angle)
            columns.append(function(matrix) @ coefficients[:, u, v])
    y = np.fft.ifft2(np.stack(columns, axis=1).reshape(-1, height, width))
    assert np.abs(y.imag).max() < 1e-10
    return y.real
