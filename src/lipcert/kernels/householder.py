"""Householder activations of more than two linear regions: order n, chains, more dimensions."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.activations import (
    apply,
    boundary,
    channel_sum,
    deviation,
    householder,
    per_channel,
    split,
    turning_moment,
)
from lipcert.kernels.eager import eager
from lipcert.kernels.functions import Flags, OfSamples
from lipcert.kernels.precision import without_autocast

MAX_ORDER = 128
"""Sector numbers 0 to 2n - 1 have to be exact in uint8 and in bfloat16."""


def sector_widths(widths: Tensor) -> tuple[Tensor, Tensor]:
    r"""Angles of the n reflecting (det -1) and of the n turning (det +1) sectors from any real numbers.

    Each family is :math:`\pi` times the softmax of its n - 1 numbers and a 0 for its last sector, so its
    widths are positive and sum to :math:`\pi`, which is the condition of Theorem 2.

    Args:
        widths: (2, n - 1, pairs); [0] is for the reflecting sectors, [1] for the turning ones.

    Returns:
        two tensors (n, pairs).
    """
    shares = F.softmax(
        F.pad(widths, (0, 0, 0, 1)), dim=1, dtype=torch.promote_types(widths.dtype, torch.float32)
    )
    reflecting, turning = shares * math.pi
    return reflecting, turning


def _running(reflecting: Tensor, turning: Tensor) -> tuple[Tensor, Tensor]:
    """W (n, pairs): reflecting angle up to and with sector 2i; U (n, pairs): turning angle before it."""
    return reflecting.cumsum(0), F.pad(turning[:-1].cumsum(0), (0, 0, 1, 0))


def sector_starts(theta: Tensor, widths: Tensor) -> Tensor:
    r"""The boundaries :math:`\theta_0 = \theta / 2, \dots, \theta_{2n-1}` of Theorem 2, (2n, pairs).

    >>> sector_starts(torch.zeros(1), torch.zeros(2, 1, 1)).flatten() / torch.pi
    tensor([0.0000, 0.5000, 1.0000, 1.5000])
    """
    reflecting, turning = sector_widths(widths)
    done, turned = _running(reflecting, turning)
    return theta / 2 + torch.stack((turned + done - reflecting, turned + done), dim=1).flatten(0, 1)


def _sector_turns(theta: Tensor, widths: Tensor) -> Tensor:
    r"""The angles of the matrices, (2n, pairs): :math:`\alpha_i` for odd i, less :math:`\pi/2` for even i.

    The alternating sums of Theorem 2 telescope to :math:`\alpha_{2i} = \theta + 2 U_i` and
    :math:`\alpha_{2i+1} = 2 W_i`. The last, :math:`2\pi`, is written as the 0 it stands for: the identity,
    without rounding.
    """
    done, turned = _running(*sector_widths(widths))
    done = torch.cat((done[:-1], torch.zeros_like(done[:1])))
    return torch.stack((deviation(theta) + 2 * turned, 2 * done), dim=1).flatten(0, 1)


def _half_turns(along: Tensor, across: Tensor) -> Tensor:
    """Stand-in for the phase of (along, across): 2 to 0 over the upper half plane, 0 to -2 over the lower."""
    return (along / (along.abs() + across.abs())).add_(1).copysign_(across)


def _sector_index(z1: Tensor, z2: Tensor, theta: Tensor, widths: Tensor) -> Tensor:
    """Number of the sector that holds (z1, z2), as uint8: how many boundaries its phase has passed.

    The phase is counted from theta_0 and replaced by a monotone function of it that needs no arctangent. One
    number is compared with all boundaries, so rounding can confuse neighbours only, where the matrices agree:
    signs of cross products could not tell a boundary from its opposite. Every count is a sector: no gap opens
    between the last one and the first.
    """
    sine, cosine = boundary(theta)
    offsets = sector_starts(torch.zeros_like(theta), widths)[1:]
    # Signed by the offset, not by its sine: rounded, the last offset may exceed 2 pi.
    marks = _half_turns(offsets.cos(), offsets.sin()).copysign(math.pi - offsets)
    c, s, minus_s, *levels = per_channel(torch.cat((cosine[None], sine[None], -sine[None], marks)), z1)
    phase = _half_turns(torch.mul(z1, c).addcmul_(z2, s), torch.mul(z2, c).addcmul_(z1, minus_s))
    index = torch.zeros_like(phase)
    passed = torch.empty_like(phase)
    for level in levels:
        index += torch.le(phase, level, out=passed)
    return index.to(torch.uint8)


class _Sector(Flags):
    """Number of the sector of every pair."""

    @staticmethod
    def forward(z: Tensor, theta: Tensor, widths: Tensor) -> Tensor:
        z1, z2 = z.chunk(2, dim=1)
        return _sector_index(z1, z2, theta, widths)


class _Sectors(OfSamples):
    """Apply to every pair the matrix of its sector: even ones reflect, odd ones turn clockwise.

    The transpose is the same map with the odd angles negated, and y turns by +1 (even) or -1 (odd) times the
    change of its angle; so the backward needs the output, the angles and the sector numbers only.
    """

    samples = (0, 2)

    @staticmethod
    def forward(z: Tensor, turns: Tensor, index: Tensor) -> Tensor:
        z1, z2 = z.chunk(2, dim=1)
        sine, cosine = turns.sin(), turns.cos()
        # cos(a) = -sin(a - pi/2) and sin(a) = cos(a - pi/2) in the even rows.
        c = torch.stack((-sine[::2], cosine[1::2]), dim=1).flatten(0, 1)
        s = torch.stack((cosine[::2], sine[1::2]), dim=1).flatten(0, 1)
        sign = _alternating(c)
        tables = [per_channel(t, z1) for t in (c, s, sign * s, -sign * c)]
        number = index.to(z.dtype)
        picked = [t[0].expand_as(z1) for t in tables]
        passed = torch.empty_like(number)
        for i in range(1, len(c)):
            torch.ge(number, i, out=passed)
            picked = [torch.lerp(old, t[i], passed) for old, t in zip(picked, tables, strict=True)]
        y = torch.empty_like(z)
        y1, y2 = y.chunk(2, dim=1)
        torch.mul(z1, picked[0], out=y1).addcmul_(z2, picked[1])
        torch.mul(z1, picked[2], out=y2).addcmul_(z2, picked[3])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, turns, index = inputs
        ctx.save_for_backward(turns, index, *((output,) if ctx.needs_input_grad[1] else ()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        turns, index, *output = ctx.saved_tensors
        sign = _alternating(turns)
        grad_z = apply(_Sectors, grad, turns * sign, index) if ctx.needs_input_grad[0] else None
        grad_turns = None
        if ctx.needs_input_grad[1]:
            torque = turning_moment(output[0], grad)
            number = index.to(torque.dtype)
            inside = (torch.eq(number, i, out=torch.empty_like(number)) for i in range(len(turns)))
            grad_turns = torch.stack([channel_sum(torque * flags) for flags in inside]).to(turns.dtype) * sign
        return grad_z, grad_turns, None


def _alternating(like: Tensor) -> Tensor:
    """1, -1, 1, ... for the rows of `like`, (rows, 1); filled in where `like` is, not sent there."""
    sign = like.new_ones(len(like), 1)
    sign[1::2].neg_()
    return sign


@eager
def householder_order(z: Tensor, theta: Tensor, widths: Tensor) -> Tensor:
    r"""The Householder activation :math:`\sigma_\Theta` of order n on every pair of channels.

    The plane is cut into 2n sectors at :math:`\theta_0 < \dots < \theta_{2n-1}`. Sector i applies
    :math:`(\cos\alpha_i, \sin\alpha_i; (-1)^i \sin\alpha_i, -(-1)^i \cos\alpha_i)` with
    :math:`\alpha_i = 2 \sum_j (-1)^j \theta_{i-j}`. :math:`\theta_0 = \theta / 2`, and the angles of the
    even (reflecting) and of the odd (turning) sectors are two softmaxes times :math:`\pi`: every real
    parameter is valid.

    Guarantee: 1-Lipschitz and gradient norm preserving for all real parameters. As computed, the output is
    within (3 |theta| + 40 n + 300) u |z| of the exact one (docs/layers/activations.md). Order 1 is
    `householder` with the same theta, to the bit.

    Args:
        z: input.
        theta: twice the first boundary angle, (C/2,).
        widths: log ratios of the widths to the last of their kind, (2, n - 1, C/2); see `sector_widths`.

    Shape: (N, C) or (N, C, H, W) with even C; the output has the same shape and memory format.

    Raises:
        ArgumentError: the number of channels is odd, or the parameters do not fit it.

    >>> theta, widths = torch.tensor([torch.pi / 2]), torch.zeros(2, 1, 1)  # right angles from 45 degrees on
    >>> householder_order(torch.tensor([[1.0, 3.0]]), theta, widths)
    tensor([[3., 1.]])

    Reference: Theorem 2 in the paper's appendix.
    """
    pairs = split(z, 2)[0].shape[1]
    if theta.shape != (pairs,):
        raise ArgumentError(f"theta: expected one angle per pair, ({pairs},), got {tuple(theta.shape)}")
    if widths.dim() != 3 or widths.shape[::2] != (2, pairs) or widths.shape[1] >= MAX_ORDER:
        raise ArgumentError(
            f"widths: expected shape (2, order - 1, {pairs}) with order at most {MAX_ORDER}, "
            f"got {tuple(widths.shape)}"
        )
    if not widths.shape[1]:
        return householder(z, theta)
    return apply(_Sectors, z, _sector_turns(theta, widths), apply(_Sector, z, theta, widths))


def householder_chain(z: Tensor, theta: Tensor) -> Tensor:
    r""":math:`\sigma^{(n)}`: n Householder activations in sequence, the first row of theta first.

    Guarantee: 1-Lipschitz and gradient norm preserving for all real angles.

    Args:
        z: input.
        theta: the angles, (n, C/2).

    Shape: (N, C) or (N, C, H, W) with even C; the output has the same shape and memory format.

    Raises:
        ArgumentError: the number of channels is odd, or does not fit theta.

    >>> householder_chain(torch.tensor([[1.0, 2.0]]), torch.full((2, 1), torch.pi / 2))
    tensor([[2., 1.]])

    Reference: appendix F of the paper.
    """
    for angles in theta:
        z = householder(z, angles)
    return z


def householder_nd(z: Tensor, vectors: Tensor) -> Tensor:
    r""":math:`\sigma^{(m,n)}`: n reflections :math:`\sigma_v` in sequence on every group of m channels.

    :math:`\sigma_v(z) = z - 2 \min(v^T z, 0)\, v / v^T v`, so the length of v is of no account. Group k
    consists of the channels k, k + C/m, ..., k + (m-1) C/m.

    Guarantee: 1-Lipschitz and gradient norm preserving for all nonzero vectors. The same v decides and
    reflects, so no rounding of it can make the map jump. As computed, the output is within n (4 m + 20) u |z|
    of the exact one (docs/layers/activations.md).

    Args:
        z: input.
        vectors: (n, m, C/m), nonzero along the second axis.

    Shape: (N, C) or (N, C, H, W) with C divisible by m; the output has the same shape and memory format.

    Raises:
        ArgumentError: the number of channels is not divisible by m, or does not fit `vectors`.

    >>> householder_nd(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[[1.0], [0.0], [-1.0]]]))
    tensor([[4., 2., 1.]])

    Reference: section 6 (Definition 1) and appendix G of the paper.
    """
    if vectors.dim() != 3 or not len(vectors) or z.dim() < 2 or z.shape[1] != vectors[0].numel():
        raise ArgumentError(
            "vectors: expected shape (length, group size, groups), length at least 1 and group size * groups "
            f"equal to the channels, got {tuple(vectors.shape)} for an input of shape {tuple(z.shape)}"
        )
    split(z, vectors.shape[1])
    groups = torch.unflatten(z, 1, vectors.shape[1:])
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    # Scaled by a constant, v^T v neither underflows nor overflows; the map does not depend on the scale.
    wide = wide / wide.detach().abs().amax(1, keepdim=True)
    steps = -2 * wide / wide.square().sum(1, keepdim=True)
    shape = (*vectors.shape, *(1 for _ in z.shape[2:]))
    with without_autocast(z):  # On GPUs it would make every sum float32, and with it what leaves the layer.
        for v, step in zip(wide.to(z.dtype).view(shape), steps.to(z.dtype).view(shape), strict=True):
            side = (groups * v).sum(1, keepdim=True)
            groups = torch.addcmul(groups, side.clamp(max=0), step)
    return groups.flatten(1, 2)
