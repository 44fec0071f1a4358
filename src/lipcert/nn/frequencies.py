"""Layers that are one matrix per spatial frequency: how the matrices are made, applied and frozen.

A kernel of 1 x 1 has the same matrix at every frequency. It is passed around as one matrix (out, in) and
applied to pixels, without Fourier transforms; all others are stacks (F, out, in) in the order of `rfft2`.
"""

import torch
from torch import Tensor

from lipcert.kernels.circular import kernel_spectrum, pointwise, spectral_conv2d
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.operators.convolution import CircularConvolution, SpectralConvolution
from lipcert.operators.operator import Operator


def kernel_matrices(kernel: Tensor, height: int, width: int) -> Tensor:
    """Matrices of a circular convolution with a kernel (out, in, k, k) on maps of height x width."""
    return kernel[:, :, 0, 0] if kernel.shape[-1] == 1 else kernel_spectrum(kernel, height, width)


def apply_matrices(x: Tensor, matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply every Fourier coefficient, or every pixel, of maps (N, in, H, W) by its matrix.

    Args:
        x: maps.
        matrices: (F, out, in), or (out, in) for all pixels.
        dtype: of the layer, in which pixels are multiplied.
    """
    if matrices.dim() == 2:
        return pointwise(x, matrices.to(dtype))
    with without_autocast(x):  # Fourier transforms have no half precision
        return spectral_conv2d(at_least_single(x), matrices).to(x.dtype)


def freeze_matrices(
    matrices: Tensor, dtype: torch.dtype, bias: Tensor | None, size: tuple[int, int]
) -> Operator:
    """The same on maps of one size, as an operator with numbers of `dtype`."""
    if matrices.is_complex():
        matrices = torch.view_as_real(matrices.resolve_conj())
    matrices = matrices.to(dtype).contiguous()
    if matrices.dim() == 2:
        return CircularConvolution(matrices[:, :, None, None], bias)
    return SpectralConvolution(matrices, bias, size)
