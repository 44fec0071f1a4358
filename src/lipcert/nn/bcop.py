"""BCOP: orthogonal convolutions as products of half-shifts."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.kernels.bcop import bcop_kernel, bcop_transform, half_shifts
from lipcert.kernels.blocks import LEAF
from lipcert.kernels.circular import circular_conv2d
from lipcert.kernels.orthogonalize import orthonormal_basis, polar_factor
from lipcert.kernels.polar import polar_product, training_polar_factor
from lipcert.kernels.precision import at_least_single, without_autocast, working_dtype
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import Device, OrthogonalConv2d
from lipcert.nn.determined import refuse_undetermined
from lipcert.operators.convolution import CircularConvolution

LARGE = 256
"""Channels from which training takes polar factors and bases by products in place of LAPACK."""


@register_convolution("bcop")
class BCOP(OrthogonalConv2d):
    r"""Orthogonal convolution by block convolutions of half-rank projections, with circular padding.

        y = H F_n ... F_1 x   or   F_n ... F_1 H x,      F_j = I - P_j + P_j S_j,   n = 2 (k - 1),

    whichever keeps the factors on the side with more channels c = max(stride^2 in, out). H is the polar
    factor of `weight` (the limit of Bjorck's iteration), P_j projects on the span of the c // 2 columns of
    `bases[j]`, and S_j shifts by one pixel. A projection depends on that span alone, so `bases[j]` holds c //
    2 columns and not the c x c matrix of the reference, of which the other half would be thrown away.

    Guarantee: the Jacobian has orthonormal rows or columns on every map, to `orthogonality_error`, for any
    weights.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1, 3 or 5.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias per output channel.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    >>> layer = BCOP(3, 8, 3, stride=2)
    >>> layer, layer(torch.zeros(1, 3, 32, 32)).shape
    (BCOP(3, 8, kernel_size=3, stride=2), torch.Size([1, 8, 16, 16]))

    Reference: Q. Li et al., NeurIPS 2019; see `lipcert.kernels.bcop`.
    """

    kernel_sizes = (1, 3, 5)
    matrices: ClassVar = {"weight": "kernel", "bases": "stack"}
    head_method = "bjorck"
    bases: Tensor

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """H and the bases, orthonormal."""
        count, c = 2 * (self.kernel_size - 1), self.channels
        matrix = torch.randn(self.out_channels, self.map_channels, device=device, dtype=dtype)
        spans = torch.randn(count, c, c // 2, device=device, dtype=dtype)
        # Orthonormal at first: the gradient of an orthogonalisation is then the plain projection on the
        # tangent.
        self.weight = nn.Parameter(polar_factor(at_least_single(matrix)).to(matrix.dtype).contiguous())
        bases = orthonormal_basis(at_least_single(spans)).to(matrix.dtype).contiguous()
        if self.kernel_size == 1:
            # Empty. A parameter without a gradient would make several processes wait for it in vain.
            self.register_buffer("bases", bases)
        else:
            self.bases = nn.Parameter(bases)

    @property
    def orthogonality_error(self) -> float:
        """Measured with a margin: (2 k - 1) (8 + sqrt(c)) eps.

        Each of the 2 k - 1 orthogonalised matrices is off by a few eps, growing more slowly than sqrt(c).
        """
        eps = torch.finfo(self.weight.dtype).eps
        return float((2 * self.kernel_size - 1) * (8 + self.channels**0.5) * eps)

    def factors(self, *, any_condition: bool = True) -> tuple[Tensor, Tensor]:
        """H (out, stride^2 in) and the bases (2 (k - 1), c, c // 2) of the projections, orthonormal.

        Args:
            any_condition: as `polar_factor` takes it; a training step reads nothing back from its device.
        """
        with without_autocast(self.weight):
            matrix = polar_factor(at_least_single(self.weight), any_condition=any_condition)
            return matrix, orthonormal_basis(at_least_single(self.bases))

    def kernel(self, *, any_condition: bool = True) -> Tensor:
        """The kernel (out, stride^2 in, k, k) of the circular convolution, a function of the weights."""
        with without_autocast(self.weight):
            return bcop_kernel(*self.factors(any_condition=any_condition)).to(self.weight.dtype)

    def transform(self, x: Tensor) -> Tensor:
        """Convolve with the kernel, or apply the factors one by one where that takes fewer products."""
        if self.weights_are_constant():
            return circular_conv2d(x, self.derived(lambda: self.kernel().contiguous()))
        if not self._by_factors(x):
            return circular_conv2d(x, self.kernel(any_condition=not self.training))
        if self.training and self.channels >= LARGE:
            return self._train_by_factors(x)
        matrix, bases = self.factors(any_condition=not self.training)
        return bcop_transform(x, matrix.to(self.weight.dtype), bases.to(self.weight.dtype))

    def _train_by_factors(self, x: Tensor) -> Tensor:
        """The same by `half_shifts` and polar factors of training: in norm to `TRAINING_ERROR`."""
        y = x.permute(0, 2, 3, 1).to(working_dtype(x))
        weight, spans = at_least_single(self.weight), at_least_single(self.bases)
        expands = self.map_channels <= self.out_channels
        y = half_shifts(self._times_matrix(y, weight), spans) if expands else half_shifts(y, spans)
        return (y if expands else self._times_matrix(y, weight)).permute(0, 3, 1, 2)

    @staticmethod
    def _times_matrix(y: Tensor, weight: Tensor) -> Tensor:
        """Every pixel times H, which is not formed where there are few pixels."""
        rows, pixels = min(weight.shape), y.shape[:-1].numel()
        if rows <= LEAF:
            return F.linear(y, polar_factor(weight, any_condition=False).to(y.dtype))
        if len(weight) == rows and 2 * pixels <= rows:
            return polar_product(y.flatten(0, 2), weight).view(*y.shape[:-1], rows)
        return F.linear(y, training_polar_factor(weight).to(y.dtype))

    def freeze_transform(self, height: int, width: int) -> CircularConvolution:
        """One circular convolution with the finished kernel."""
        refuse_undetermined(self, self.weight, self.bases)
        return CircularConvolution(self.kernel().contiguous(), self.frozen_bias())

    def _by_factors(self, x: Tensor) -> bool:
        """Whether the factors, applied to every pixel, take no more multiplications than the kernel.

        A factor has c^2 of them. To build the kernel it is applied to each tap that there is so far.
        """
        rows, c = min(self.map_channels, self.out_channels), self.channels
        pixels = x.shape[0] * x.shape[2] * x.shape[3]
        taps = sum(j * j + j * (j + 1) for j in range(1, self.kernel_size))
        by_kernel = taps * rows * c**2 + pixels * self.kernel_size**2 * rows * c
        return pixels * (len(self.bases) * c**2 + rows * c) <= by_kernel
