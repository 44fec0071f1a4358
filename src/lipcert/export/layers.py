"""One function, a case per layer: what a frozen layer is in ONNX."""

from functools import singledispatch

from lipcert.errors import ArgumentError
from lipcert.export.graph import Graph
from lipcert.nn.lipschitz import Shape


@singledispatch
def emit(layer: object, graph: Graph, x: str, shape: Shape) -> str:
    """Append what the layer does to the value `x` to the graph; returns the name of the result.

    A new layer needs nothing if it freezes to a form that is known here (a convolution, a matrix); else it is
    one function registered with `@emit.register`.

    Args:
        layer: a frozen layer.
        graph: where the nodes go.
        x: name of the input, (N, *shape).
        shape: shape of one sample of it.

    Raises:
        ArgumentError: a layer that nobody has written in ONNX.
    """
    raise ArgumentError(
        f"model: {type(layer).__name__} has no ONNX form; let it freeze to a layer that has one, or register "
        "a function with lipcert.export.layers.emit"
    )
