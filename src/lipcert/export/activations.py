"""Activations as plain ONNX operators. Sines and cosines of learned angles become constants."""

import math

import torch
from torch import Tensor

from lipcert.export.graph import Graph
from lipcert.export.layers import emit
from lipcert.functional.householder import sector_starts
from lipcert.nn.activations import (
    GroupSort,
    Householder,
    HouseholderChain,
    HouseholderND,
    HouseholderOrder,
    MaxMin,
)
from lipcert.nn.lipschitz import Shape


@emit.register
def _maxmin(layer: MaxMin, graph: Graph, x: str, shape: Shape) -> str:
    halves = graph.halves(x, shape[0])
    return _joined(graph, graph.add("Max", halves), graph.add("Min", halves))


@emit.register
def _groupsort(layer: GroupSort, graph: Graph, x: str, shape: Shape) -> str:
    size = layer.group_size
    groups = graph.reshape(x, [size, shape[0] // size, *shape[1:]])
    ordered = f"sorted_{len(graph.nodes)}"
    graph.nodes.append(
        graph.onnx.helper.make_node(
            "TopK", [groups, graph.integers([size])], [ordered, f"{ordered}_places"], name=ordered, axis=1
        )
    )
    return graph.reshape(ordered, shape)


@emit.register
def _householder(layer: Householder, graph: Graph, x: str, shape: Shape) -> str:
    return _reflected(graph, x, layer.theta, shape)


@emit.register
def _chain(layer: HouseholderChain, graph: Graph, x: str, shape: Shape) -> str:
    for theta in layer.theta:
        x = _reflected(graph, x, theta, shape)
    return x


@emit.register
def _order(layer: HouseholderOrder, graph: Graph, x: str, shape: Shape) -> str:
    """Theorem 2: the matrix of the sector that holds the pair; its phase is compared with all boundaries."""
    if layer.widths is None:
        return _reflected(graph, x, layer.theta, shape)
    starts = sector_starts(layer.theta.double(), layer.widths.double())
    angles = [starts[0] * 2]
    for start in starts[1:]:
        angles.append(2 * start - angles[-1])
    z1, z2 = graph.halves(x, shape[0])
    cosine, sine = starts[0].cos(), starts[0].sin()
    along = _mixed(graph, z1, z2, cosine, sine, shape)
    across = _mixed(graph, z1, z2, -sine, cosine, shape)
    # Falls from 2 to 0 over the first half turn and from 0 to -2 over the second, without an arctangent.
    size = graph.add("Add", [graph.add("Abs", [along]), graph.add("Abs", [across])])
    upper = graph.add("Add", [graph.add("Div", [along, size]), graph.numbers(1.0)])
    below = graph.add("Less", [across, graph.numbers(0.0)])
    phase = graph.add("Where", [below, graph.add("Neg", [upper]), upper])
    rows = [_rows(angle, index) for index, angle in enumerate(angles)]
    chosen = [_constant(graph, entry, shape) for entry in rows[0]]
    for start, entries in zip(starts[1:], rows[1:], strict=True):
        turn = start - starts[0]
        mark = (turn.cos() / (turn.cos().abs() + turn.sin().abs()) + 1).copysign(math.pi - turn)
        passed = graph.add("LessOrEqual", [phase, _constant(graph, mark, shape)])
        chosen = [
            graph.add("Where", [passed, _constant(graph, entry, shape), old])
            for entry, old in zip(entries, chosen, strict=True)
        ]
    first, second = (
        graph.add("Add", [graph.add("Mul", [z1, chosen[i]]), graph.add("Mul", [z2, chosen[i + 1]])])
        for i in (0, 2)
    )
    return _joined(graph, first, second)


@emit.register
def _nd(layer: HouseholderND, graph: Graph, x: str, shape: Shape) -> str:
    size = layer.group_size
    groups = graph.reshape(x, [size, shape[0] // size, *shape[1:]])
    for vector in layer.vectors.double():
        unit = (vector / torch.linalg.vector_norm(vector, dim=0)).view(1, size, -1, *(1 for _ in shape[1:]))
        along = graph.add("Mul", [groups, graph.numbers(unit)])
        side = graph.add("ReduceSum", [along, graph.integers([1])], {"keepdims": 1})
        behind = graph.add("Min", [side, graph.numbers(0.0)])
        groups = graph.add("Add", [groups, graph.add("Mul", [behind, graph.numbers(-2 * unit)])])
    return graph.reshape(groups, shape)


def _reflected(graph: Graph, x: str, theta: Tensor, shape: Shape) -> str:
    """Corollary 1: pairs on the far side of their line are mirrored at it."""
    theta = theta.double()
    z1, z2 = graph.halves(x, shape[0])
    side = _mixed(graph, z1, z2, (theta / 2).sin(), -(theta / 2).cos(), shape)
    keep = graph.add("Greater", [side, graph.numbers(0.0)])
    first = _mixed(graph, z1, z2, theta.cos(), theta.sin(), shape)
    second = _mixed(graph, z1, z2, theta.sin(), -theta.cos(), shape)
    return _joined(graph, graph.add("Where", [keep, z1, first]), graph.add("Where", [keep, z2, second]))


def _rows(angle: Tensor, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The matrix of sector `index`, row by row."""
    sign = (-1) ** index
    return angle.cos(), angle.sin(), sign * angle.sin(), -sign * angle.cos()


def _mixed(graph: Graph, z1: str, z2: str, first: Tensor, second: Tensor, shape: Shape) -> str:
    terms = [
        graph.add("Mul", [z, _constant(graph, factor, shape)]) for z, factor in ((z1, first), (z2, second))
    ]
    return graph.add("Add", terms)


def _constant(graph: Graph, per_channel: Tensor, shape: Shape) -> str:
    return graph.numbers(per_channel.view(1, -1, *(1 for _ in shape[1:])))


def _joined(graph: Graph, first: str, second: str) -> str:
    return graph.add("Concat", [first, second], {"axis": 1})
