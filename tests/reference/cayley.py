"""The Cayley convolution by its definition: every frequency of a full transform, one at a time, in numpy."""

import numpy as np
from numpy.typing import NDArray


def cayley(w: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Trockman and Kolter, section 4: (I + A)^-1 (I - A), with the rows below for a tall matrix."""
    rows, columns = w.shape
    if rows < columns:
        return cayley(w.T).T
    u, v = w[:columns], w[columns:]
    identity = np.eye(columns)
    a = u - u.conj().T + v.conj().T @ v
    inverse = np.linalg.inv(identity + a)
    return np.concatenate([inverse @ (identity - a), -2 * v @ inverse])


def cayley_convolution(kernel: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Transform of one map (C, H, W) by a kernel (out, in, k, k) that is scaled already."""
    outputs, _, size, _ = kernel.shape
    _, height, width = x.shape
    coefficients = np.fft.fft2(x)
    result = np.zeros((outputs, height, width), dtype=complex)
    for u in range(height):
        for v in range(width):
            matrix = np.zeros(kernel.shape[:2], dtype=complex)
            for d in range(size):
                for e in range(size):
                    angle = 2 * np.pi * (u * (d - size // 2) / height + v * (e - size // 2) / width)
                    matrix += kernel[:, :, d, e] * np.exp(1j * angle)
            result[:, u, v] = cayley(matrix) @ coefficients[:, u, v]
    y = np.fft.ifft2(result)
    assert np.abs(y.imag).max() < 1e-10
    return y.real
