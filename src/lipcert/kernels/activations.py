r"""Activations on pairs of channels: MaxMin, GroupSort and the Householder activation :math:`\sigma_\theta`.

Channel k is paired with channel k + C/2 (section 6 of the paper). All selections but those of folds are
`lerp` with weights 0 and 1, which returns one of its ends to the bit, unless their difference overflows:
`torch.where` does the same, but on CPUs its data-dependent branch costs more than ten times as much.

Error bounds count roundings in units of u, the unit roundoff of the dtype of z or of the parameters, the
coarser one; sine, cosine and exponential are taken to be within one unit in the last place, and nothing to
underflow. They are errors of evaluation: in exact arithmetic every map here is 1-Lipschitz.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.errors import ArgumentError
from lipcert.kernels.eager import eager
from lipcert.kernels.functions import Flags, OfSamples

CHANNELS_LAST = torch.channels_last
SHORT_RUN = 32
"""Numbers in a vector register in bfloat16; elementwise loops over shorter runs are ten times slower."""


def split(z: Tensor, group_size: int) -> tuple[Tensor, ...]:
    """Views of C / group_size consecutive channels each; group k is made of channel k of every view."""
    if z.dim() < 2 or not z.is_floating_point():
        raise ArgumentError(
            f"z: expected floating point (N, C) or (N, C, H, W), got {z.dtype} {tuple(z.shape)}"
        )
    if z.shape[1] % group_size:
        raise ArgumentError(f"z: expected a number of channels divisible by {group_size}, got {z.shape[1]}")
    return z.chunk(group_size, dim=1) if z.shape[1] else (z,) * group_size


def per_channel(table: Tensor, like: Tensor) -> Tensor:
    """Give coefficients (K, channels) the dtype of `like` and a shape that broadcasts against it K times."""
    spatial = like.shape[2:]
    table = table.to(like.dtype).view(len(table), 1, -1, *(1 for _ in spatial))
    # On a small contiguous map the innermost loop would have H * W steps, on few packed channels C; spread
    # out, it has C * H * W.
    if 1 < math.prod(spatial) < 64 and like.stride(1) != 1:
        table = table.expand(-1, -1, -1, *spatial).contiguous()
    elif like.dim() == 4 and like.stride(1) == 1 and like.stride(3) == like.shape[1] < SHORT_RUN:
        table = torch.stack(
            [t.expand(-1, -1, *spatial).contiguous(memory_format=CHANNELS_LAST) for t in table]
        )
    return table


def as_weights(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights 0 and 1 for `lerp` from bools; by way of uint8, whose conversion is vectorised."""
    return flags.view(torch.uint8).to(dtype)


def halves(z: Tensor) -> tuple[Tensor, Tensor]:
    """The halves of the channels: views or, where a view would fall into short runs, packed copies."""
    z1, z2 = z.chunk(2, dim=1)
    if z.dim() == 4 and z.stride(1) == 1 and z1.shape[1] < SHORT_RUN and z.shape[2] * z.shape[3] > 1:
        return z1.contiguous(memory_format=CHANNELS_LAST), z2.contiguous(memory_format=CHANNELS_LAST)
    return z1, z2


def _fill_halves(z: Tensor, z1: Tensor, write: Callable[[Tensor, Tensor], object]) -> Tensor:
    """A tensor like z, whose halves are what `write` puts into two places that are laid out like z1.

    The places are the halves themselves where the layouts agree, and packed ones that are copied over else.
    """
    y = torch.empty_like(z)
    first, second = y.chunk(2, dim=1)
    if first.stride() == z1.stride():
        write(first, second)
        return y
    packed_first, packed_second = torch.empty_like(z1), torch.empty_like(z1)
    write(packed_first, packed_second)
    first.copy_(packed_first)
    second.copy_(packed_second)
    return y


def apply(function: type[torch.autograd.Function], *arguments: Tensor) -> Tensor:
    """`function.apply` with a type."""
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _Exchange(OfSamples):
    """The linear map that swaps the pairs without `keep`; its own transpose, so also its own backward."""

    samples = (0, 1)

    @staticmethod
    def forward(z: Tensor, keep: Tensor) -> Tensor:
        z1, z2 = halves(z)
        weight = as_weights(keep, z.dtype)

        def write(y1: Tensor, y2: Tensor) -> None:
            torch.lerp(z2, z1, weight, out=y1)
            torch.lerp(z1, z2, weight, out=y2)

        return _fill_halves(z, z1, write)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return apply(_Exchange, grad, keep), None


