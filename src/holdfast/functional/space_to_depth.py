"""Blocks of 2x2 pixels become channels, and back."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def space_to_depth(x: Tensor) -> Tensor:
    """`F.pixel_unshuffle(x, 2)`, and a gradient that is as fast: (N, C, 2H, 2W) -> (N, 4C, H, W)."""
    result: Tensor = _SpaceToDepth.apply(x)  # type: ignore[no-untyped-call]
    return result


def depth_to_space(x: Tensor) -> Tensor:
    """`F.pixel_shuffle(x, 2)`, the transpose and inverse: (N, 4C, H, W) -> (N, C, 2H, 2W)."""
    result: Tensor = _DepthToSpace.apply(x)  # type: ignore[no-untyped-call]
    return result


def _dense(x: Tensor) -> Tensor:
    """PyTorch takes maps that are in neither of its two orders for contiguous ones, which is the slow way."""
    return x if x.is_contiguous() else x.contiguous(memory_format=torch.channels_last)


class _SpaceToDepth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(_dense(x), 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return depth_to_space(grad)


class _DepthToSpace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.pixel_shuffle(_dense(x), 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return space_to_depth(grad)
