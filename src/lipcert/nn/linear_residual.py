"""The linear residual convolution of LiResNets: identity plus kernel, divided by its norm."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import Device
from lipcert.nn.explicit import ExplicitConv2d
from lipcert.nn.norm import KernelNorm


@register_convolution("liresnet")
class LinearResidualConv2d(ExplicitConv2d):
    r"""y = (x + scale * W x) / ||I + scale * W||, one convolution, with zeros around the map.

    With other numbers of inputs than outputs the identity is that of the channels that both have. The norm is
    that of the convolution on the map at hand, by power iteration; `scale` is learnable, so that the length
    of `weight` means nothing.

    Guarantee: what `lipschitz_bound` states, proved for the finished kernel: 1, or what an estimate of the
    norm that is too small leaves above it.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1, 3 or 5.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias per output channel.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    >>> layer = LinearResidualConv2d(3, 8, 3, stride=2, bias=False)
    >>> layer(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 8, 16, 16])

    Reference: K. Hu, A. Zou, Z. Wang, K. Leino, M. Fredrikson, Unlocking deterministic robustness
    certification on ImageNet, NeurIPS 2023.
    """

    kernel_sizes = (1, 3, 5)
    matrices: ClassVar = {"weight": "kernel"}

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """A random kernel about as large as the identity, its scale, and where the norm is kept."""
        shape = (self.out_channels, self.map_channels, self.kernel_size, self.kernel_size)
        spread = (self.kernel_size * (self.map_channels + self.out_channels) ** 0.5) ** -1
        self.weight = nn.Parameter(torch.randn(shape, device=device, dtype=dtype) * spread)
        self.scale = nn.Parameter(torch.ones((), device=device, dtype=dtype))
        self.norm = KernelNorm()

    def kernel(self, height: int, width: int, *, training: bool = False) -> Tensor:
        """Identity plus scaled kernel, over its norm."""
        with without_autocast(self.weight):
            weight = at_least_single(self.weight)
            identity = torch.zeros_like(weight)
            middle = self.kernel_size // 2
            identity[:, :, middle, middle].fill_diagonal_(1)
            kernel = torch.addcmul(identity, weight, at_least_single(self.scale))
            norm = self.norm(kernel, height, width, training=training)
            scaled: Tensor = kernel / norm.clamp_min(torch.finfo(norm.dtype).tiny)
            return scaled
