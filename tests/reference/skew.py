"""A polynomial of a skew convolution as its formula reads."""

import torch.nn.functional as F
from torch import Tensor


def skew_series_reference(
    x: Tensor, kernel: Tensor, coefficients: tuple[float, ...], out_channels: int
) -> Tensor:
    """p(A) x by Horner's rule through `conv2d` and autograd: the plain path."""
    padded = F.pad(x, (0, 0, 0, 0, 0, kernel.shape[0] - x.shape[1]))
    y = coefficients[-1] * padded
    for c in reversed(coefficients[:-1]):
        y = F.conv2d(y, kernel, padding=kernel.shape[-1] // 2) + c * padded
    return y[:, :out_channels]
