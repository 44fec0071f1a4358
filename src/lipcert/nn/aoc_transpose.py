"""The transposed form of AOC: orthogonal convolutions that enlarge maps."""

import torch
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.circular import circular_conv_transpose2d
from lipcert.nn.aoc import AOC
from lipcert.nn.bias import copied_bias, new_bias
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.convolution import TransposedConvolution
from lipcert.operators.operator import Shape


class AOCTranspose2d(LipschitzModule):
    r"""The adjoint of an `AOC` layer in the place of `nn.ConvTranspose2d`, with circular padding.

        y = A^T x + b,     A = AOC(out_channels, in_channels, ...).

    Guarantee: the Jacobian has orthonormal columns or rows on every map, to `orthogonality_error`, for any
    weights.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 3 or 5, and 1 at stride 1.
        stride: 1, or 2 for maps of twice the height and width.
        bias: add a learnable bias per output channel.
        groups: splits input and output channels into so many groups, each with a kernel of its own.
        dilation: pixels from one tap to the next; odd at stride 2.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, stride * H, stride * W)

    Raises:
        ArgumentError: a kernel smaller than its stride, or what `AOC` does not take.

    >>> layer = AOCTranspose2d(16, 4, 3, stride=2)
    >>> layer(torch.zeros(1, 16, 5, 4)).shape
    torch.Size([1, 4, 10, 8])

    Reference: T. Boissin et al., 2025; see `lipcert.kernels.aoc`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        groups: int = 1,
        dilation: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.adjoint = AOC(
            out_channels, in_channels, kernel_size, stride=stride, bias=False, groups=groups,
            dilation=dilation, device=device, dtype=dtype,
        )  # fmt: skip
        if self.adjoint.rearranges:
            raise ArgumentError("kernel_size: AOCTranspose2d takes 3 or 5 at stride 2, got 1")
        self.bias = new_bias(out_channels, out_channels**-0.5, device, dtype) if bias else None

    @property
    def orthogonality_error(self) -> float:
        """That of the adjoint, which has the same singular values."""
        return self.adjoint.orthogonality_error

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to a batch of maps (N, in_channels, H, W)."""
        if x.dim() != 4:
            raise ArgumentError(
                f"AOCTranspose2d: expected a batch of maps (N, C, H, W), got shape {tuple(x.shape)}"
            )
        self.output_shape(tuple(x.shape[1:]))
        y = circular_conv_transpose2d(x, self.adjoint.current_kernel(), **self.adjoint.steps)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(1, -1, 1, 1)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, stride * H, stride * W); raises if the layer cannot take `input_shape`."""
        if len(input_shape) != 3 or input_shape[0] != self.adjoint.out_channels:
            raise ArgumentError(
                f"AOCTranspose2d: expected maps of {self.adjoint.out_channels} channels, got shape "
                f"{tuple(input_shape)}"
            )
        height, width = (self.adjoint.stride * side for side in input_shape[1:])
        return (self.adjoint.in_channels, height, width)

    def freeze(self, input_shape: Shape) -> TransposedConvolution:
        """One transposed convolution with the finished kernel."""
        self.output_shape(input_shape)
        with torch.inference_mode(False), torch.no_grad():
            kernel, bias = self.adjoint.frozen_kernel(), copied_bias(self.bias)
            return TransposedConvolution(kernel, bias, **self.adjoint.steps)
