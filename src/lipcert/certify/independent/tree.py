"""A network as a tree of operators with plain arrays, and the shapes that they take and make."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOPES = {"relu": 1.0, "leaky relu": 1.0, "abs": 1.0, "tanh": 1.0, "sigmoid": 0.25, "softplus": 1.0}
"""Functions of one number, and their largest slopes; of a leaky ReLU also what the file says."""
Array = NDArray[Any]
Shape = tuple[int, ...]
LARGEST = 2**26
"""Numbers in one sample anywhere in a network: far beyond any that trains."""


@dataclass(frozen=True)
class Leaf:
    """One operator with its numbers, its place in the network, and the constant that the file states."""

    number: int
    kind: str
    values: Mapping[str, Any]
    path: str
    layer: str
    input_shape: Shape
    stated: float


@dataclass(frozen=True)
class Combinator:
    """A Sequence, WeightedSum or Concatenation of nodes; only a weighted sum has weights."""

    kind: str
    parts: tuple["Leaf | Combinator", ...]
    weights: tuple[float, ...] = ()


Node = Leaf | Combinator


@dataclass(frozen=True)
class Network:
    """The content of a file; `lipschitz` is what it states, from pixels to features."""

    tree: Node
    input_shape: Shape
    classes: tuple[str, ...]
    lipschitz: float
    sha256: str
    name: str = ""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The operators in the order of execution."""
        return tuple(_leaves(self.tree))


