"""Traces the forward of a user-defined module with torch.fx, and turns the graph into a tree."""

import inspect
import operator as python
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from lipcert.errors import NotProvedError
from lipcert.models.at_rest import AtRest
from lipcert.models.graph import Freeze, GraphReader, Mark, Number
from lipcert.operators import Operator, Shape


class _Value(fx.Proxy):
    """A symbol that tells `x += y`, which changes what other names of x mean, from `x = x + y`."""

    def _change(self, function: Any, other: Any) -> "_Value":
        changed = self.tracer.create_proxy("call_function", function, (self, other), {})
        assert isinstance(changed, _Value)
        return changed

    def __iadd__(self, other: Any) -> "_Value":
        return self._change(python.iadd, other)

    def __isub__(self, other: Any) -> "_Value":
        return self._change(python.isub, other)

    def __imul__(self, other: Any) -> "_Value":
        return self._change(python.imul, other)

    def __itruediv__(self, other: Any) -> "_Value":
        return self._change(python.itruediv, other)

    def __len__(self) -> int:
        raise TypeError("it calls len of a tensor; x.shape[0] is the size of its batch")

    def __setattr__(self, name: str, value: Any) -> None:
        """Only what the tracer keeps: `x.data = y` would be lost."""
        if name not in ("tracer", "node"):
            raise TypeError(f"it assigns to .{name} of a tensor")
        super().__setattr__(name, value)


class _Tracer(fx.Tracer):
    def __init__(self, is_leaf: Callable[[nn.Module], bool], at_rest: AtRest) -> None:
        super().__init__()
        self._is_leaf, self._at_rest = is_leaf, at_rest

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The forward of the class, without hooks and without what was put on an instance."""
        if self._is_leaf(m):
            self._at_rest.check(m)
        return super().call_module(m, partial(type(m).forward, m), args, kwargs)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """A forward is called with one batch; further arguments have their defaults."""

        def forward(module: nn.Module, x: Any) -> Any:
            return root_fn(module, x)

        return super().create_args_for_root(forward, is_module, concrete_args)

    def create_arg(self, a: Any) -> Any:
        """A tensor of one element is a number."""
        if isinstance(a, torch.Tensor) and a.numel() == 1 and not a.is_complex():
            return Number.of(a)
        return super().create_arg(a)

    def proxy(self, node: fx.Node) -> _Value:
        """The symbol that stands for what a node makes."""
        return _Value(node, self)

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        """Modules that are read as a whole, and containers that know how to be read."""
        return self._is_leaf(module)


def trace(
    module: nn.Module,
    shape: Shape,
    path: str,
    is_leaf: Callable[[nn.Module], bool],
    freeze: Freeze,
    mark: Mark,
) -> Operator:
    """A module with a forward of its own as a tree of operators.

    Args:
        module: takes one batch of images or maps and returns one batch.
        shape: of one sample of its input.
        path: where it stands in the network.
        is_leaf: whether a module inside is read as a whole.
        freeze: reads such a module.
        mark: records the origin of an operator that stands for a function.

    Raises:
        NotProvedError: by path and name, whatever has no operator here: unknown modules and functions,
            products of activations, control flow that depends on data.
    """
    name = type(module).__name__
    at_rest = AtRest(module)
    needed = _needed_arguments(type(module).forward)
    if needed > 1:
        raise NotProvedError(
            f"{path or 'model'}: a forward with {needed} arguments in {name} has no proved bound; it takes "
            "one batch, and every other argument needs a default"
        )
    try:
        graph, again = (_Tracer(is_leaf, at_rest).trace(module) for _ in range(2))
        for node in graph.nodes:
            if node.op == "call_module":
                at_rest.check(module.get_submodule(str(node.target)))
    except RecursionError:
        raise
    except Exception as error:
        # A forward may raise anything on a symbol in place of numbers: loops, conditions, numpy, ...
        reason = str(error).partition("\n")[0]
        raise NotProvedError(
            f"{path or 'model'}: {name} has no proved bound, and its forward cannot be traced ({reason}); "
            "use layers of lipcert, or make it a LipschitzModule that freezes to operators"
        ) from error
    if _outline(graph) != _outline(again):
        raise NotProvedError(
            f"{path or 'model'}: {name} has no proved bound, for its forward computes something else when "
            "called again (random numbers, or a state that it changes); make it a function of its input"
        )
    return GraphReader(module, graph, shape, path, freeze, mark).tree()


def _needed_arguments(forward: Callable[..., Any]) -> int:
    """How many arguments have no default, the module itself not counted."""
    try:
        arguments = list(inspect.signature(forward).parameters.values())[1:]
    except (TypeError, ValueError):  # not a function of Python, which is not traced either
        return 1
    return sum(a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD) for a in arguments)


def _outline(graph: fx.Graph) -> list[tuple[str, Any, str]]:
    """What a graph computes, with nodes by their place in it; tensors get a new name at every trace."""
    places = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    return [
        (
            node.op,
            None if str(node.target).startswith("_tensor_constant") else node.target,
            repr(fx.node.map_arg((node.args, node.kwargs), lambda other: places[other])),
        )
        for node in graph.nodes
    ]
