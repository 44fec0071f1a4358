"""Cayley: orthogonal convolutions by a Cayley transform at every spatial frequency."""

import copy
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from lipcert.kernels.blocks import LEAF
from lipcert.kernels.cayley import cayley_product, cayley_transform
from lipcert.kernels.circular import on_pixels
from lipcert.kernels.precision import at_least_single, without_autocast, working_dtype
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import Device, OrthogonalConv2d
from lipcert.nn.determined import refuse_large_scale
from lipcert.nn.frequencies import apply_matrices, freeze_matrices, kernel_matrices
from lipcert.operators.operator import Operator


@register_convolution("cayley")
class Cayley(OrthogonalConv2d):
    r"""Orthogonal convolution whose Fourier coefficients are Cayley transforms, with circular padding.

        Y(w) = cayley(scale * K(w) / ||K||_F) X(w)     for every frequency w of the map,

    with K(w) the Fourier transform of `weight` and one learnable scale, at first ||K||_F. With stride 2 a 3 x
    3 kernel becomes 1 x 1 after the space-to-depth, as in the reference. A 1 x 1 kernel is the same matrix at
    every frequency, so it is transformed once and applied without Fourier transforms. The norm is that of the
    kernel, not that of its transform, so that the weights mean the same on every map size.

    Guarantee: the Jacobian has orthonormal rows or columns on every map, to `orthogonality_error`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1 or 3.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias per output channel.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    >>> layer = Cayley(3, 8, 3)
    >>> layer, layer(torch.zeros(1, 3, 7, 5)).shape
    (Cayley(3, 8, kernel_size=3, stride=1), torch.Size([1, 8, 7, 5]))

    Reference: A. Trockman and J. Z. Kolter, ICLR 2021.
    """

    kernel_sizes = (1, 3)
    matrices: ClassVar = {"weight": "kernel"}
    head_method = "cayley"

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """The kernel and its scale."""
        taps = self.kernel_size if self.stride == 1 else 1
        limit = (self.map_channels * taps * taps) ** -0.5
        weight = torch.empty(self.out_channels, self.map_channels, taps, taps, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight.uniform_(-limit, limit))
        self.scale = nn.Parameter(torch.linalg.vector_norm(self.weight.detach()))

    @property
    def orthogonality_error(self) -> float:
        """Measured with a margin: (8 + sqrt(c)) eps (1 + a)^2, c = max(stride^2 in, out).

        Here a bounds the norms of all scale * K(w) / ||K||_F; the inverse in the
        transform has a condition number of at most 1 + 2 a + a^2.
        """
        eps = torch.finfo(self.weight.dtype).eps
        return float((8 + self.channels**0.5) * eps * (1 + self._norm_bound()) ** 2)

    def scaled_kernel(self) -> Tensor:
        """The kernel scale * K / ||K||_F, in at least single precision."""
        weight, scale = at_least_single(self.weight), at_least_single(self.scale)
        norm = torch.linalg.vector_norm(weight).clamp_min(torch.finfo(weight.dtype).tiny)
        kernel: Tensor = weight * (scale / norm)
        return kernel

    def spectrum(self, height: int, width: int) -> Tensor:
        """(F, out, stride^2 in), a matrix per frequency of `rfft2` on the map; only one, (out, stride^2 in),
        if K is 1 x 1.
        """
        with without_autocast(self.weight):
            return cayley_transform(kernel_matrices(self.scaled_kernel(), height, width))

    def transform(self, x: Tensor) -> Tensor:
        """Multiply every Fourier coefficient, or every pixel, by its matrix."""
        size = (x.shape[2], x.shape[3])
        if self._few_pixels(x):
            kernel, dtype = self.scaled_kernel(), working_dtype(x)
            return on_pixels(x, lambda pixels: cayley_product(pixels.to(dtype), kernel[:, :, 0, 0]))
        return apply_matrices(x, self.derived(lambda: self.spectrum(*size), size), self.weight.dtype)

    def freeze_transform(self, height: int, width: int) -> Operator:
        """The finished matrices: per frequency, or one for all pixels if K is 1 x 1."""
        refuse_large_scale(self, copy.deepcopy(self).double().orthogonality_error)
        matrices = self.spectrum(height, width)
        return freeze_matrices(matrices, self.weight.dtype, self.frozen_bias(), (height, width))

    def _few_pixels(self, x: Tensor) -> bool:
        """Whether a training step is faster without the matrix: the map has fewer pixels than it has rows."""
        rows = self.out_channels
        one_matrix = self.weight.shape[-1] == 1 and rows <= self.map_channels
        pixels = x.shape[0] * x.shape[2] * x.shape[3]
        return self.training and one_matrix and rows > LEAF and 2 * pixels <= rows

    @torch.no_grad()
    def _norm_bound(self) -> float:
        """Bound on the norm of the scaled kernel at any frequency: k times that of a matrix reshape."""
        kernel = self.scaled_kernel().double()
        if not kernel.isfinite().all():
            return math.inf
        size = kernel.shape[-1]
        rows = kernel.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
        columns = kernel.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)
        return float(size * min(torch.linalg.matrix_norm(m, 2) for m in (rows, columns)))
