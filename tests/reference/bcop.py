"""BCOP as its authors write it: 2 x 2 blocks of projections, multiplied tap by tap; plain loops in numpy."""

import numpy as np
from numpy.typing import NDArray

Kernel = dict[tuple[int, int], NDArray[np.float64]]
"""Matrices by the offset (down, right) at which they read the input."""


def block(p: NDArray[np.float64], q: NDArray[np.float64], shift: int) -> Kernel:
    """The 2 x 2 orthogonal convolution of two projections: vertical P first, then horizontal Q."""
    identity = np.eye(len(p))
    return {
        (0, 0): (identity - q) @ (identity - p),
        (-shift, 0): (identity - q) @ p,
        (0, -shift): q @ (identity - p),
        (-shift, -shift): q @ p,
    }


def compose(outer: Kernel, inner: Kernel) -> Kernel:
    """The convolution that applies `inner` and then `outer`."""
    result: Kernel = {}
    for (a, b), left in outer.items():
        for (c, d), right in inner.items():
            result[a + c, b + d] = result.get((a + c, b + d), 0) + left @ right
    return result


def bcop(matrix: NDArray[np.float64], spans: NDArray[np.float64]) -> Kernel:
    """H with orthonormal rows or columns and the raw spans of the projections -> the kernel by offsets."""
    projections = [span @ np.linalg.pinv(span) for span in spans]
    inputs, outputs = matrix.shape[1], matrix.shape[0]
    kernel: Kernel = {(0, 0): matrix if inputs <= outputs else np.eye(inputs)}
    for pair in range(len(spans) // 2):
        shift = (-1) ** pair
        kernel = compose(block(projections[2 * pair], projections[2 * pair + 1], shift), kernel)
    return kernel if inputs <= outputs else compose({(0, 0): matrix}, kernel)


def circular(kernel: Kernel, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply a kernel to one map (C, H, W), pixel by pixel, wrapping around."""
    _, height, width = x.shape
    outputs = next(iter(kernel.values())).shape[0]
    y = np.zeros((outputs, height, width))
    for row in range(height):
        for column in range(width):
            for (down, right), tap in kernel.items():
                y[:, row, column] += tap @ x[:, (row + down) % height, (column + right) % width]
    return y
