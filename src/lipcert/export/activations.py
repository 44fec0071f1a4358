"""Activations and pooling as plain ONNX operators. Sines and cosines of learned angles become constants."""

import math

import torch
from torch import Tensor

from lipcert.export.emit import emit
from lipcert.export.graph import Graph
from lipcert.kernels.householder import sector_starts
from lipcert.operators import (
    Elementwise,
    GroupSort,
    Householder,
    HouseholderND,
    HouseholderOrder,
    Pool,
    Shape,
)

FUNCTIONS = {
    "relu": "Relu", "leaky relu": "LeakyRelu", "abs": "Abs", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "softplus": "Softplus",
}  # fmt: skip
POOLS: dict[str, tuple[str, dict[str, int]]] = {
    "average": ("AveragePool", {"count_include_pad": 1}),
    "max": ("MaxPool", {}),
    "norm": ("LpPool", {"p": 2}),
}


@emit.register
def _elementwise(operator: Elementwise, graph: Graph, x: str, shape: Shape) -> str:
    slope = {"alpha": operator.slope} if operator.function == "leaky relu" else {}
    return graph.add(FUNCTIONS[operator.function], [x], slope)


@emit.register
def _pool(operator: Pool, graph: Graph, x: str, shape: Shape) -> str:
    name, attributes = POOLS[operator.function]
    windows = {"kernel_shape": operator.window, "strides": operator.stride, "pads": operator.padding * 2}
    return graph.add(name, [x], windows | attributes)


@emit.register
def _groupsort(operator: GroupSort, graph: Graph, x: str, shape: Shape) -> str:
    size = operator.group
    if size == 2:
        halves = graph.halves(x, shape[0])
        return _joined(graph, graph.add("Max", halves), graph.add("Min", halves))
    groups = graph.reshape(x, [size, shape[0] // size, *shape[1:]])
    ordered = f"sorted_{len(graph.nodes)}"
    graph.nodes.append(
        graph.onnx.helper.make_node(
            "TopK", [groups, graph.integers([size])], [ordered, f"{ordered}_places"], name=ordered, axis=1
        )
    )
    return graph.reshape(ordered, shape)


@emit.register
def _householder(operator: Householder, graph: Graph, x: str, shape: Shape) -> str:
    """Corollary 1: pairs on the far side of their line are mirrored at it."""
    theta = operator.theta.double()
    z1, z2 = graph.halves(x, shape[0])
    side = _mixed(graph, z1, z2, (theta / 2).sin(), -(theta / 2).cos(), shape)
    keep = graph.add("Greater", [side, graph.numbers(0.0)])
    first = _mixed(graph, z1, z2, theta.cos(), theta.sin(), shape)
    second = _mixed(graph, z1, z2, theta.sin(), -theta.cos(), shape)
    return _joined(graph, graph.add("Where", [keep, z1, first]), graph.add("Where", [keep, z2, second]))


@emit.register
def _order(operator: HouseholderOrder, graph: Graph, x: str, shape: Shape) -> str:
    """Theorem 2: the matrix of the sector that holds the pair; its phase is compared with all boundaries."""
    theta, widths = operator.theta.double(), operator.widths.double()
    offsets = sector_starts(torch.zeros_like(theta), widths)
    angles = [theta]
    for offset in offsets[1:]:
        angles.append(theta + 2 * offset - angles[-1])
    z1, z2 = graph.halves(x, shape[0])
    cosine, sine = (theta / 2).cos(), (theta / 2).sin()
    along = _mixed(graph, z1, z2, cosine, sine, shape)
    across = _mixed(graph, z1, z2, -sine, cosine, shape)
    # Falls from 2 to 0 over the first half turn and from 0 to -2 over the second, without an arctangent.
    size = graph.add("Add", [graph.add("Abs", [along]), graph.add("Abs", [across])])
    upper = graph.add("Add", [graph.add("Div", [along, size]), graph.numbers(1.0)])
    below = graph.add("Less", [across, graph.numbers(0.0)])
    phase = graph.add("Where", [below, graph.add("Neg", [upper]), upper])
    chosen = _rows(graph, angles[0], 1, shape)
    for index, (offset, angle) in enumerate(zip(offsets[1:], angles[1:], strict=True), start=1):
        mark = (offset.cos() / (offset.cos().abs() + offset.sin().abs()) + 1).copysign(math.pi - offset)
        passed = graph.add("LessOrEqual", [phase, graph.per_channel(mark, shape)])
        rows = _rows(graph, angle, (-1) ** index, shape)
        chosen = [graph.add("Where", [passed, *pair]) for pair in zip(rows, chosen, strict=True)]
    first, second = (
        graph.add("Add", [graph.add("Mul", [z1, chosen[i]]), graph.add("Mul", [z2, chosen[i + 1]])])
        for i in (0, 2)
    )
    return _joined(graph, first, second)


@emit.register
def _nd(operator: HouseholderND, graph: Graph, x: str, shape: Shape) -> str:
    _, size, count = operator.vectors.shape
    groups = graph.reshape(x, [size, count, *shape[1:]])
    for vector in operator.vectors.double():
        scaled = vector / vector.abs().amax(dim=0)  # or the squares of small numbers would vanish
        unit = (scaled / torch.linalg.vector_norm(scaled, dim=0)).view(1, size, -1, *(1 for _ in shape[1:]))
        along = graph.add("Mul", [groups, graph.numbers(unit)])
        side = graph.add("ReduceSum", [along, graph.integers([1])], {"keepdims": 1})
        behind = graph.add("Min", [side, graph.numbers(0.0)])
        groups = graph.add("Add", [groups, graph.add("Mul", [behind, graph.numbers(-2 * unit)])])
    return graph.reshape(groups, shape)


def _rows(graph: Graph, angle: Tensor, sign: int, shape: Shape) -> list[str]:
    """The matrix of a sector, row by row: a reflection for sign 1, a rotation for -1."""
    entries = (angle.cos(), angle.sin(), sign * angle.sin(), -sign * angle.cos())
    return [graph.per_channel(entry, shape) for entry in entries]


def _mixed(graph: Graph, z1: str, z2: str, first: Tensor, second: Tensor, shape: Shape) -> str:
    terms = [
        graph.add("Mul", [z, graph.per_channel(factor, shape)]) for z, factor in ((z1, first), (z2, second))
    ]
    return graph.add("Add", terms)


def _joined(graph: Graph, first: str, second: str) -> str:
    return graph.add("Concat", [first, second], {"axis": 1})
