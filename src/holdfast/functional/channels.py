"""Sums of maps that differ in their number of channels."""

from torch import Tensor


def add_channels(y: Tensor, x: Tensor, scale: float, dim: int = 1) -> Tensor:
    """Add scale * x to y on the channels that both have, along axis `dim`; in place."""
    common = min(y.shape[dim], x.shape[dim])
    y.narrow(dim, 0, common).add_(x.narrow(dim, 0, common), alpha=scale)
    return y
