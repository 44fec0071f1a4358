"""Functions and methods of torch that a forward may call on one activation, as operators."""

import operator as python
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lipcert.errors import NotProvedError
from lipcert.operators import (
    ChannelPad,
    ChannelSlice,
    Elementwise,
    Mirror,
    Operator,
    Pool,
    Reshape,
    Sequence,
    Shape,
    Transpose,
)

BATCH = object()
"""The length of the batch, as `x.size(0)` and `x.shape[0]` have it."""
PAD = "let the convolution pad (padding=...), or pad channels by F.pad(x, (0, 0, 0, 0, a, b))"
NAMES: dict[Any, str] = {
    python.add: "add", torch.add: "add", python.sub: "sub", torch.sub: "sub",
    python.mul: "mul", torch.mul: "mul", python.truediv: "div", torch.div: "div",
    python.neg: "neg", torch.neg: "neg", python.getitem: "getitem", getattr: "getattr",
    abs: "abs", python.abs: "abs", torch.abs: "abs", torch.cat: "cat", torch.concat: "cat",
    torch.flatten: "flatten", torch.flip: "flip", torch.mean: "mean", torch.permute: "permute",
    torch.reshape: "reshape", torch.transpose: "transpose", F.pad: "pad", F.dropout: "dropout",
    F.dropout2d: "dropout", torch.chunk: "chunk", torch.split: "split",
    F.relu: "relu", torch.relu: "relu", F.leaky_relu: "leaky_relu", torch.tanh: "tanh",
    torch.sigmoid: "sigmoid", F.softplus: "softplus", F.avg_pool2d: "avg_pool2d",
    F.max_pool2d: "max_pool2d", torch.max_pool2d: "max_pool2d", F.lp_pool2d: "lp_pool2d",
    F.adaptive_avg_pool2d: "adaptive_avg_pool2d", F.pixel_shuffle: "pixel_shuffle",
    F.pixel_unshuffle: "pixel_unshuffle", F.interpolate: "interpolate",
}  # fmt: skip
"""Functions that are known, and what the method of a tensor that does the same is called, if there is one."""
METHODS = {
    "abs", "add", "chunk", "contiguous", "div", "flatten", "flip", "mean", "mul", "neg", "permute", "relu",
    "reshape", "sigmoid", "size", "split", "sub", "tanh", "transpose", "view",
}  # fmt: skip
MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus, "avg_pool2d": nn.AvgPool2d, "max_pool2d": nn.MaxPool2d,
    "lp_pool2d": nn.LPPool2d, "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
    "pixel_shuffle": nn.PixelShuffle, "pixel_unshuffle": nn.PixelUnshuffle,
}  # fmt: skip
"""Functions with a module that takes the same arguments."""


def axis_of(axis: int, shape: Shape) -> int:
    """An axis of a batch of samples of this shape, counted from the first.

    Raises:
        IndexError: there is no such axis.
    """
    return range(len(shape) + 1)[axis]


def pieces(name: str, shape: Shape, *given: Any, dim: int = 0, **options: Any) -> list[ChannelSlice]:
    """What `x.chunk(n, dim)` and `x.split(sizes, dim)` are made of, `name` being "chunk" or "split"."""
    size, axis = [*given, *options.values(), dim][:2]
    if axis_of(axis, shape) != 1:
        raise NotProvedError(f"a {name} of something else than channels", "use dim=1")
    made = getattr(torch, name)(torch.arange(shape[0], device="cpu"), size)
    return [ChannelSlice(int(piece[0]), int(piece[-1]) + 1) for piece in made]


def _flatten(shape: Shape, start_dim: int = 0, end_dim: int = -1) -> Operator:
    if axis_of(start_dim, shape) != 1 or axis_of(end_dim, shape) != len(shape):
        raise NotProvedError("a flattening of other axes than all but the batch", "use torch.flatten(x, 1)")
    return Reshape()


def _interpolate(
    shape: Shape,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: bool = False,
) -> nn.Module:
    return nn.Upsample(size, scale_factor, mode)


def _dropout(shape: Shape, p: float = 0.5, training: bool = True, inplace: bool = False) -> Operator:
    if training:
        raise NotProvedError("a dropout in training mode", "pass training=self.training, or use nn.Dropout")
    return Sequence(())


def _flip(shape: Shape, *dims: Any) -> Operator:
    axes = {axis_of(axis, shape) for axis in _listed(dims)}
    if len(shape) != 3 or not axes <= {2, 3}:
        raise NotProvedError("a flip of other axes than rows and columns", "flip axes 2 and 3 of maps")
    upside_down = (Transpose((0, 2, 1)), Mirror(), Transpose((0, 2, 1)))
    return Sequence.of(*(upside_down if 2 in axes else ()), *([Mirror()] if 3 in axes else []))


