r"""Zero-padded convolutions of small maps in a real Fourier basis, where they are one matrix per frequency.

A k x k kernel reaches r = (k - 1) / 2 pixels far. Surround a map of h x w pixels by r rows and r columns of
zeros and close it to a torus of (h + r) x (w + r): whatever wraps around meets zeros only, so on the pixels
of the map the circular convolution of the torus is the zero-padded one. In the orthonormal basis of cosines
and sines it is block diagonal: with the kernel's spectrum a + ib at a frequency, the coefficients (u, v) of
its cosine and sine turn into

.. math:: u' = a u + b v = a (u + v) + (b - a) v, \qquad v' = a v - b u = a (u + v) - (b + a) u.

The second form, Gauss's, takes three products for a pair, 1.5 (h + r)(w + r) in all where the convolution
takes k^2 h w: 121 in place of 576 on maps of 8x8, at the price of one small matrix over the pixels in front
of it and one behind. Between two applications what reached the padding is subtracted, which takes two
matrices of few columns.
"""

import math
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from lipcert.kernels.channels import add_channels
from lipcert.kernels.constants import constant
from lipcert.kernels.taps import every_tap, fold_gradient, kernel_size
from lipcert.machine import is_amd_with_avx512


class TorusBasis(NamedTuple):
    """Constants of maps of one size and kernels of one size; D = (h + r)(w + r).

    Attributes:
        analysis: (D, h w), orthonormal columns: pixels -> coefficients. First a cosine for each frequency,
            those that are their own mirror image in front, then a sine for each of the others.
        padding: (D, D - h w), the same for the pixels of the padding.
        table: (D, k^2), taps -> spectrum: a of every frequency, then b of those with a sine.
        mirrored: how many frequencies are their own mirror image.
    """

    analysis: Tensor
    padding: Tensor
    table: Tensor
    mirrored: int


