"""Block convolution orthogonal parametrisation: a k x k orthogonal convolution as a product of small factors.

Each factor moves one half of the channel space by one pixel and leaves the other half in place,

    (F y)(p) = (I - P) y(p) + P y(p - s),        P = U U^T,

with U of orthonormal columns and s one pixel down, up, right or left. On a torus F is orthogonal: P and I - P
are complementary projections and a shift is a permutation. A pair of factors, one per axis, is the 2 x 2
block convolution with taps PQ, P(I - Q), (I - P)Q, (I - P)(I - Q) of the reference below; k - 1 pairs and a
matrix H with orthonormal rows or columns make a k x k kernel. Pairs alternate between forward and backward
shifts, so the kernel is centred, and equal projections in consecutive pairs cancel to the identity.

Reference: Q. Li, S. Haque, C. Anil, J. Lucas, R. Grosse, J.-H. Jacobsen, Preventing gradient attenuation in
Lipschitz constrained convolutional networks, NeurIPS 2019, section 4 and appendix on block convolutions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.blocks import gram, inverse_cholesky, times_lower_adjoint
from lipcert.kernels.functions import rows_together
from lipcert.kernels.precision import without_autocast

SHORT = 4
"""Pixels of an axis up to which one follows from the others; in bfloat16 it collects their roundings."""


def bcop_kernel(matrix: Tensor, bases: Tensor) -> Tensor:
    """The kernel of H and its factors, as circular cross-correlation.

    Kernels of growing size are multiplied by one factor after the other, each at the price of two matrix
    products with a half-rank basis.

    Args:
        matrix: H, (out, in), orthonormal rows or columns.
        bases: U of every factor, (2 (k - 1), c, r) with c = max(in, out), orthonormal columns; in the order
            in which the factors act on the wide side of H, alternating between vertical and horizontal.

    Returns:
        (out, in, k, k) with k = 1 + len(bases) / 2.
    """
    out_channels, in_channels = matrix.shape
    expands = in_channels <= out_channels
    # taps[i] holds, for each tap, row i of the kernel's transpose (expanding) or of the kernel: the factors'
    # side last.
    taps = (matrix.T if expands else matrix)[:, None, None, :]
    order = range(len(bases)) if expands else reversed(range(len(bases)))
    for index in order:
        moved = (taps @ bases[index]) @ bases[index].T
        low, high = (1, 0) if _shift(index) > 0 else (0, 1)
        axis = (0, 0) * (2 - index % 2)  # F.pad counts from the last axis: channels, columns, rows
        taps = F.pad(moved, (*axis, high, low)) + F.pad(taps - moved, (*axis, low, high))
    return taps.permute(3, 0, 1, 2) if expands else taps.permute(0, 3, 1, 2)


def bcop_transform(x: Tensor, matrix: Tensor, bases: Tensor) -> Tensor:
    """Apply H and its factors one by one to maps (N, in, H, W); the same map as `bcop_kernel` convolved.

    Costs 2 (k - 1) c^2 + in * out products per pixel and no kernel is built, which wins where maps are small
    and channels many.
    """
    out_channels, in_channels = matrix.shape
    y = x.permute(0, 2, 3, 1)
    if in_channels <= out_channels:
        y = y @ matrix.T
    for index, basis in enumerate(bases):
        half = y @ basis
        y = y + (torch.roll(half, _shift(index), 1 + index % 2) - half) @ basis.T
    if in_channels > out_channels:
        y = y @ matrix.T
    return y.permute(0, 3, 1, 2)


def half_shifts(y: Tensor, spans: Tensor) -> Tensor:
    r"""Apply the factors whose projections are on the spans of any columns B, for training.

    With B^T B = L L^T the columns of U = B L^-T are orthonormal. F y = y + U (S - I) U^T y depends on their
    span alone, so that its gradient is orthogonal to it:

        dU = (S y - F y)^T (g U) + (S^T g - F^T g)^T (y U),    dB = dU L^-1,

    which takes nothing but what F and F^T have computed on their way. What a shift changes sums up to zero
    along its axis: on an axis of two pixels half of the products suffice, on one of four three quarters.

    Guarantee: the singular values of U are within 32 k^2 machine epsilons of `spans.dtype` of 1
    (measured with a margin), k the condition number of B; small ones fall below 1 where that is more than 1.

    Args:
        y: maps, (N, H, W, c), in any precision.
        spans: B of every factor, (k, c, r), in the order of `bcop_transform`.
    """
    with without_autocast(y):
        result: Tensor = _HalfShifts.apply(y, spans)[0]  # type: ignore[no-untyped-call]
        return result


class _HalfShifts(torch.autograd.Function):
    """All factors; with L^-1, U, and of every factor y U and S y - F y."""

    @staticmethod
    def forward(y: Tensor, spans: Tensor) -> tuple[Tensor, ...]:
        square = gram(spans.mT)
        # More than Cholesky's rounding, so that it exists; the largest row sum is a bound on the norm.
        size = square.abs().sum(-1).amax(-1).clamp_min(torch.finfo(square.dtype).tiny ** 0.5)
        square.diagonal(dim1=-2, dim2=-1).add_(16 * torch.finfo(square.dtype).eps * size[:, None])
        inverse = inverse_cholesky(square)
        bases = times_lower_adjoint(spans, inverse).to(y.dtype)
        kept: list[Tensor] = []
        for index, basis in enumerate(bases):
            y, *parts = _half_shift(y, basis, index, 1)
            kept += parts
        return y, inverse, bases, *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        inverse, bases, *kept = ctx.saved_tensors
        result = torch.empty(bases.shape, dtype=inverse.dtype, device=inverse.device)
        with without_autocast(grad):
            for index in reversed(range(len(bases))):
                half, rest = (part.flatten(0, -2) for part in kept[2 * index : 2 * index + 2])
                grad, *parts = _half_shift(grad, bases[index], index, -1)
                half_back, rest_back = (part.flatten(0, -2) for part in parts)
                total = (rest.T @ half_back).to(result.dtype) + rest_back.T @ half
                result[index] = total.to(bases.dtype) @ inverse[index].to(bases.dtype)
        return grad, result

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], y: Tensor, spans: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        """A batch of batches is a larger batch."""
        return rows_together(_HalfShifts, info, in_dims, y, spans)


def _half_shift(y: Tensor, basis: Tensor, index: int, direction: int) -> tuple[Tensor, Tensor, Tensor]:
    """F y (F^T y for direction -1), and the two parts that the gradient of U is made of.

    These are y U and S y - F y. On a short axis they are x U and x - x U U^T: x is D y, D = S - I, without
    the last pixel, which is minus the sum of the others; for F^T it is the difference of y and its last
    pixel, since D^T takes constants to zero.
    """
    axis, shift = 1 + index % 2, direction * _shift(index)
    if not 2 <= y.shape[axis] <= SHORT:
        half = y @ basis
        result = y + (torch.roll(half, shift, axis) - half) @ basis.T
        return result, half, torch.roll(y, shift, axis) - result
    some = y.shape[axis] - 1
    first, last = torch.split(y, [some, 1], axis)
    inside = torch.roll(y, shift, axis).narrow(axis, 0, some) - first if direction > 0 else first - last
    half = inside @ basis
    moved = half @ basis.T
    result = y.clone()
    if direction > 0:
        result.narrow(axis, 0, some).add_(moved)
        result.narrow(axis, some, 1).sub_(moved.sum(axis, keepdim=True))
    else:
        result.narrow(axis, 0, some).sub_(moved)
        result.add_(torch.roll(F.pad(moved, (*(0, 0) * (3 - axis), 0, 1)), shift, axis))
    return result, half, inside - moved


def _shift(index: int) -> int:
    """Pixels by which factor `index` moves its half: pairs go forward and back in turn."""
    return 1 if index // 2 % 2 == 0 else -1
