"""Slow, obvious oracles for skew convolutions: the dense operator, and exp by scaling and squaring."""

import torch
from torch import Tensor

PAPER_ERROR = 2.42e-6
"""How far the paper's twelve Taylor terms may be from the exponential."""


def dense_convolution(kernel: Tensor, height: int, width: int) -> Tensor:
    """Matrix of the zero-padded convolution, entry by entry, over (channel, row, column)."""
    out, into, size, _ = kernel.shape
    half = size // 2
    matrix = torch.zeros(out, height, width, into, height, width, dtype=kernel.dtype)
    for y in range(height):
        for x in range(width):
            for dy in range(-half, half + 1):
                for dx in range(-half, half + 1):
                    if 0 <= y + dy < height and 0 <= x + dx < width:
                        matrix[:, y, x, :, y + dy, x + dx] = kernel[:, :, dy + half, dx + half]
    return matrix.reshape(out * height * width, into * height * width)


def dense_polynomial(matrix: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Sum of c_j M^j with explicit powers."""
    power = torch.eye(len(matrix), dtype=matrix.dtype)
    total = torch.zeros_like(matrix)
    for c in coefficients:
        total += c * power
        power = power @ matrix
    return total
