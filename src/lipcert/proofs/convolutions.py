r"""Proved norms of zero-padded convolutions with any stride, padding, dilation and groups.

A convolution A of real numbers has the norm of its Hermitian dilation (0, A; A^T, 0), whose eigenvalues come
in pairs :math:`\pm\sigma`. Row y of the map and row y of the output are put side by side, so that the
dilation is block Toeplitz with the reach of the kernel, and `strips` bounds its largest eigenvalue. Columns
are taken as they are. Where that would take long, `deflated` is used.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.proofs.deflated import deflated_norm_upper_bound
from lipcert.proofs.eigenvalues import ritz_values, start_vectors
from lipcert.proofs.rounding import TINY, largest_entry_exponent, scale_up, sum_up, times_power_of_two
from lipcert.proofs.spectral import matrix_norm_upper_bound, spectral_matrices_norm_upper_bound
from lipcert.proofs.strips import Strips

Pair = tuple[int, int]


class Axis(NamedTuple):
    """How a convolution runs along one axis, once blocks of `stride` pixels are channels.

    Output o reads blocks o + t - before, t < taps. Pixels of one phase of the stride are an input channel.

    Attributes:
        pixels: of the map.
        outputs: rows or columns that are made.
        before: blocks of zeros in front of the first output.
        stride: pixels of a block; the last one may not be whole.
    """

    pixels: int
    outputs: int
    before: int
    stride: int

    @property
    def inputs(self) -> int:
        """Blocks."""
        return -(-self.pixels // self.stride)


DENSE = 1024
"""Convolutions of at most this many inputs, or outputs, per group are bounded as one matrix."""
GAP, TOLERANCE = 3e-4, 2e-4
STEPS = 120
"""Of Lanczos, for the estimate that a proof starts from."""
STRIPS = 1.5e12
"""Operations that a proof by strips may take: half a minute. Beyond it outputs are not cut off."""


@torch.no_grad()
def convolution_norm_upper_bound(
    kernel: Tensor,
    size: tuple[int, ...],
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> float:
    """Proved upper bound on the norm of what `F.conv2d` computes on maps of one size.

    Guarantee: never below the truth. For the random kernels of the tests it is above it by a factor of at
    most 1 + 1e-3. Kernels too large for strips are bounded on the torus around the map, which is looser the
    fewer pixels the map has.

    Args:
        kernel: (out, in / groups, height, width).
        size: height and width of the map.
        stride, padding, dilation, groups: as in `F.conv2d`.

    >>> kernel = torch.tensor([1.0, 0.0, -1.0]).view(1, 1, 1, 3)
    >>> round(convolution_norm_upper_bound(kernel, (1, 2), padding=(0, 1)), 3)  # [[0, -1], [1, 0]]
    1.0
    """
    kernel = kernel.detach().to(device="cpu", dtype=torch.float64)
    exponent = largest_entry_exponent(kernel)
    if not bool(kernel.any()):
        return 0.0
    kernel = times_power_of_two(kernel, -exponent)
    each = kernel.view(groups, -1, *kernel.shape[1:])
    if kernel.shape[2:] == (1, 1):  # all pixels are alike and alone
        bound = spectral_matrices_norm_upper_bound(each[..., 0, 0])
    elif _is_small(each, size):
        bound = max(_dense_norm(part, size, stride, padding, dilation) for part in each)
    else:
        estimate = _estimate(kernel, size, stride, padding, dilation, groups)
        axes = []
        for axis, (n, s, p, d) in enumerate(zip(size, stride, padding, dilation, strict=True)):
            each, made = _without_stride(_without_dilation(each, d, axis), n, s, p, axis)
            axes.append(made)
        if min(_strip_work(each, *axes), _strip_work(each.transpose(3, 4), *reversed(axes))) <= STRIPS:
            bound = _by_strips(each, axes, estimate)
        else:
            bound = max(deflated_norm_upper_bound(part, *(axis.inputs for axis in axes)) for part in each)
    return scale_up(sum_up(bound, TINY), exponent)


def _is_small(kernel: Tensor, size: tuple[int, ...]) -> bool:
    """Whether one matrix per group is cheap, and fits into memory."""
    groups, outputs, inputs = kernel.shape[:3]
    count = inputs * math.prod(size)
    return count <= DENSE and groups * count**3 <= 4 * DENSE**3 and count * outputs * math.prod(size) <= 2**24


def _dense_norm(kernel: Tensor, size: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair) -> float:
    """Of the matrix, column by column: products with 0 and 1 are exact."""
    count = kernel.shape[1] * math.prod(size)
    basis = torch.eye(count, dtype=torch.float64, device="cpu").view(count, -1, *size)
    return matrix_norm_upper_bound(F.conv2d(basis, kernel, None, stride, padding, dilation).flatten(1))


def _estimate(
    kernel: Tensor, size: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> float:
    """Of the norm, by Lanczos on A^T A."""
    shape = (1, kernel.shape[1] * groups, *size)

    def apply(vector: Tensor) -> Tensor:
        with torch.enable_grad():
            x = vector.view(shape).requires_grad_()
            y = F.conv2d(x, kernel, None, stride, padding, dilation, groups)
        (image,) = torch.autograd.grad(y, x, y.detach())
        return image.view_as(vector)

    return math.sqrt(max(0.0, float(ritz_values(apply, start_vectors(1, math.prod(shape)), STEPS).max())))


def _without_dilation(kernel: Tensor, dilation: int, axis: int) -> Tensor:
    """The same kernel with zeros between its taps."""
    if dilation == 1:
        return kernel
    shape = list(kernel.shape)
    shape[3 + axis] = dilation * (shape[3 + axis] - 1) + 1
    spread = kernel.new_zeros(shape)
    spread.movedim(3 + axis, 0)[::dilation] = kernel.movedim(3 + axis, 0)
    return spread


def _without_stride(kernel: Tensor, inputs: int, stride: int, padding: int, axis: int) -> tuple[Tensor, Axis]:
    """The same operator with stride 1, input channels (in, phase): tap t reads pixel s (o + tau) + phase."""
    taps = kernel.shape[3 + axis]
    outputs = (inputs + 2 * padding - taps) // stride + 1
    if stride == 1:
        return kernel, Axis(inputs, outputs, padding, 1)
    first, last = -padding // stride, (taps - 1 - padding) // stride
    moved = kernel.movedim(3 + axis, 0)
    phases = moved.new_zeros(last - first + 1, stride, *moved.shape[1:])
    for t, tap in enumerate(moved):
        tau, phase = divmod(t - padding, stride)
        phases[tau - first, phase] = tap
    # (tau, phase, groups, out, in, other taps) -> channels (in, phase)
    merged = phases.movedim(1, 4).flatten(3, 4).movedim(0, 2 + axis + 1)
    return merged, Axis(inputs, outputs, -first, stride)


def _by_strips(kernel: Tensor, axes: list[Axis], estimate: float) -> float:
    """Through the dilation, strip by strip along the axis that makes it cheaper."""
    down, across = axes
    if _strip_work(kernel, down, across) > _strip_work(kernel.transpose(3, 4), across, down):
        phases = kernel.reshape(*kernel.shape[:2], -1, down.stride, across.stride, *kernel.shape[3:])
        phases = phases.transpose(3, 4).flatten(2, 4)
        kernel, down, across = phases.transpose(3, 4), across, down
    taps, rows = kernel.shape[3], _row_matrices(kernel, across)
    centre, length = _alignment(down, taps)
    reach = max(centre, taps - 1 - centre)
    outputs, inputs = rows.shape[-2:]
    blocks = rows.new_zeros(2 * reach + 1, len(kernel), outputs + inputs, outputs + inputs)
    for t in range(taps):
        blocks[reach + t - centre, :, :outputs, outputs:] = rows[t]
        blocks[reach - t + centre, :, outputs:, :outputs] = rows[t].mT
    kept = _kept(kernel, down, across, centre, length)
    strips = Strips(blocks, length, symmetric_spectrum=True, kept=None if bool(kept.all()) else kept)
    return strips.eigenvalue_upper_bound(0.0, estimate, gap=GAP, tolerance=TOLERANCE)


def _alignment(axis: Axis, taps: int) -> tuple[int, int]:
    """The tap that leads from a row to the row beside it, and how many rows there are in all.

    Input i stands beside output i + before - centre. Rows at the ends may have only one of the two.
    """
    found = []
    for centre in {(taps - 1) // 2, taps // 2}:
        shift = axis.before - centre
        found.append((max(axis.outputs, axis.inputs + shift) - min(0, shift), centre))
    length, centre = min(found)
    return centre, length


def _kept(kernel: Tensor, down: Axis, across: Axis, centre: int, length: int) -> Tensor:
    """(length, outputs + inputs) of ones and zeros: which rows, and which pixels of a row, there are."""
    outputs, channels = kernel.shape[1], kernel.shape[2] // (down.stride * across.stride)
    shift = down.before - centre
    y = torch.zeros(length, outputs * across.outputs, dtype=torch.float64, device="cpu")
    y[max(0, -shift) :][: down.outputs] = 1
    x = y.new_zeros(length, channels, down.stride, across.stride, across.inputs)
    phase, column = torch.arange(across.stride).view(-1, 1), torch.arange(across.inputs)
    inside = (column * across.stride + phase < across.pixels).double()
    for row in range(down.inputs):
        for offset in range(min(down.stride, down.pixels - row * down.stride)):
            x[max(0, shift) + row, :, offset] = inside
    return torch.cat([y, x.flatten(1)], dim=1)


def _strip_work(kernel: Tensor, down: Axis, across: Axis) -> float:
    groups, outputs, inputs, taps, _ = kernel.shape
    centre, length = _alignment(down, taps)
    height = max(1, centre, taps - 1 - centre)
    side = height * (outputs * across.outputs + inputs * across.inputs)
    return groups * 2.4 * side**3 * (length / height)


def _row_matrices(kernel: Tensor, across: Axis) -> Tensor:
    """(taps, groups, out * columns, in * columns): from a row of the map to a row of the output."""
    groups, outputs, inputs, taps, columns = kernel.shape
    dense = kernel.new_zeros(taps, groups, outputs, across.outputs, inputs, across.inputs)
    for t in range(columns):
        first = max(0, across.before - t)
        last = min(across.outputs, across.inputs + across.before - t)
        to = torch.arange(first, max(first, last), device="cpu")
        dense[:, :, :, to, :, to + t - across.before] = kernel[..., t].permute(3, 0, 1, 2)
    return dense.flatten(4, 5).flatten(2, 3)
