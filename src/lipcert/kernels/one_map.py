"""Zero-padded convolutions of one small map in float64, where reading the kernel is most of the work."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ONE_MAP_PIXELS = 64
"""Up to here this is faster than torch's convolution."""

Span = tuple[slice, slice]
"""Rows and columns of a map."""


def by_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Convolution of a map (1, in, H, W) by one product, rows (out, k, k, in) of the kernel times pixels.

    torch's own convolution of float64 multiplies from the other side, which is half as fast for few pixels.
    """
    out, size = rows.shape[:2]
    _, _, height, width = x.shape
    reach = size // 2
    padded = F.pad(x[0].permute(1, 2, 0), (0, 0, reach, reach, reach, reach))
    windows = padded.unfold(0, size, 1).unfold(1, size, 1).permute(0, 1, 3, 4, 2)
    y = F.linear(windows.reshape(height * width, -1), rows.flatten(1))
    return y.view(1, height, width, out).permute(0, 3, 1, 2)


class Pairs(NamedTuple):
    """Pixels p and p + t that are both on the map, t the offset of a held tap.

    Attributes:
        here: p, tap after tap.
        there: p + t.
        spans: where those of each tap behind the centre start and end.
    """

    here: Tensor
    there: Tensor
    spans: list[tuple[int, int]]


def pairs_of(overlaps: Sequence[tuple[Span, Span] | None], grid: Tensor) -> Pairs:
    """The pairs, from their rectangles on the map for each tap; `grid` (H, W) numbers the pixels."""
    pairs = [(grid[s[0]].flatten(), grid[s[1]].flatten()) if s else (grid[:0, 0],) * 2 for s in overlaps]
    here, there = map(torch.cat, zip(*pairs, strict=True))
    return Pairs(here, there, list(pairwise(accumulate((len(own) for own, _ in pairs), initial=0))))


def by_held_taps(x: Tensor, taps: Tensor, keep: int, pairs: Pairs) -> Tensor:
    """First `keep` channels of A x for the skew kernel of held taps and a tiny map (1, i, H, W).

    The held taps are 5 c^2 numbers, the kernel 9 c^2 and the matrix of a 2x2 map 16 c^2; and pairs of pixels
    of which one is padding are left out. The tap on the other side of the centre is -T^T.
    """
    i = x.shape[1]
    pixels = x[0].flatten(1).T.contiguous()
    y = F.linear(pixels, taps[0, :keep, :i])
    left, right = pixels.index_select(0, pairs.here), pixels.index_select(0, pairs.there)
    ahead, behind = (pixels.new_empty(len(left), keep) for _ in range(2))
    for tap, (start, end) in zip(taps[1:], pairs.spans, strict=True):
        torch.mm(right[start:end], tap[:keep, :i].T, out=ahead[start:end])
        torch.mm(left[start:end], tap[:i, :keep], out=behind[start:end])
    y.index_add_(0, pairs.here, ahead).index_add_(0, pairs.there, behind, alpha=-1)
    return y.T.reshape(1, keep, *x.shape[2:])
