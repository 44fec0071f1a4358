"""Convolutions that train a kernel and run it as an ordinary convolution, with zeros around the map."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.kernels.orthogonalize import polar_factor
from lipcert.kernels.precision import at_least_single
from lipcert.nn.convolution import LipschitzConv2d
from lipcert.operators.convolution import Convolution


class ExplicitConv2d(LipschitzConv2d):
    """A linear 1-Lipschitz convolution whose kernel is a function of `weight`; at inference a plain one.

    A subclass implements `kernel`.
    """

    weight: Tensor

    @abstractmethod
    def kernel(self, height: int, width: int, *, training: bool = False) -> Tensor:
        """The kernel (out, stride^2 in, k, k) for maps of this size, a function of the weights.

        In training it may rest on what the last step left behind.
        """

    def transform(self, x: Tensor) -> Tensor:
        """Convolve with the kernel."""
        size = tuple(x.shape[2:])
        kernel = self.derived(lambda: self.kernel(*size, training=self.training), size)
        return F.conv2d(x, kernel.to(self.weight.dtype), padding=self.kernel_size // 2)

    def freeze_transform(self, height: int, width: int) -> Convolution:
        """The finished kernel."""
        kernel = self.kernel(height, width).to(self.weight.dtype).contiguous()
        return Convolution(kernel, self.frozen_bias(), padding=(self.kernel_size // 2,) * 2)


def near_orthogonal(
    outputs: int,
    inputs: int,
    size: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Parameter:
    """A random kernel (outputs, inputs, size, size): an orthogonal matrix in the middle, and noise.

    The noise has a tenth of the length: where channels have nothing at all in common, the absolute values and
    norms by which layers divide have no derivative.
    """
    noise = torch.randn(outputs, inputs, size, size, device=device, dtype=dtype)
    kernel = noise * (0.1 / (size * max(outputs, inputs) ** 0.5))
    matrix = at_least_single(torch.randn(outputs, inputs, device=device, dtype=dtype))
    kernel[:, :, size // 2, size // 2] += polar_factor(matrix).to(kernel.dtype)
    return nn.Parameter(kernel)
