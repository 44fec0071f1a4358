"""AOL: almost-orthogonal convolutions by a rescaling of channels."""

from typing import ClassVar

import torch
from torch import Tensor

from lipcert.kernels.gram import almost_orthogonal
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import Device
from lipcert.nn.explicit import ExplicitConv2d, near_orthogonal


@register_convolution("aol")
class AOL(ExplicitConv2d):
    r"""Convolution whose channels are divided by sqrt(sum over b and taps of |W W^T|_ab).

    Channels are outputs, or inputs where those are fewer. Training drives such layers towards orthogonal
    ones, whose channels have nothing in common, since the others lose length. Zeros around the map.

    Guarantee: norm at most 1 for all weights, by construction; `lipschitz_bound` is that of the finished
    kernel, often less.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1, 3 or 5.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias per output channel.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    >>> layer = AOL(3, 8, 3, stride=2)
    >>> layer, layer(torch.zeros(1, 3, 32, 32)).shape
    (AOL(3, 8, kernel_size=3, stride=2), torch.Size([1, 8, 16, 16]))

    Reference: B. Prach and C. H. Lampert, ECCV 2022; see `lipcert.kernels.gram`.
    """

    kernel_sizes = (1, 3, 5)
    matrices: ClassVar = {"weight": "kernel"}

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """A kernel near an orthogonal matrix in its middle."""
        self.weight = near_orthogonal(
            self.out_channels, self.map_channels, self.kernel_size, device=device, dtype=dtype
        )

    def kernel(self, height: int, width: int, *, training: bool = False) -> Tensor:
        """The rescaled kernel, the same for maps of every size."""
        return almost_orthogonal(self.weight)