def _pad(shape: Shape, pad: Any, mode: str = "constant", value: float | None = None) -> Operator:
    sides = [*pad, *(0,) * (2 * len(shape) - len(pad))]
    *others, before, behind = sides[: 2 * len(shape)]
    if mode != "constant" or value not in (None, 0) or any(others) or len(sides) > 2 * len(shape):
        raise NotProvedError("a padding by something else than channels of zeros", PAD)
    if min(before, behind) < 0:
        raise NotProvedError("a padding that takes channels away", "use x[:, a:b]")
    parts: list[Operator] = [ChannelPad(shape[0] + behind)] if behind else []
    if before:  # zeros behind, with the channels from the last to the first
        turned = _channels_reversed((shape[0] + behind, *shape[1:]))
        back = _channels_reversed((shape[0] + behind + before, *shape[1:]))
        parts += [*turned, ChannelPad(shape[0] + behind + before), *back]
    return Sequence.of(*parts)


def _channels_reversed(shape: Shape) -> tuple[Operator, ...]:
    flat = (1, shape[0], torch.Size(shape[1:]).numel())
    return Reshape(flat), Transpose((0, 2, 1)), Mirror(), Transpose((0, 2, 1)), Reshape(shape)


def _getitem(shape: Shape, index: Any) -> Operator:
    whole = slice(None)
    places = list(index) if isinstance(index, (tuple, list)) else [index]
    if ... in places:  # stands for all axes that have no place of their own
        at = places.index(...)
        places[at : at + 1] = [whole] * (len(shape) + 2 - len(places))
    if not places or not all(isinstance(place, slice) for place in places):
        raise NotProvedError("an index that is no slice", "use x[:, a:b]")
    batch, channels, *rest = [*places, whole]
    start, stop, step = channels.indices(shape[0])
    if batch != whole or any(place != whole for place in rest) or step != 1 or stop <= start:
        raise NotProvedError("a slice of something else than channels", "use x[:, a:b]")
    return ChannelSlice(start, stop)


def _mean(shape: Shape, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Operator:
    axes = {axis_of(axis, shape) for axis in _listed([dim])} if dim is not None else set()
    if len(shape) != 3 or axes != {2, 3} or dtype is not None:
        raise NotProvedError("a mean over something else than the pixels of a map", "use x.mean((2, 3))")
    pooled = Pool("average", (shape[1], shape[2]), (shape[1], shape[2]), (0, 0))
    return pooled if keepdim else Sequence.of(pooled, Reshape((shape[0],)))


def _reshape(shape: Shape, *sides: Any) -> Operator:
    batch, *rest = _listed(sides)
    count = torch.Size(shape).numel()
    known = torch.Size([side for side in rest if side != -1]).numel()
    made = tuple(count // known if side == -1 else side for side in rest)
    if (batch is not BATCH and batch != -1) or torch.Size(made).numel() != count or rest.count(-1) > 1:
        raise NotProvedError("a reshape that does not keep the batch", "use torch.flatten(x, 1)")
    return Reshape(made)


def _permute(shape: Shape, *dims: Any) -> Operator:
    batch, *order = [axis_of(axis, shape) for axis in _listed(dims)]
    if batch != 0:
        raise NotProvedError("a permutation that does not keep the batch", "leave axis 0 where it is")
    return Transpose(tuple(axis - 1 for axis in order))


def _transpose(shape: Shape, dim0: int, dim1: int) -> Operator:
    order = list(range(len(shape) + 1))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(shape, *order)


def _listed(values: Any) -> list[Any]:
    """The axes of f(x, 1, 2) and of f(x, (1, 2))."""
    return list(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else list(values)


SINGLE: dict[str, Callable[..., Operator | nn.Module]] = {
    "abs": lambda shape: Elementwise("abs"),
    "contiguous": lambda shape, memory_format=None: Sequence(()),
    "dropout": _dropout,
    "flatten": _flatten,
    "flip": _flip,
    "getitem": _getitem,
    "interpolate": _interpolate,
    "mean": _mean,
    "pad": _pad,
    "permute": _permute,
    "reshape": _reshape,
    "transpose": _transpose,
    "view": _reshape,
}
"""From the shape of a sample and the other arguments to an operator, or a module that does the same.

A NotProvedError has two arguments: what is refused, and what to do."""
