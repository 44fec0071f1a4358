"""The table that feeds every contract: each registered layer, and the cases it is built for."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import pytest
import torch

from lipcert.nn import (
    ACTIVATIONS,
    CONVOLUTIONS,
    SOC,
    Center,
    ConstantHead,
    Flatten,
    Head,
    LipschitzConv2d,
    Normalize,
    NormalizedLinear,
    OrthogonalHead,
    OrthogonalLinear,
)
from lipcert.nn.linear import METHODS
from lipcert.nn.shape import SpaceToDepth
from lipcert.operators import Shape
from tests.contracts.histories import Build

CHANNELS = 12
"""A multiple of every group size."""


class Case(NamedTuple):
    """Arguments of a convolution and the size of its input."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.inputs, self.height, self.width)


CASES = [
    Case(3, 3, 3, 1, 4, 4),
    Case(2, 5, 3, 1, 5, 3),  # more channels, odd map
    Case(5, 2, 3, 1, 3, 4),  # fewer channels
    Case(4, 4, 1, 1, 3, 2),
    Case(3, 4, 3, 1, 1, 1),  # a kernel larger than the map
    Case(3, 3, 3, 1, 2, 1),
    Case(2, 8, 3, 2, 4, 6),  # stride 2, square
    Case(2, 3, 3, 2, 4, 4),  # stride 2, fewer channels
    Case(1, 6, 1, 2, 2, 4),  # stride 2, more channels
    Case(2, 3, 5, 1, 4, 5),
]


def convolution_cases(chosen: list[Case], names: Iterable[str] = CONVOLUTIONS) -> list[object]:
    """Registered convolutions, all unless named, with every case that their kernel sizes allow."""
    return [
        pytest.param(name, case, id=f"{name}-{'-'.join(map(str, case))}")
        for name in names
        for case in chosen
        if case.kernel in CONVOLUTIONS[name].kernel_sizes
    ]


def convolution(name: str, case: Case) -> Callable[[], LipschitzConv2d]:
    """Builds a registered convolution."""
    return partial(CONVOLUTIONS[name], case.inputs, case.outputs, case.kernel, stride=case.stride)


def _constant(inputs: int, classes: int) -> ConstantHead:
    return ConstantHead(torch.randn(classes, inputs), torch.randn(classes))


HEADS: dict[str, Callable[[int, int], Head]] = {
    "lln": NormalizedLinear,
    "constant": _constant,
    **{f"orthogonal-{method}": partial(OrthogonalHead, method=method) for method in METHODS},
}
"""Builders of heads by their number of features and classes."""


def every_layer() -> list[object]:
    """(build, shape): all that a network of lipcert can hold."""
    rows: list[tuple[str, Build, Shape]] = []
    for name, kind in CONVOLUTIONS.items():
        for case in CASES:
            if case.kernel in kind.kernel_sizes:
                rows.append((f"{name}-{'-'.join(map(str, case))}", convolution(name, case), case.shape))
    for name, activation in ACTIVATIONS.items():
        for shape in ((CHANNELS,), (CHANNELS, 2, 3)):
            rows.append((f"{name}-{len(shape)}d", partial(activation, CHANNELS), shape))
    for name, head in HEADS.items():
        for inputs, classes in ((6, 4), (3, 5), (4, 1)):
            rows.append((f"{name}-{inputs}-{classes}", partial(head, inputs, classes), (inputs,)))
    for method in METHODS:
        rows.append((f"linear-{method}", partial(OrthogonalLinear, 5, 3, method=method), (5,)))
    rows.append(("normalize", lambda: Normalize((0.4, 0.5, 0.6), (0.25, 0.3, 0.2507)), (3, 4, 2)))
    rows.append(("flatten", Flatten, (3, 4, 2)))
    rows.append(("space-to-depth", SpaceToDepth, (3, 4, 2)))
    rows.append(("center", lambda: Center(3), (3, 4, 2)))
    return [pytest.param(build, shape, id=name) for name, build, shape in rows]


def one_of_each() -> list[object]:
    """The same with one small case for each layer and, of SOC, each series."""
    rows: list[tuple[str, Build, Shape]] = []
    case = CASES[6]
    for name in CONVOLUTIONS:
        rows.append((name, convolution(name, case), case.shape))
    for series in ("wide", "exponential"):
        rows.append((f"soc-{series}", partial(SOC, 2, 3, 3, series=series), (2, 4, 4)))
    for name, activation in ACTIVATIONS.items():
        rows.append((name, partial(activation, CHANNELS), (CHANNELS, 4, 4)))
    for name, head in HEADS.items():
        rows.append((name, partial(head, 6, 4), (6,)))
    return [pytest.param(build, shape, id=name) for name, build, shape in rows]
