"""LOT: orthogonal convolutions by a polar factor at every spatial frequency."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from lipcert.kernels.orthogonalize import polar_factor
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import Device, OrthogonalConv2d
from lipcert.nn.determined import refuse_undetermined
from lipcert.nn.frequencies import apply_matrices, freeze_matrices, kernel_matrices
from lipcert.operators.operator import Operator

SPREAD = 0.25
"""Size of the taps at first, beside an orthonormal one in the middle: their norm at a frequency is about
twice that, so that no frequency starts near a singular matrix."""


@register_convolution("lot")
class LOT(OrthogonalConv2d):
    r"""Orthogonal convolution whose Fourier coefficients are polar factors, with circular padding.

        Y(w) = V(w) (V(w)^H V(w))^(-1/2) X(w)     for every frequency w of the map,

    with V(w) the Fourier transform of `weight`: of all orthogonal convolutions the one nearest to that of the
    kernel, in the Frobenius norm. With stride 2 a 3 x 3 kernel becomes 1 x 1 after the space-to-depth. A 1 x
    1 kernel is the same matrix at every frequency, so it is orthogonalised once and applied without Fourier
    transforms. The length of the kernel does not matter.

    Guarantee: the Jacobian has orthonormal rows or columns on every map, to `orthogonality_error`, for any
    weights; weights whose polar factor is not determined, with a condition number beyond 1e4 at some
    frequency, are refused when the layer is frozen.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1 or 3.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias per output channel.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    >>> layer = LOT(3, 8, 3)
    >>> layer, layer(torch.zeros(1, 3, 7, 5)).shape
    (LOT(3, 8, kernel_size=3, stride=1), torch.Size([1, 8, 7, 5]))

    Reference: X. Xu, L. Li and B. Li, NeurIPS 2022.
    """

    kernel_sizes = (1, 3)
    matrices: ClassVar = {"weight": "kernel"}
    head_method = "bjorck"

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """A kernel near an orthogonal matrix in its middle."""
        taps = self.kernel_size if self.stride == 1 else 1
        weight = torch.randn(self.out_channels, self.map_channels, taps, taps, device=device, dtype=dtype)
        centre = polar_factor(at_least_single(weight[:, :, taps // 2, taps // 2])).to(weight.dtype)
        weight *= SPREAD / (taps * self.channels**0.5)
        weight[:, :, taps // 2, taps // 2] = centre
        self.weight = nn.Parameter(weight)

    @property
    def orthogonality_error(self) -> float:
        """Measured with a margin: 2 (8 + sqrt(c)) eps, c = max(stride^2 in, out)."""
        return float(2 * (8 + self.channels**0.5) * torch.finfo(self.weight.dtype).eps)

    def spectrum(self, height: int, width: int, *, any_condition: bool = True) -> Tensor:
        """(F, out, stride^2 in), a matrix per frequency of `rfft2` on the map; only one, (out, stride^2 in),
        if the kernel is 1 x 1.

        Args:
            height: of the map.
            width: of the map.
            any_condition: as `polar_factor` takes it; a training step reads nothing back from its device.
        """
        with without_autocast(self.weight):
            matrices = kernel_matrices(at_least_single(self.weight), height, width)
            return polar_factor(matrices, any_condition=any_condition)

    def transform(self, x: Tensor) -> Tensor:
        """Multiply every Fourier coefficient, or every pixel, by its matrix."""
        size = (x.shape[2], x.shape[3])
        matrices = self.derived(lambda: self.spectrum(*size, any_condition=not self.training), size)
        return apply_matrices(x, matrices, self.weight.dtype)

    def freeze_transform(self, height: int, width: int) -> Operator:
        """The finished matrices: per frequency, or one for all pixels if the kernel is 1 x 1."""
        refuse_undetermined(self, kernel_matrices(at_least_single(self.weight), height, width))
        matrices = self.spectrum(height, width)
        return freeze_matrices(matrices, self.weight.dtype, self.frozen_bias(), (height, width))
