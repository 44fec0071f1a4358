"""Sums of maps that differ in their number of channels, and pixels that become channels."""

import torch.nn.functional as F
from torch import Tensor


def add_channels(y: Tensor, x: Tensor, scale: float, dim: int = 1) -> Tensor:
    """Add scale * x to y on the channels that both have, along axis `dim`; in place."""
    common = min(y.shape[dim], x.shape[dim])
    y.narrow(dim, 0, common).add_(x.narrow(dim, 0, common), alpha=scale)
    return y


def space_to_depth(x: Tensor) -> Tensor:
    """Every 2x2 block of pixels as channels, (N, C, H, W) -> (N, 4 C, H / 2, W / 2): an isometry.

    `pixel_unshuffle` itself leaves a batch without images as it is.
    """
    n, c, height, width = x.shape
    return F.pixel_unshuffle(x, 2) if x.numel() else x.reshape(n, 4 * c, height // 2, width // 2)


def with_channels(x: Tensor, count: int) -> Tensor:
    """The first `count` channels of maps (N, C, H, W), or channels of zeros after them."""
    missing = count - x.shape[1]
    return F.pad(x, (0, 0, 0, 0, 0, missing)) if missing > 0 else x[:, :count]
