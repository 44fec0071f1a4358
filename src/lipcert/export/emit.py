"""One function, a case per operator: what a frozen operator is in ONNX. Combinators are here."""

from functools import singledispatch

from lipcert.errors import ArgumentError
from lipcert.export.graph import Graph
from lipcert.models.freezing import fastest
from lipcert.operators import Concatenation, Sequence, Shape, WeightedSum
from lipcert.operators.proved import Proved


@singledispatch
def emit(operator: object, graph: Graph, x: str, shape: Shape) -> str:
    """Append what the operator does to the value `x` to the graph; returns the name of the result.

    Args:
        operator: of the closed set in `lipcert.operators`.
        graph: where the nodes go.
        x: name of the input, (N, *shape).
        shape: shape of one sample of it.

    Raises:
        ArgumentError: an operator that has no ONNX form.
    """
    raise ArgumentError(
        f"network: {type(operator).__name__} has no ONNX form; let the layer freeze to operators of "
        "lipcert.operators, or register a function with lipcert.export.emit.emit"
    )


@emit.register
def _proved(operator: Proved, graph: Graph, x: str, shape: Shape) -> str:
    form = fastest(operator.operator, shape, by_torus=False)
    # By exact type: a subclass may compute something else than the class it comes from.
    case = emit.dispatch(type(form) if type(form) in emit.registry else object)
    return case(form, graph, x, shape)


@emit.register
def _sequence(operator: Sequence, graph: Graph, x: str, shape: Shape) -> str:
    for part in operator.parts:
        x, shape = emit(part, graph, x, shape), part.output_shape(shape)
    return x


@emit.register
def _weighted_sum(operator: WeightedSum, graph: Graph, x: str, shape: Shape) -> str:
    total: str | None = None
    for branch, weight in zip(operator.branches, operator.weights, strict=True):
        value = emit(branch, graph, x, shape)
        term = value if weight == 1 else graph.add("Mul", [value, graph.numbers(weight)])
        total = term if total is None else graph.add("Add", [total, term])
    assert total is not None, "a sum has at least one branch"
    return total


@emit.register
def _concatenation(operator: Concatenation, graph: Graph, x: str, shape: Shape) -> str:
    return graph.add("Concat", [emit(branch, graph, x, shape) for branch in operator.branches], {"axis": 1})
