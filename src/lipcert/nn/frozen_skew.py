"""Inference forms of SOC: a polynomial in a stored skew kernel and, for tiny maps, one matrix."""

from itertools import pairwise
from math import prod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError, NotProvedError
from lipcert.functional.modulus import polynomial_modulus_upper_bound
from lipcert.functional.skew import SkewOperator
from lipcert.functional.spectral import matrix_norm_upper_bound, zero_padded_convolution_norm_upper_bound
from lipcert.functional.taps import taps_from_kernel, transpose_kernel
from lipcert.nn.frozen_circular import FrozenConv2d
from lipcert.nn.lipschitz import LipschitzModule, Shape, WeightCache


class FrozenSeries(FrozenConv2d):
    """y = p(A) x + b on zero-padded maps, A the convolution of a stored kernel that is exactly skew.

    Args:
        kernel: (c, c, k, k) with kernel[o, i, t] = -kernel[i, o, -t] to the bit.
        coefficients: of p, from the constant term up.
        in_channels: channels of the input, before the space-to-depth of stride 2.
        out_channels: how many of the c channels are kept.
        stride: 1 or 2.
        bias: (out_channels,) or None.

    Guarantee: `lipschitz_bound` is max |p(iy)| over |y| <= rho for a proved rho >= ||A||, because a
    polynomial of a skew operator is normal; padding with zero channels and dropping channels never increase
    a norm.
    """

    kernel: Tensor

    def __init__(
        self,
        kernel: Tensor,
        coefficients: tuple[float, ...],
        *,
        in_channels: int,
        out_channels: int,
        stride: int,
        bias: Tensor | None,
    ) -> None:
        super().__init__(in_channels, out_channels, bias, stride)
        if len(coefficients) < 2:
            raise ArgumentError(
                f"coefficients: expected those of a polynomial of degree 1 or more, got {coefficients}"
            )
        channels, size = kernel.shape[0], kernel.shape[-1]
        if kernel.shape != (channels, channels, size, size) or not size % 2:
            raise ArgumentError(f"kernel: expected (c, c, k, k) with k odd, got shape {tuple(kernel.shape)}")
        self.coefficients = coefficients
        self.register_buffer("kernel", kernel.detach().contiguous(memory_format=torch.channels_last))
        self.cache = WeightCache()

    def transform(self, x: Tensor) -> Tensor:
        """p(A) x on (N, stride^2 * in_channels, H, W)."""
        return self._polynomial(x, self.out_channels, self.coefficients)

    def adjoint(self, y: Tensor) -> Tensor:
        """The layer's transpose, p(A)^T y = p(-A) y, back to (N, in_channels, H, W)."""
        signed = tuple(c * (-1) ** j for j, c in enumerate(self.coefficients))
        x = self._polynomial(y, self.stride**2 * self.in_channels, signed)
        return F.pixel_shuffle(x, 2) if self.stride == 2 else x

    def _polynomial(self, x: Tensor, keep: int, coefficients: tuple[float, ...]) -> Tensor:
        if torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type):
            x = x.to(self.kernel.dtype)  # a layer in front may have made it bfloat16
        size = tuple(x.shape[2:])
        operator = self.cache.get((self.kernel,), lambda: SkewOperator(self._taps(), *size), size)
        return operator.series(x, coefficients, torch.ones((), device="cpu"), keep)

    def _taps(self) -> Tensor:
        if not torch.equal(transpose_kernel(self.kernel), -self.kernel):
            raise NotProvedError(
                "FrozenSeries: the kernel is not skew, so nothing is known of p(A); freeze again"
            )
        return taps_from_kernel(self.kernel)

    def operator_norm_bound(self, input_shape: Shape) -> float:
        """A proved rho >= ||A|| on maps of this size."""
        self._taps()
        _, height, width = self.output_shape(input_shape)
        return zero_padded_convolution_norm_upper_bound(self.kernel, height, width)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Max |p(iy)| over |y| <= rho, a scalar problem that is solved exactly."""
        return polynomial_modulus_upper_bound(self.coefficients, self.operator_norm_bound(input_shape))

    def extra_repr(self) -> str:
        """The sizes and the degree."""
        size, degree = self.kernel.shape[-1], len(self.coefficients) - 1
        return f"{super().extra_repr()}, kernel_size={size}, degree={degree}"


class FrozenMatrix(LipschitzModule):
    """y = M x + b with one dense matrix over all pixels and channels of maps of one size.

    Args:
        matrix: (output size, input size), over channels, then rows, then columns.
        bias: one number per output channel, or None.
        input_shape: (C, H, W) of the maps it takes.
        output_shape: (C', H', W') of the maps it makes.
    """

    matrix: Tensor
    bias: Tensor | None

    def __init__(self, matrix: Tensor, bias: Tensor | None, input_shape: Shape, output_shape: Shape) -> None:
        super().__init__()
        self.takes, self.makes = tuple(input_shape), tuple(output_shape)
        pixels = output_shape[1] * output_shape[2]
        self.register_buffer("matrix", matrix.detach())
        self.register_buffer("bias", None if bias is None else bias.detach().repeat_interleave(pixels))

    @classmethod
    @torch.no_grad()
    def of(cls, layer: FrozenSeries, input_shape: Shape, chunk: int = 512) -> Self:
        """The matrix that `layer` applies to maps of one shape, found from the side that has fewer
        vectors.
        """
        output_shape = layer.output_shape(input_shape)
        inputs, outputs = prod(input_shape), prod(output_shape)
        function, shape = (layer.linear, input_shape) if inputs <= outputs else (layer.adjoint, output_shape)
        images = []
        for start in range(0, prod(shape), chunk):
            count = min(chunk, prod(shape) - start)
            basis = layer.kernel.new_zeros(count, prod(shape))
            basis[range(count), range(start, start + count)] = 1
            images.append(function(basis.view(count, *shape)).flatten(1))
        matrix = torch.cat(images)
        matrix = matrix.T.contiguous() if inputs <= outputs else matrix
        return cls(matrix, layer.bias, input_shape, output_shape)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the matrix to a batch of maps."""
        self.output_shape(tuple(x.shape[1:]))
        return F.linear(x.flatten(1), self.matrix, self.bias).view(-1, *self.makes)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The one shape it makes of the one shape it takes."""
        if tuple(input_shape) != self.takes:
            raise ArgumentError(
                f"FrozenMatrix: frozen for maps of shape {self.takes}, got {tuple(input_shape)}; "
                "freeze the model for that shape"
            )
        return self.makes

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Proved bound on the largest singular value of the stored matrix."""
        self.output_shape(input_shape)
        return matrix_norm_upper_bound(self.matrix)

    def extra_repr(self) -> str:
        """Shapes."""
        return f"{self.takes} -> {self.makes}"


def matrix_is_cheaper(layer: FrozenSeries, input_shape: Shape) -> bool:
    """Cost model: multiplications per image.

    A matrix costs rows x columns multiplications per image, the series a full convolution per degree but for
    the channels that the first does not read and the last does not write. Matrices beyond 2^26 entries (256
    MiB in float32) are never worth their memory.
    """
    out, height, width = layer.output_shape(input_shape)
    entries = prod(input_shape) * out * height * width
    channels, size = layer.kernel.shape[0], layer.kernel.shape[-1]
    degree = len(layer.coefficients) - 1
    widths = [layer.in_channels * layer.stride**2, *[channels] * (degree - 1), out]
    series = sum(a * b for a, b in pairwise(widths)) * size**2 * height * width
    return entries <= 2**26 and entries < series
