"""Skew-symmetric convolution kernels: their free taps, and the way back from the gradient of a full kernel.

A kernel K of shape (c, c, k, k) acts on zero-padded maps, y[o, p] = sum_{i, t} K[o, i, t] x[i, p + t]. The
transposed operator has the kernel with input and output channels swapped and both spatial axes flipped, so A
is skew exactly when K[o, i, t] = -K[i, o, -t]: the taps on one side of the centre determine those on the
other, and the centre tap is a skew matrix. Kernels are therefore held as (k*k + 1) / 2 matrices, the centre
tap first and then the taps that follow it in raster order. That is half the memory of the full kernel, every
operation on weights costs half, and skewness is exact in floating point because negation is.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.functions import OfWeights


def skew_taps(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Free parameters (T, c, c) -> taps of a skew kernel, centre first.

    The centre is (W_0 - W_0^T) / sqrt(2) and the other taps are W_j themselves. Up to one common factor,
    which normalisation takes out, gradient descent, weight decay and normal initialisation then act on the
    kernel just as they do through the skew part (M - M^T) / 2 of a full c x c x k x k parameter M (whose
    symmetric part moves nothing), at half the size.
    """
    dtype = weight.dtype if dtype is None else dtype
    result: Tensor = _SkewTaps.apply(weight, dtype)  # type: ignore[no-untyped-call]
    return result


class _SkewTaps(OfWeights):
    """One pass over the weights in each direction, the change of dtype included."""

    @staticmethod
    def forward(weight: Tensor, dtype: torch.dtype) -> Tensor:
        return _with_skew_centre(weight, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _with_skew_centre(grad, ctx.dtype), None


def _with_skew_centre(taps: Tensor, dtype: torch.dtype) -> Tensor:
    """The taps in another dtype, with (M - M^T) / sqrt(2) in place of the centre M: a symmetric map."""
    result = torch.empty_like(taps, dtype=dtype)
    # The lower of the two precisions is enough, exact negation keeps the result skew, and a transposed copy
    # is blocked by cache lines where elementwise reads of a transpose are not.
    centre = taps[0].to(dtype) if dtype.itemsize < taps.dtype.itemsize else taps[0]
    torch.sub(centre, centre.T.contiguous(), out=result[0]).mul_(sqrt(0.5))
    result[1:] = taps[1:]
    return result


def every_tap(taps: Tensor) -> Tensor:
    """Held taps (T, c, c), centre first, -> all k*k taps in raster order."""
    before = [-tap.T.contiguous() for tap in reversed(taps[1:])]
    return torch.stack([*before, *taps])


def kernel_from_taps(taps: Tensor) -> Tensor:
    """Held taps (T, c, c), centre first, -> the full kernel (c, c, k, k); in memory it is one tap by one."""
    size = kernel_size(taps)
    return every_tap(taps).permute(1, 2, 0).view(*taps.shape[1:], size, size)


def kernel_size(taps: Tensor) -> int:
    """Side of the kernel that these taps are held for."""
    return round(sqrt(2 * len(taps) - 1))


def fold_gradient(full: Tensor, factor: float, channels: int, total: Tensor | None) -> Tensor:
    """Gradient of all taps (k*k, o, i) -> factor times that of the held ones (T, c, c), added to `total` in
    place.

    K[-t] = -K[t]^T, so what moves tap t moves tap -t the other way. The centre is its own mirror image; its
    gradient is left as it is, for `skew_taps` takes the skew part.
    """
    centre, (_, o, i) = len(full) // 2, full.shape
    total = full.new_zeros(centre + 1, channels, channels) if total is None else total
    total[:, :o, :i].add_(full[centre:], alpha=factor)
    total[1:, :i, :o].sub_(full[:centre].flip(0).transpose(1, 2), alpha=factor)
    return total