class _Larger(Flags):
    """Where the first of a pair is larger."""

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        z1, z2 = halves(z)
        # Compare into z's own dtype, then to bool: a direct comparison to bool is not vectorised.
        return torch.gt(z1, z2, out=torch.empty_like(z1)).to(torch.bool)


class _MaxMin(OfSamples):
    @staticmethod
    def forward(z: Tensor) -> Tensor:
        z1, z2 = z.chunk(2, dim=1)
        y = torch.empty_like(z)
        y1, y2 = y.chunk(2, dim=1)
        torch.maximum(z1, z2, out=y1)
        torch.minimum(z1, z2, out=y2)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(apply(_Larger, inputs[0]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (keep,) = ctx.saved_tensors
        return apply(_Exchange, grad, keep)


@eager
def maxmin(z: Tensor) -> Tensor:
    r"""MaxMin, :math:`(z_1, z_2) \mapsto (\max(z_1, z_2), \min(z_1, z_2))` on every pair of channels.

    Guarantee: 1-Lipschitz and gradient norm preserving, exact in every precision (numbers only move).

    Shape: (N, C) or (N, C, H, W) with even C; the output has the same shape and memory format.

    Raises:
        ArgumentError: the number of channels is odd.

    >>> maxmin(torch.tensor([[1.0, 5.0, 3.0, 4.0]]))
    tensor([[3., 5., 1., 4.]])

    Reference: section 6 of the paper.
    """
    split(z, 2)
    return apply(_MaxMin, z)


def groupsort(z: Tensor, group_size: int) -> Tensor:
    r"""GroupSort: sort every group of channels in descending order.

    Group k consists of the channels k, k + C/g, ..., k + (g-1) C/g; so group size 2 is MaxMin to the bit.

    Guarantee: 1-Lipschitz and gradient norm preserving, exact in every precision (numbers only move).

    Shape: (N, C) or (N, C, H, W) with C divisible by `group_size`; the output has the same shape.

    Raises:
        ArgumentError: the number of channels is not divisible by `group_size`.

    >>> groupsort(torch.tensor([[1.0, 5.0, 2.0]]), 3)
    tensor([[5., 2., 1.]])
    """
    if group_size == 2:
        return maxmin(z)
    split(z, group_size)
    ordered = torch.unflatten(z, 1, (group_size, -1)).sort(dim=1, descending=True)[0].flatten(1, 2)
    return ordered.contiguous(memory_format=torch.channels_last) if _is_channels_last(z) else ordered


def _is_channels_last(z: Tensor) -> bool:
    return z.is_contiguous(memory_format=torch.channels_last) and not z.is_contiguous()


QUARTER_TURN = {
    torch.float64: 1.5707963267948966,
    torch.float32: 1.5707963705062866,
    torch.float16: 1.5703125,
    torch.bfloat16: 1.5703125,
}
"""Half of pi as each dtype stores it; numbers, so that nothing is read from a tensor."""


def deviation(theta: Tensor) -> Tensor:
    """Compute theta - pi/2 in at least float32, exactly 0 where theta holds pi/2 as its dtype stores it.

    So cos(theta) = -sin(deviation) = 0 and sin(theta) = cos(deviation) = 1 there, and the activations start
    as MaxMin to the bit; the cosine of float32's pi/2 would be -4.4e-8.
    """
    wide = theta.to(torch.promote_types(theta.dtype, torch.float32))
    return wide - QUARTER_TURN[theta.dtype]


def boundary(theta: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\sqrt 2 (\sin(\theta/2), \cos(\theta/2))`; equal to (1, 1) at pi/2 without rounding."""
    half = deviation(theta) / 2
    sine, cosine = half.sin(), half.cos()
    return cosine + sine, cosine - sine


class _Near(Flags):
    """Which pairs are on the side of their line that stays."""

    @staticmethod
    def forward(z: Tensor, theta: Tensor) -> Tensor:
        z1, z2 = halves(z)
        sine, cosine = boundary(theta)
        a, b = per_channel(torch.stack((sine, -cosine)), z1)
        return torch.mul(z1, a).addcmul_(z2, b).gt_(0).to(torch.bool)


class _Reflect(OfSamples):
    """Reflect the pairs without `keep` by the matrix (cos, sin; sin, -cos) of their theta.

    For fixed flags the map is linear in z and symmetric, so it carries gradients back as it carries z
    forward, and d y / d theta = (-y2, y1) at the reflected pairs: for theta the output is enough.
    """

    samples = (0, 2)

    @staticmethod
    def forward(z: Tensor, theta: Tensor, keep: Tensor) -> Tensor:
        z1, z2 = halves(z)
        turn = deviation(theta)
        sine, cosine = turn.cos(), -turn.sin()
        c, s, minus_c = per_channel(torch.stack((cosine, sine, -cosine)), z1)
        weight = as_weights(keep, z.dtype)

        def write(y1: Tensor, y2: Tensor) -> None:
            torch.mul(z1, c, out=y1).addcmul_(z2, s).lerp_(z1, weight)
            torch.mul(z1, s, out=y2).addcmul_(z2, minus_c).lerp_(z2, weight)

        return _fill_halves(z, z1, write)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, theta, keep = inputs
        ctx.save_for_backward(theta, keep, *((output,) if ctx.needs_input_grad[1] else ()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        theta, keep, *output = ctx.saved_tensors
        grad_z = apply(_Reflect, grad, theta, keep) if ctx.needs_input_grad[0] else None
        grad_theta = None
        if ctx.needs_input_grad[1]:
            torque = turning_moment(output[0], grad)
            torque = torch.addcmul(torque, torque, as_weights(keep, torque.dtype), value=-1)
            grad_theta = channel_sum(torque).to(theta.dtype)
        return grad_z, grad_theta, None


class _Fold(torch.autograd.Function):
    """z + max(-v^T z, 0) v for v of length sqrt(2): the same map as one fold along v, in half the passes.

    Close to the boundary it is as exact as `_Reflect`; away from it the smaller number of a pair is off by
    the rounding of the larger one. So it is for numbers of two bytes, where that is what rounding is anyway.
    On the boundary itself the gradient is that of the side that stays.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, theta: Tensor) -> Tensor:
        z1, z2 = z.chunk(2, dim=1)
        a, b = per_channel(torch.stack(boundary(theta)), z1)
        depth = torch.mul(z2, b).addcmul_(z1, a, value=-1).relu_()
        y = torch.empty_like(z)
        y1, y2 = y.chunk(2, dim=1)
        torch.addcmul(z1, depth, a, out=y1)
        torch.addcmul(z2, depth, b, value=-1, out=y2)
        ctx.kind = theta.dtype
        ctx.save_for_backward(a, b, depth, *((y,) if ctx.needs_input_grad[1] else ()))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        a, b, depth, *output = ctx.saved_tensors
        g1, g2 = grad.chunk(2, dim=1)
        along = _where_positive(torch.mul(g2, b).addcmul_(g1, a, value=-1), depth)
        grad_z = torch.empty_like(grad)
        first, second = grad_z.chunk(2, dim=1)
        torch.addcmul(g1, along, a, out=first)
        torch.addcmul(g2, along, b, value=-1, out=second)
        grad_theta = None
        if output:
            y1, y2 = output[0].chunk(2, dim=1)
            torque = torch.mul(y1, g2, out=along).addcmul_(y2, g1, value=-1)
            grad_theta = channel_sum(_where_positive(torque, depth)).to(ctx.kind)
        return grad_z, grad_theta


class _FoldByProducts(torch.autograd.Function):
    """`_Fold` of packed channels by matrix products, which read few channels at full speed.

    Elementwise loops over half the channels of a pixel do not. With w orthogonal to v, both of length
    sqrt(2), the turning moment of a folded pair is ((v^T y)(w^T g) - (w^T y)(v^T g)) / 2. A number that is
    not finite spoils all channels of its pixel, not its pair alone.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, theta: Tensor) -> Tensor:
        rows = _pixels(z)
        minus_v = _spread(*boundary(theta), z.dtype)
        depth = torch.mm(rows, minus_v).relu_()
        y = _maps(torch.addmm(rows, depth, -minus_v.T), z)
        ctx.save_for_backward(theta, minus_v, depth, *((y,) if ctx.needs_input_grad[1] else ()))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        theta, minus_v, depth, *output = ctx.saved_tensors
        rows = _pixels(grad)
        along = _where_positive(torch.mm(rows, minus_v), depth)
        grad_z = _maps(torch.addmm(rows, along, -minus_v.T), grad)
        grad_theta = None
        if output:
            # All channels of depth and along times all of grad and y, map by map; pairs are on two diagonals.
            maps = len(grad), grad.shape[2] * grad.shape[3]
            moments = torch.bmm(torch.unflatten(depth, 0, maps).mT, torch.unflatten(rows, 0, maps))
            moments.baddbmm_(torch.unflatten(along, 0, maps).mT, torch.unflatten(_pixels(output[0]), 0, maps))
            sine, cosine = boundary(theta)
            first, second = moments.sum(0, dtype=torch.float32).chunk(2, dim=1)
            grad_theta = ((cosine * first.diagonal() + sine * second.diagonal()) / 2).to(theta.dtype)
        return grad_z, grad_theta


def _has_short_runs(z: Tensor) -> bool:
    """Whether elementwise loops over half the channels of each pixel would crawl.

    On GPUs none does; and in float16 the sums of products could overflow, which nobody would want for speed.
    """
    if z.device.type != "cpu" or z.dtype != torch.bfloat16:
        return False
    return _is_channels_last(z) and math.prod(z.shape[2:]) > 1 and 0 < z.shape[1] // 2 < SHORT_RUN


def _where_positive(x: Tensor, depth: Tensor) -> Tensor:
    """`x` where depth > 0 and zero elsewhere, in place."""
    result: Tensor = torch.ops.aten.threshold_backward.grad_input(x, depth, 0, grad_input=x)
    return result


def _pixels(z: Tensor) -> Tensor:
    """(N, C, H, W) -> (N H W, C); a view of packed channels."""
    return z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])


def _maps(rows: Tensor, like: Tensor) -> Tensor:
    """The way back."""
    n, c, h, w = like.shape
    return rows.view(n, h, w, c).permute(0, 3, 1, 2)


def _spread(sine: Tensor, cosine: Tensor, dtype: torch.dtype) -> Tensor:
    """Matrix (C, C/2) that takes the channels to cosine * second half - sine * first half."""
    return torch.cat([torch.diag(-sine), torch.diag(cosine)]).to(dtype)


def turning_moment(y: Tensor, grad: Tensor) -> Tensor:
    """y1 g2 - y2 g1: how the loss changes when the pair (y1, y2) turns counterclockwise."""
    y1, y2 = halves(y)
    g1, g2 = halves(grad)
    return torch.mul(y1, g2).addcmul_(y2, g1, value=-1)


def channel_sum(x: Tensor) -> Tensor:
    """Sum over all axes but the channels, in at least float32.

    PyTorch sums bfloat16 in float32 too, yet for a sum that is to stay float32 it converts all numbers first.
    So the sum of one map is rounded to bfloat16, the sum of the maps is not.
    """
    if x.dtype == torch.bfloat16 and x.dim() > 2:
        x = x.sum(tuple(range(2, x.dim())))
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.sum((0, *range(2, x.dim())), dtype=wide)


@eager
def householder(z: Tensor, theta: Tensor) -> Tensor:
    r"""The Householder activation :math:`\sigma_\theta` of order 1 on every pair of channels.

    With :math:`v = (\sin(\theta/2), -\cos(\theta/2))`: z stays where :math:`v^T z > 0`, and is reflected to
    :math:`(I - 2 v v^T) z = (z_1 \cos\theta + z_2 \sin\theta,\ z_1 \sin\theta - z_2 \cos\theta)` elsewhere.

    Guarantee: 1-Lipschitz and gradient norm preserving for every real theta; MaxMin to the bit at pi/2, in
    float32 and float64. As computed, the output is within (|theta| + 48) u |z| of the exact one
    (docs/layers/activations.md).

    Args:
        z: input.
        theta: one angle per pair, (C/2,).

    Shape: (N, C) or (N, C, H, W) with even C; the output has the same shape and memory format.

    Raises:
        ArgumentError: the number of channels is odd, or does not fit theta.

    >>> householder(torch.tensor([[1.0, 2.0]]), torch.tensor([torch.pi / 2]))
    tensor([[2., 1.]])

    Reference: Corollary 1 of the paper.
    """
    pairs = split(z, 2)[0].shape[1]
    if theta.shape != (pairs,):
        raise ArgumentError(f"theta: expected one angle per pair, ({pairs},), got {tuple(theta.shape)}")
    if z.dtype.itemsize == 2:
        return apply(_FoldByProducts if _has_short_runs(z) else _Fold, z, theta)
    return apply(_Reflect, z, theta, apply(_Near, z, theta))