@constant(kept=64)
def torus_basis(height: int, width: int, size: int, dtype: torch.dtype, device: torch.device) -> TorusBasis:
    """The constants, computed in float64.

    Entries of `analysis` and `padding` are within 64 u / sqrt(D) and those of `table` within 64 u, for the
    unit roundoff u of the dtype.
    """
    rows, columns = height + size // 2, width + size // 2
    own, others = [], []
    for frequency in product(range(rows), range(columns)):
        mirror = (-frequency[0] % rows, -frequency[1] % columns)
        if mirror == frequency:
            own.append(frequency)
        elif mirror > frequency:
            others.append(frequency)
    pixels = list(product(range(height), range(width)))
    outside = sorted(set(product(range(rows), range(columns))) - set(pixels))
    offsets = range(-(size // 2), size // 2 + 1)
    taps = list(product(offsets, offsets))
    waves = _waves(own + others, len(own), pixels + outside, rows, columns)
    waves[len(own) :] *= math.sqrt(2)
    orthonormal = waves / math.sqrt(rows * columns)
    table = _waves(own + others, len(own), taps, rows, columns)
    analysis, padding, table = (
        part.to(device, dtype).contiguous()
        for part in (orthonormal[:, : len(pixels)], orthonormal[:, len(pixels) :], table)
    )
    return TorusBasis(analysis, padding, table, len(own))


def _waves(
    frequencies: list[tuple[int, int]], mirrored: int, places: list[tuple[int, int]], rows: int, columns: int
) -> Tensor:
    """Cosine and, but for those that are their own mirror image, sine of each frequency at the places."""
    # Phases are 2 pi (k y / rows + j x / columns), reduced to one turn in whole numbers.
    whole = rows * columns
    turns = [[(k * y * columns + j * x * rows) % whole for y, x in places] for k, j in frequencies]
    phases = torch.tensor(turns, dtype=torch.float64, device="cpu") * (2 * math.pi / whole)
    return torch.cat([phases.cos(), phases[mirrored:].sin()])


# What a multiplication costs in a product per frequency, in those of a convolution, and how many it takes to
# make, read and differentiate a number of the spectrum; on CPUs.
PRODUCT_PRICE = {torch.float64: 0.8, torch.float32: 1.6, torch.bfloat16: 2.0}
# MKL leaves out AVX-512 on AMD, and oneDNN's convolutions do not.
AMD_SLOWDOWN = 1.5
SPECTRUM_PRICE = 32
# oneDNN's convolutions reach half the speed of a matrix product on maps of 2x2 and less.
MATRIX_PIXELS = 4


def product_price(dtype: torch.dtype) -> float:
    """PRODUCT_PRICE on this processor; in no other precision is it MKL that competes with oneDNN."""
    slow = dtype == torch.float32 and is_amd_with_avx512()
    return PRODUCT_PRICE[dtype] * (AMD_SLOWDOWN if slow else 1.0)


def torus_size(size: int, height: int, width: int) -> int:
    """Pixels of the torus, and so coefficients of a map."""
    return (height + size // 2) * (width + size // 2)


def torus_pays(
    dtype: torch.dtype, channels: int, size: int, height: int, width: int, batch: float = math.inf
) -> bool:
    """Cost model: multiplications per map and channel of one power in a polynomial of degree 2, which has as
    much of all transforms as one full matrix. Maps of up to 4 pixels are one matrix anyway.
    """
    if size == 1 or height * width <= MATRIX_PIXELS or dtype not in PRODUCT_PRICE:
        return False
    terms = torus_size(size, height, width)
    products = terms**2 + 1.5 * terms * channels + SPECTRUM_PRICE * terms * channels / batch
    return product_price(dtype) * products < size**2 * height * width * channels


class TorusOperator:
    """The convolution A of given taps on maps of one size, between maps that are held as coefficients.

    Maps are (D, N, channels). Everything here runs without gradient; `tap_gradient` has the one that counts.

    Args:
        taps: (T, c, c) of a skew kernel, centre first.
        height: height of the maps.
        width: width of the maps.
        scale: what the taps are multiplied by, a tensor with one element.
    """

    def __init__(self, taps: Tensor, height: int, width: int, scale: Tensor | None = None) -> None:
        self.height, self.width, self.channels = height, width, taps.shape[1]
        self.basis = torus_basis(height, width, kernel_size(taps), taps.dtype, taps.device)
        full = every_tap(taps.detach())
        if scale is not None:
            full.mul_(scale)
        spectrum = (self.basis.table @ full.flatten(1)).view(-1, *full.shape[1:])
        # Coefficients and spectrum alike: cosines end where the sines begin.
        self.sines = (len(spectrum) + self.basis.mirrored) // 2
        self.a, b = spectrum[: self.sines], spectrum[self.sines :]
        paired = self.a[self.basis.mirrored :]
        self.b_minus_a, self.b_plus_a = b - paired, b + paired

    def enter(self, x: Tensor) -> Tensor:
        """(N, i, H, W) -> (D, N, i)."""
        n, i = x.shape[:2]
        pixels = x.permute(2, 3, 0, 1).reshape(self.height * self.width, n * i)
        return torch.mm(self.basis.analysis, pixels).view(-1, n, i)

    def apply(self, z: Tensor, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """Return factor * A z + sum of coefficient * map, with all channels."""
        n = z.shape[1]
        result = self._product(z, self.channels, factor)
        raw, padding = result.view(-1, n * self.channels), self.basis.padding
        raw.addmm_(padding, torch.mm(padding.T, raw), alpha=-1)
        for other, coefficient in added:
            add_channels(result, other, coefficient, dim=2)
        return result

    def finish(self, z: Tensor, keep: int, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """First `keep` channels of the same, as maps (N, keep, H, W)."""
        n = z.shape[1]
        raw = self._product(z, keep, factor)
        for other, coefficient in added:
            add_channels(raw, other, coefficient, dim=2)
        pixels = torch.mm(self.basis.analysis.T, raw.view(-1, n * keep))
        maps = pixels.view(self.height, self.width, n, keep).permute(2, 3, 0, 1)
        # What follows would take any other order for a contiguous one, the slow way.
        return maps.contiguous(memory_format=torch.channels_last)

    def _product(self, z: Tensor, keep: int, factor: float) -> Tensor:
        """First `keep` channels of factor times the circular convolution, padding included."""
        n, i = z.shape[1:]
        a, b_minus_a, b_plus_a = (
            part[:, :keep, :i].transpose(1, 2) for part in (self.a, self.b_minus_a, self.b_plus_a)
        )
        u, v = z[self.basis.mirrored : self.sines], z[self.sines :]
        sums = z[: self.sines].clone()
        sums[self.basis.mirrored :] += v
        result = z.new_empty(len(z), n, keep)
        cosines, sines = result[self.basis.mirrored : self.sines], result[self.sines :]
        result[: self.sines].baddbmm_(sums, a, beta=0, alpha=factor)
        sines.copy_(cosines)
        cosines.baddbmm_(v, b_minus_a, alpha=factor)
        sines.baddbmm_(u, b_plus_a, alpha=-factor)
        return result

    def tap_gradient(self, pairs: list[tuple[Tensor, Tensor, float]]) -> Tensor:
        """Gradient of the sum of factor * <outer, A inner> with respect to the held taps."""
        total: Tensor | None = None
        paired, sines = slice(self.basis.mirrored, self.sines), slice(self.sines, None)
        for outer, inner, factor in pairs:
            o, i = outer.shape[2], inner.shape[2]
            left = outer.transpose(1, 2)
            spectrum = outer.new_empty(len(self.basis.table), o, i)
            torch.bmm(left[: self.sines], inner[: self.sines], out=spectrum[: self.sines])
            spectrum[paired].baddbmm_(left[sines], inner[sines])
            torch.bmm(left[paired], inner[sines], out=spectrum[sines])
            spectrum[sines].baddbmm_(left[sines], inner[paired], alpha=-1)
            full = torch.mm(self.basis.table.T, spectrum.flatten(1)).view(-1, o, i)
            total = fold_gradient(full, factor, self.channels, total)
        assert total is not None
        return total
