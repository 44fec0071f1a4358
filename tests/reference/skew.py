"""Skew convolutions as their formulas read: transposition, held taps, and a polynomial."""

import torch.nn.functional as F
from torch import Tensor


def transpose_kernel(kernel: Tensor) -> Tensor:
    """Kernel of the transposed convolution operator: channels swapped, both spatial axes flipped."""
    return kernel.transpose(0, 1).flip(2, 3)


def taps_from_kernel(kernel: Tensor) -> Tensor:
    """A full skew kernel (c, c, k, k) -> its held taps (T, c, c), centre first."""
    return kernel.flatten(2).permute(2, 0, 1)[kernel.shape[-1] ** 2 // 2 :].contiguous()


def skew_series_reference(
    x: Tensor, kernel: Tensor, coefficients: tuple[float, ...], out_channels: int
) -> Tensor:
    """p(A) x by Horner's rule through `conv2d` and autograd: the plain path."""
    padded = F.pad(x, (0, 0, 0, 0, 0, kernel.shape[0] - x.shape[1]))
    y = coefficients[-1] * padded
    for c in reversed(coefficients[:-1]):
        y = F.conv2d(y, kernel, padding=kernel.shape[-1] // 2) + c * padded
    return y[:, :out_channels]
