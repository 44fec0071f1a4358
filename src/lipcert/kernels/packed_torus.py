r"""Zero-padded convolutions by one fixed kernel as one grouped product of oneDNN; float32 inference.

As `lipcert.kernels.torus`, with the spectrum kept in oneDNN's order: a convolution of 1 x 1 pixels with a
group for each frequency, in which cosine and sine turn by one matrix, (u', v') = (a, b; -b, a) (u, v). That
is four products in place of three, but a single call with nothing to copy, at two to three times the speed of
MKL where that leaves out AVX-512. Maps are (N, D, channels): images stay together, so that maps whose
channels are last come and go without a transpose, through a transform of the columns and one of the rows.
"""

import math
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.kernels.channels import add_channels
from lipcert.kernels.constants import constant, may_be_kept
from lipcert.kernels.packed import packing_is_at_hand
from lipcert.kernels.taps import every_tap, kernel_size
from lipcert.kernels.torus import MATRIX_PIXELS
from lipcert.machine import is_amd_with_avx512

BLOCK = 128
"""Images of one product. oneDNN's order depends on it in ways of its own, and any other batch would be put in
another order in every call, at ten times the cost."""
MULTIPLY_PRICE = 1.25
"""A multiplication in a grouped product, in those of a convolution."""
TRANSFORM_PRICE = 3.3
"""The same in the transforms, which are left to MKL."""
PASS_PRICE = 200
"""Reading and writing a coefficient in all that is done with it for one power."""


class Waves(NamedTuple):
    """Constants of maps of one size and kernels of one size, with cosine and sine of one frequency of each
    pair (k, j), (-k, -j); zero is the sine of one that is its own mirror image.

    Attributes:
        rows: (2 K, h), a column of pixels -> cosine and sine for every k.
        columns: for each k, both of these for a row of pixels (2 w) -> cosine and sine for every j.
        padding: (D, pixels of the padding), of orthonormal columns.
        table: (2 D, k^2), taps -> the entries a, b, -b, a of every frequency.
    """

    rows: Tensor
    columns: list[Tensor]
    padding: Tensor
    table: Tensor