def _leaves(node: Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    else:
        for part in node.parts:
            yield from _leaves(part)


def output_shape(node: Node, shape: Shape) -> Shape:
    """The shape that a node makes of samples of a shape.

    Raises:
        ValueError: it does not take them, or its own numbers do not fit each other.
    """
    if isinstance(node, Leaf):
        if shape != node.input_shape:
            raise ValueError(f"{node.path}: stated for inputs of shape {node.input_shape}, gets {shape}")
        made = _leaf_shape(node.kind, node.values, shape)
        if made is None:
            raise ValueError(f"{node.path}: a {node.kind} whose numbers do not fit inputs of shape {shape}")
    elif node.kind == "Sequence":
        for part in node.parts:
            shape = output_shape(part, shape)
        made = shape
    else:
        shapes = [output_shape(part, shape) for part in node.parts]
        if len({s if node.kind == "WeightedSum" else s[1:] for s in shapes}) > 1:
            raise ValueError(f"{node.kind} of outputs of shapes {' and '.join(map(str, shapes))}")
        made = shapes[0] if node.kind == "WeightedSum" else (sum(s[0] for s in shapes), *shapes[0][1:])
    if not 0 < math.prod(made) <= LARGEST:
        raise ValueError(f"maps of shape {made} are empty or too large")
    return made


def _windows(sides: Shape, window: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Shape:
    """How many windows there are in each direction; none or less makes a shape that is refused."""
    if min(padding) < 0:
        raise ValueError(f"a padding of {padding}")
    steps = zip(sides, window, stride, padding, dilation, strict=True)
    return tuple(max(0, (n + 2 * p - d * (k - 1) - 1) // s + 1) for n, k, s, p, d in steps)


def _fits_memory(channels: int, sides: Shape, padding: Shape) -> bool:
    """Whether a map with what is added around it is not too large."""
    return channels * math.prod(n + 2 * p for n, p in zip(sides, padding, strict=True)) <= LARGEST


def _leaf_shape(kind: str, v: Mapping[str, Any], shape: Shape) -> Shape | None:
    """None if the operator does not take samples of this shape."""
    channels, sides, rank = shape[0] if shape else 0, shape[1:], len(shape)
    sizes = {name: value.shape for name, value in v.items() if isinstance(value, np.ndarray)}
    bias, groups = sizes.get("bias"), rank in (1, 3)
    fits, made = False, shape
    if kind == "ChannelAffine":
        fits = groups and sizes["mean"] == sizes["std"] == (channels,) and bool((v["std"] != 0).all())
    elif kind == "SpaceToDepth":
        fits = rank == 3 and not any(side % 2 for side in sides)
        made = (4 * channels, *(side // 2 for side in sides))
    elif kind == "Reshape":
        made = (math.prod(shape),) if v["shape"] is None else v["shape"]
        fits = bool(made) and math.prod(made) == math.prod(shape)
    elif kind == "Mirror":
        fits = rank == 3
    elif kind == "ChannelPad":
        fits, made = rank > 0 and v["channels"] >= channels, (v["channels"], *sides)
    elif kind == "ChannelSlice":
        fits, made = rank > 0 and 0 <= v["start"] < v["stop"] <= channels, (v["stop"] - v["start"], *sides)
    elif kind == "Matrix":
        made = sizes["weight"][:1]
        fits = len(sizes["weight"]) == 2 and shape == sizes["weight"][1:] and bias in (None, made)
    elif kind == "CircularConvolution":
        (out, *rest), step, count = sizes["kernel"], v["stride"], v["groups"]
        fits = rank == 3 and len(rest) == 3 and rest[1] == rest[2] and rest[1] % 2 == 1
        fits = fits and min(step, v["dilation"], count) > 0 and rest[0] * count == channels
        fits = fits and not (out % count or any(side % step for side in sides))
        # The map with what wraps around it has to fit into memory, too.
        fits = fits and channels * math.prod(side + v["dilation"] * rest[1] for side in sides) <= LARGEST
        made = (out, *(side // step for side in sides)) if fits else shape
        fits = fits and bias in (None, (out,))
    elif kind == "TransposedConvolution":
        # Whatever takes maps of the output's size back to the input's.
        per_group, step = (*sizes["kernel"], 0, 0)[1], v["stride"]
        made = (per_group * max(0, v["groups"]), *(side * max(0, step) for side in sides))
        fits = rank == 3 and 0 < math.prod(made) <= LARGEST and bias in (None, made[:1])
        back = {**v, "bias": None}
        fits = fits and _leaf_shape("CircularConvolution", back, made) == shape
    elif kind == "Frame":
        made = (channels, *(side + 2 * v["margin"] for side in sides))
        fits = rank == 3 and v["margin"] != 0 and min(made) > 0
    elif kind == "GradientStep":
        hidden, *rest = sizes["kernel"]
        fits = rank == 3 and len(rest) == 3 and rest[1] == rest[2] and rest[1] % 2 == 1
        fits = fits and channels == v["in_channels"] <= rest[0] and 0 < v["out_channels"] <= rest[0]
        fits, made = fits and bias in (None, (hidden,)), (v["out_channels"], *sides)
    elif kind == "SpectralConvolution":
        count, out, *rest = sizes["spectrum"]
        fits = rank == 3 and v["map_size"] == sides and count == sides[0] * (sides[1] // 2 + 1)
        # Real matrices only where all Fourier coefficients are real: on maps of up to 2x2.
        fits = fits and (rest == [channels, 2] or (rest == [channels] and max(sides) <= 2))
        fits, made = fits and bias in (None, (out,)), (out, *sides)
    elif kind == "SkewPolynomial":
        count, c = (*sizes["taps"], 0, 0)[:2]
        fits = (
            rank == 3 and sizes["taps"] == (count, c, c) and math.isqrt(2 * count + 1) ** 2 == 2 * count + 1
        )
        fits = fits and sizes["centre"] == (c * (c - 1) // 2,) and len(v["coefficients"]) > 1
        fits = fits and channels == v["in_channels"] <= c and 0 < v["out_channels"] <= c
        made = (v["out_channels"], *sides)
        fits = fits and bias in (None, made[:1])
    elif kind == "Convolution":
        out, *rest = sizes["kernel"]
        fits = rank == 3 and len(rest) == 3 and v["groups"] > 0 and out % v["groups"] == 0
        fits = fits and min(out, *rest) > 0 and channels == rest[0] * v["groups"] and bias in (None, (out,))
        fits = fits and _fits_memory(channels, sides, v["padding"])
        made = (out, *_windows(sides, rest[1:], v["stride"], v["padding"], v["dilation"])) if fits else shape
    elif kind == "Pool":
        fits = rank == 3 and v["function"] in ("average", "max", "norm")
        fits = fits and _fits_memory(channels, sides, v["padding"])
        made = (channels, *_windows(sides, v["window"], v["stride"], v["padding"], (1, 1))) if fits else shape
        fits = fits and all(2 * p <= k for p, k in zip(v["padding"], v["window"], strict=True))
    elif kind == "Repeat":
        fits = rank == 3 and len(v["block"]) == 2
        made = (channels, *(n * b for n, b in zip(sides, v["block"], strict=True))) if fits else shape
    elif kind == "Transpose":
        fits = sorted(v["order"]) == list(range(rank))
        made = tuple(shape[axis] for axis in v["order"]) if fits else shape
    elif kind == "Elementwise":
        fits = v["function"] in SLOPES and (v["slope"] == 0 or v["function"] == "leaky relu")
    elif kind == "GroupSort":
        fits = groups and v["group"] > 1 and channels % v["group"] == 0
    elif kind == "Householder":
        fits = groups and channels % 2 == 0 and sizes["theta"] == (channels // 2,)
    elif kind == "HouseholderOrder":
        orders = sizes["widths"][1:2]
        fits = groups and channels % 2 == 0 and sizes["theta"] == (channels // 2,)
        fits = fits and sizes["widths"] == (2, *orders, channels // 2) and min(orders) > 0
    elif kind == "HouseholderND":
        vectors = v["vectors"]
        fits = groups and vectors.ndim == 3 and vectors.shape[1] * vectors.shape[2] == channels
        fits = fits and len(vectors) > 0
        fits = fits and bool((vectors != 0).any(axis=1).all())
    return made if fits else None
