"""Random trees of small operators from one shape to another, for Hypothesis."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from lipcert.operators import (
    ChannelAffine,
    ChannelPad,
    ChannelSlice,
    CircularConvolution,
    Concatenation,
    Convolution,
    Elementwise,
    GroupSort,
    Householder,
    HouseholderND,
    Matrix,
    Mirror,
    Operator,
    Pool,
    Reshape,
    Sequence,
    Shape,
    SkewPolynomial,
    Transpose,
    WeightedSum,
)

WEIGHTS = st.integers(-48, 48).map(lambda n: n / 32)
"""From -1.5 to 1.5, exact in float32."""
SHAPES = st.one_of(
    st.tuples(st.integers(1, 6)), st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
)
VECTORS = st.tuples(st.integers(2, 5))


def trees(
    inputs: st.SearchStrategy[Shape] = SHAPES, outputs: st.SearchStrategy[Shape] = SHAPES
) -> st.SearchStrategy[tuple[Operator, Shape]]:
    """A tree of depth up to 4, and the shape of its input."""

    @st.composite
    def build(draw: st.DrawFn) -> tuple[Operator, Shape]:
        shape = draw(inputs)
        made = draw(outputs)
        if len(made) == 3 and (len(shape) == 1 or shape[1:] != made[1:]):
            made = (torch.Size(made).numel(),)  # maps of another size are written as vectors
        return draw(tree(shape, made, 4)), shape

    return build()


@st.composite
def tree(draw: st.DrawFn, shape: Shape, made: Shape, depth: int) -> Operator:
    """From `shape` to `made`, which has the same map size or none."""
    kinds = ["leaf"] if depth == 0 else ["leaf", "sequence", "sum", "cat"]
    kind = draw(st.sampled_from(kinds))
    if kind == "sequence":
        between = (draw(st.integers(1, 4)), *shape[1:])
        return Sequence.of(draw(tree(shape, between, depth - 1)), draw(tree(between, made, depth - 1)))
    if kind == "sum":
        weights = tuple(draw(st.lists(WEIGHTS, min_size=1, max_size=3)))
        skips = draw(st.booleans()) and shape == made
        branches = [draw(tree(shape, made, depth - 1)) for _ in weights]
        return WeightedSum((Sequence(()), *branches[1:]) if skips else tuple(branches), weights)
    if kind == "cat" and made[0] > 1:
        cut = draw(st.integers(1, made[0] - 1))
        parts = ((cut, *made[1:]), (made[0] - cut, *made[1:]))
        return Concatenation(tuple(draw(tree(shape, part, depth - 1)) for part in parts))
    return draw(leaf(shape, made))


@st.composite
def leaf(draw: st.DrawFn, shape: Shape, made: Shape) -> Operator:
    """One operator, or one with what is needed to fit the shapes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def numbers(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).double()

    if len(shape) != len(made):
        weight = numbers(made[0], torch.Size(shape).numel())
        return Sequence.of(Reshape(), Matrix(weight, numbers(made[0])))
    channels, outputs = shape[0], made[0]
    choices: list[Operator] = []
    if len(shape) == 1:
        choices.append(Matrix(numbers(outputs, channels), numbers(outputs)))
    else:
        choices.append(CircularConvolution(numbers(outputs, channels, 3, 3) / 4, numbers(outputs)))
        choices.append(Convolution(numbers(outputs, channels, 3, 3) / 4, numbers(outputs), padding=(1, 1)))
        wide = max(channels, outputs)
        centre, taps = numbers(wide * (wide - 1) // 2), numbers(4, wide, wide)
        coefficients = (1.0, 1.0, 0.5)
        choices.append(
            SkewPolynomial(centre, taps, 0.25, 0.125, coefficients, channels, outputs, numbers(outputs))
        )
    if channels <= outputs:
        choices.append(ChannelPad(outputs))
    if outputs <= channels:
        choices.append(ChannelSlice(channels - outputs, channels))
    if channels == outputs:
        std = (numbers(channels).abs() + 0.5).float().double()
        choices += [Sequence(()), ChannelAffine(numbers(channels), std)]
        choices += [Elementwise(name) for name in ("relu", "abs", "tanh", "sigmoid", "softplus")]
        choices += [Elementwise("leaky relu", -1.5)]
        if len(shape) == 3:
            choices += [Mirror(), Sequence.of(Transpose((0, 2, 1)), Mirror(), Transpose((0, 2, 1)))]
            choices += [Pool(name, (3, 3), (1, 1), (1, 1)) for name in ("average", "max", "norm")]
        choices += [HouseholderND(numbers(2, channels, 1))]
        if channels % 2 == 0:
            choices += [GroupSort(2), Householder(numbers(channels // 2))]
    return draw(st.sampled_from(choices))