@constant(kept=64)
def torus_waves(height: int, width: int, size: int, dtype: torch.dtype, device: torch.device) -> Waves:
    """The constants, computed in float64."""
    reach = size // 2
    high, wide = height + reach, width + reach
    pairs = [[(k, j) for j in half_of(k, high, wide)] for k in range(high // 2 + 1)]
    own = [[(-k % high, -j % wide) == (k, j) for k, j in row] for row in pairs]
    rows = _turns([(k,) for k in range(len(pairs))], list(product(range(high))), (high,))
    rows = torch.stack([rows.cos(), rows.sin()], dim=1)
    columns = []
    for row, alone in zip(pairs, own, strict=True):
        turns = _turns([(j,) for _, j in row], list(product(range(wide))), (wide,))
        cos, sin = turns.cos(), turns.sin()
        matrix = torch.stack([torch.stack([cos, -sin], dim=1), torch.stack([sin, cos], dim=1)], dim=1)
        matrix[~torch.tensor(alone, device="cpu")] *= math.sqrt(2)
        columns.append(matrix.flatten(0, 1) / math.sqrt(high * wide))  # (2 j, cosine or sine of k, x)
    waves = torch.cat([torch.einsum("py,dpx->dyx", *both) for both in zip(rows, columns, strict=True)])
    outside = torch.ones(high, wide, dtype=torch.bool, device="cpu")
    outside[:height, :width] = False
    taps = list(product(range(-reach, reach + 1), repeat=2))
    turns = _turns([pair for row in pairs for pair in row], taps, (high, wide))
    table = torch.stack([turns.cos(), turns.sin(), -turns.sin(), turns.cos()], dim=1).flatten(0, 1)

    def kept(part: Tensor) -> Tensor:
        return part.to(device, dtype).contiguous()

    return Waves(
        kept(rows[:, :, :height].flatten(0, 1)),
        [kept(matrix[:, :, :width].flatten(1)) for matrix in columns],
        kept(waves[:, outside]),
        kept(table),
    )


def half_of(k: int, high: int, wide: int) -> range:
    """For which j the frequency (k, j) stands for itself and (-k, -j)."""
    return range(wide // 2 + 1) if -k % high == k else range(wide)


def _turns(
    frequencies: list[tuple[int, ...]], places: list[tuple[int, ...]], sides: tuple[int, ...]
) -> Tensor:
    """Phases 2 pi (k y / rows + j x / columns), reduced to one turn in whole numbers."""
    whole = math.prod(sides)
    steps = torch.tensor([whole // side for side in sides], device="cpu")
    at, waves = (torch.tensor(list(of), device="cpu") for of in (places, frequencies))
    return (waves * steps @ at.T % whole).double() * (2 * math.pi / whole)


def packed_torus_price(channels: int, size: int, height: int, width: int, batch: float = math.inf) -> float:
    """Cost model: as `torus_pays`, of large batches without one."""
    high, wide = height + size // 2, width + size // 2
    rows = high // 2 + 1
    groups = sum(len(half_of(k, high, wide)) for k in range(rows))
    ends = 2 * (2 * rows * height * width + 2 * groups * 2 * width)
    between = 2 * 2 * groups * (high * wide - height * width)
    filled = 1 if math.isinf(batch) else -(-batch // BLOCK) * BLOCK / batch
    products = MULTIPLY_PRICE * 4 * groups * channels * filled
    return products + TRANSFORM_PRICE * (ends + between) / 2 + PASS_PRICE * 2 * groups


def packed_torus_pays(
    dtype: torch.dtype, channels: int, size: int, height: int, width: int, batch: float = math.inf
) -> bool:
    """Whether it costs less than the convolution, and may be kept.

    Only where MKL leaves out AVX-512: elsewhere its three products compete with these four.
    """
    if dtype != torch.float32 or size == 1 or height * width <= MATRIX_PIXELS:
        return False
    if not (is_amd_with_avx512() and packing_is_at_hand() and may_be_kept()):
        return False
    price = packed_torus_price(channels, size, height, width, batch)
    return price < size**2 * height * width * channels


class PackedTorus:
    """The convolution A of given taps on maps of one size, between maps that are held as coefficients.

    Spectra are kept for each number of channels that is read and written. All of it runs without gradient.

    Args:
        taps: (T, c, c) of a skew kernel, centre first.
        height: height of the maps.
        width: width of the maps.
    """

    def __init__(self, taps: Tensor, height: int, width: int) -> None:
        self.height, self.width, self.channels = height, width, taps.shape[1]
        self.waves = torus_waves(height, width, kernel_size(taps), taps.dtype, taps.device)
        self.groups = len(self.waves.padding) // 2
        self.taps = taps.detach()
        self.spectra: dict[tuple[int, int, int], Tensor] = {}

    def enter(self, x: Tensor) -> Tensor:
        """(N, i, H, W) -> (N, D, i)."""
        n, i = x.shape[:2]
        rows = _each(self.waves.rows, x.permute(0, 2, 3, 1).reshape(n, self.height, self.width * i))
        z = x.new_empty(n, 2 * self.groups, i)
        columns = rows.view(n, len(self.waves.columns), 2 * self.width, i).unbind(1)
        for place, matrix, row in zip(self._by_row(z), self.waves.columns, columns, strict=True):
            place.baddbmm_(matrix.expand(n, -1, -1), row, beta=0)
        return z

    def apply(self, z: Tensor, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """Return factor * A z + sum of coefficient * map, with all channels."""
        n, padding = len(z), self.waves.padding
        result = self._product(z, self.channels)
        reached = _each(padding.T, result)
        result.baddbmm_(padding.expand(n, -1, -1), reached, beta=factor, alpha=-factor)
        for other, coefficient in added:
            add_channels(result, other, coefficient, dim=2)
        return result

    def finish(self, z: Tensor, keep: int, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """First `keep` channels of the same, as maps (N, keep, H, W)."""
        n, raw = len(z), self._product(z, keep)
        raw = raw if factor == 1.0 else raw.mul_(factor)
        for other, coefficient in added:
            add_channels(raw, other, coefficient, dim=2)
        rows = z.new_empty(n, len(self.waves.columns), 2 * self.width, keep)
        for row, matrix, place in zip(rows.unbind(1), self.waves.columns, self._by_row(raw), strict=True):
            row.baddbmm_(matrix.T.expand(n, -1, -1), place, beta=0)
        maps = _each(self.waves.rows.T, rows.view(n, len(self.waves.rows), self.width * keep))
        return maps.view(n, self.height, self.width, keep).permute(0, 3, 1, 2)

    def _by_row(self, z: Tensor) -> tuple[Tensor, ...]:
        """The coefficients of every k."""
        return torch.split(z, [len(matrix) for matrix in self.waves.columns], dim=1)

    def _product(self, z: Tensor, keep: int) -> Tensor:
        """First `keep` channels of the circular convolution, padding included."""
        blocks = [self._block_product(block, keep) for block in torch.split(z, BLOCK)]
        return torch.cat(blocks)[: len(z)] if len(blocks) > 1 else blocks[0][: len(z)]

    def _block_product(self, z: Tensor, keep: int) -> Tensor:
        """The same of up to BLOCK images, with zeros behind them."""
        i = z.shape[2]
        z = F.pad(z, (0, 0, 0, 0, 0, BLOCK - len(z))) if len(z) < BLOCK else z
        # Images are the rows of one map, for oneDNN is slow on many maps of one pixel.
        one = z.reshape(1, BLOCK, 1, -1).permute(0, 3, 1, 2)
        made = torch.ops.mkldnn._convolution_pointwise(
            one, self._spectrum(keep, i), None, [0, 0], [1, 1], [1, 1], self.groups, "none", [], ""
        )
        result: Tensor = made.permute(0, 2, 3, 1).reshape(BLOCK, -1, keep)
        return result

    def _spectrum(self, keep: int, inputs: int) -> Tensor:
        """(a, b; -b, a) for these channels; each frequency is a group."""
        shape = (keep, inputs, torch.get_num_threads())  # the number of threads may change the order, too
        if shape not in self.spectra:
            full = every_tap(self.taps)[:, :keep, :inputs].flatten(1)
            blocks = (self.waves.table @ full).view(-1, 2, 2, keep, inputs).transpose(2, 3)
            self.spectra[shape] = torch.ops.mkldnn._reorder_convolution_weight(
                blocks.reshape(-1, 2 * inputs, 1, 1),
                *([0, 0], [1, 1], [1, 1], self.groups),
                [1, self.groups * 2 * inputs, BLOCK, 1],
            )
        return self.spectra[shape]


def _each(matrix: Tensor, x: Tensor) -> Tensor:
    """The matrix times every x (N, in, channels)."""
    return torch.bmm(matrix.expand(len(x), -1, -1), x)
