"""A graph of torch.fx as a tree of operators.

A graph shares what two branches have in common; a tree of functions of one input does not. Where branches
meet, the last value that all of them come from (the immediate dominator) becomes the input of the
combinator, so that a chain of residual blocks stays a chain.
"""

import operator as python
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from lipcert.errors import ArgumentError, NotProvedError
from lipcert.models.functions import BATCH, METHODS, MODULES, NAMES, SINGLE, axis_of, pieces
from lipcert.models.plain import PLAIN, is_plain_sequence
from lipcert.operators import (
    ChannelAffine,
    ChannelSlice,
    Concatenation,
    Operator,
    Sequence,
    Shape,
    WeightedSum,
)
from lipcert.operators.rearrange import Rearrangement

IN_PLACE: dict[Any, Any] = {
    python.iadd: python.add, python.isub: python.sub,
    python.imul: python.mul, python.itruediv: python.truediv,
}  # fmt: skip
"""Functions that change their first argument, and those that compute the same."""
Freeze = Callable[[nn.Module, Shape, str], Operator]
Mark = Callable[[Operator, str, str], Operator]
"""mark(operator, path, layer): the same operator, with its origin recorded."""
MOST_OPERATORS = 10_000


class Number(float):
    """A tensor of one element, as it is now: a forward may change it later."""

    dim: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Number":
        """The number, which remembers how many axes the tensor has."""
        number = cls(float(tensor))
        number.dim = tensor.dim()
        return number


class Step(NamedTuple):
    """What one node of the graph does: to which other nodes, and how.

    Attributes:
        inputs: nodes that it reads.
        operator: of a node with one input.
        combine: of a node with several, from the branches to one operator.
        shape: of one sample of its output.
    """

    inputs: tuple[fx.Node, ...]
    operator: Operator | None
    combine: Callable[[list[Operator]], Operator] | None
    shape: Shape


class GraphReader:
    """Reads a graph node by node; the arguments are those of `lipcert.models.trace.trace`."""

    def __init__(
        self, module: nn.Module, graph: fx.Graph, shape: Shape, path: str, freeze: Freeze, mark: Mark
    ) -> None:
        self.module, self.path, self.freeze, self.mark = module, path, freeze, mark
        self.steps: dict[fx.Node, Step] = {}
        self.known: dict[fx.Node, Any] = {}  # shapes, and numbers from them
        self.above: dict[fx.Node, fx.Node | None] = {}
        self.pieces: dict[fx.Node, list[ChannelSlice]] = {}  # of chunk and split
        (self.root,) = (node for node in graph.nodes if node.op == "placeholder")
        self.count = 0
        for node in graph.nodes:
            if node.op == "output":
                self.end = node.args[0]
                if self.end not in self.steps:
                    raise self._refused("an output that is not one batch made from the input", "return one")
            elif node.op != "get_attr":
                self._add(node, shape)

    def _add(self, node: fx.Node, shape: Shape) -> None:
        if node is self.root:
            self.steps[node], self.above[node] = Step((), None, None, shape), None
            return
        try:
            step = self._module(node) if node.op == "call_module" else self._function(node)
            if step is None:
                return
        except (TypeError, IndexError, KeyError, ArithmeticError) as error:
            if node.op == "call_module":
                raise
            name = getattr(node.target, "__name__", str(node.target))
            raise self._unknown(f"{name} with such arguments") from error
        except ArgumentError as error:
            if node.op == "call_module" or str(error).startswith(self._place(node)):  # names its place
                raise
            raise ArgumentError(f"{self._place(node)}: {error}") from error
        self.steps[node] = step
        above: fx.Node | None = step.inputs[0]
        for other in step.inputs[1:]:
            above = self._common(above, other)
        self.above[node] = above

    def _common(self, first: fx.Node | None, second: fx.Node | None) -> fx.Node | None:
        """The nearest node that every path to both passes through."""
        seen = set()
        while first is not None:
            seen.add(first)
            first = self.above[first]
        while second not in seen:
            assert second is not None, "every node comes from the input"
            second = self.above[second]
        return second

    def tree(self) -> Operator:
        """The operator from the input to the output."""
        return self._between(self.root, self.end)

    def _between(self, start: fx.Node, end: fx.Node) -> Operator:
        parts: list[Operator] = []
        while end is not start:
            step = self.steps[end]
            self.count += 1
            if self.count > MOST_OPERATORS:
                raise self._refused("a graph of too many branches", "write it as fewer, nested modules")
            if step.combine is None:
                assert step.operator is not None
                parts.append(step.operator)
                end = step.inputs[0]
            else:
                meeting = self.above[end]
                assert meeting is not None
                parts.append(step.combine([self._between(meeting, branch) for branch in step.inputs]))
                end = meeting
        return Sequence.of(*reversed(parts))

    def _module(self, node: fx.Node) -> Step:
        target = str(node.target)
        if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            raise self._refused(f"a call of {target} with other arguments than one batch", "call it with one")
        source = node.args[0]
        shape = self._shape(source)
        place = f"{self.path}.{target}" if self.path else target
        module = self.module.get_submodule(target)
        operator = self.freeze(module, shape, place)
        if self._changes_its_input(module, shape, place):
            self._check_change(node, source, f"inplace=True in {place}", "use inplace=False")
        return Step((source,), operator, None, operator.output_shape(shape))

    def _function(self, node: fx.Node) -> Step | None:
        if node.target in IN_PLACE:
            self._check_change(node, node.args[0], "a change in place", "write x = x + y")
        target = IN_PLACE.get(node.target, node.target)
        name = NAMES.get(target) if node.op == "call_function" else str(target)
        if name is None or (node.op == "call_method" and name not in METHODS):
            raise self._unknown(getattr(node.target, "__name__", str(node.target)))
        arguments = [self._value(argument) for argument in node.args]
        options = {key: self._value(value) for key, value in node.kwargs.items()}
        if name == "cat":
            return self._concatenation(arguments, options)
        if self._is_known(node, name, arguments, options):
            return None
        if name in ("chunk", "split"):
            return self._split(node, name, arguments, options)
        if name == "getitem" and arguments[0] in self.pieces:
            return self._single(node, arguments[0], self.pieces[arguments[0]][arguments[1]])
        if name in SINGLE or name in MODULES:
            return self._alone(node, name, arguments, options)
        sources = [a for a in arguments if isinstance(a, fx.Node)]
        numbers = [a for a in arguments if isinstance(a, (int, float)) and not isinstance(a, bool)]
        if options.keys() == {"alpha"} and name in ("add", "sub") and len(arguments) == 2:
            return self._with_factor(node, name, arguments, options["alpha"])
        if options or len(sources) + len(numbers) != len(arguments) or not 0 < len(arguments) <= 2:
            raise self._unknown(name)
        if len(sources) == 2 and name in ("add", "sub"):
            return self._sum(sources, (1.0, -1.0 if name == "sub" else 1.0))
        if len(sources) == 2 and name == "mul":
            raise self._refused("a product of two activations", "its Lipschitz constant is not bounded")
        if len(sources) != 1:
            raise self._unknown(name)
        shape = self._shape(sources[0])
        if any(isinstance(number, Number) and number.dim > len(shape) + 1 for number in numbers):
            raise self._refused("a number with more axes than the activation", "use one without axes")
        return self._single(node, sources[0], self._with_number(name, arguments, shape))

    def _is_known(self, node: fx.Node, name: str, arguments: list[Any], options: dict[str, Any]) -> bool:
        """Whether a node is a shape or a part of one; if so, its value is stored in `known`."""
        first: Any = arguments[0] if arguments else None
        if (name == "getattr" and arguments[1:] == ["shape"]) or name == "size":
            self.known[node] = sides = (BATCH, *self._shape(first))
            if name == "size" and (len(arguments) > 1 or options):
                self.known[node] = sides[arguments[1] if len(arguments) > 1 else options["dim"]]
        elif name == "getitem" and not isinstance(first, fx.Node):
            self.known[node] = first[arguments[1]]
        elif name in ("add", "sub", "mul") and all(isinstance(a, int) for a in arguments) and not options:
            self.known[node] = getattr(python, name)(*arguments)
        return node in self.known

    def _alone(self, node: fx.Node, name: str, arguments: list[Any], options: dict[str, Any]) -> Step:
        """A function of one activation, with other arguments than activations."""
        source = arguments[0] if arguments else None
        rest = [*arguments[1:], *options.values()]
        if not isinstance(source, fx.Node) or any(isinstance(a, fx.Node) for a in rest):
            raise self._unknown(f"{name} with such arguments")
        shape = self._shape(source)
        try:
            if name in MODULES:
                made: Operator | nn.Module = MODULES[name](*arguments[1:], **options)
            else:
                made = SINGLE[name](shape, *arguments[1:], **options)
        except NotProvedError as error:
            raise self._refused(*error.args) from error
        except (TypeError, ValueError, IndexError) as error:
            raise self._unknown(f"{name} with such arguments") from error
        if isinstance(made, Operator):
            return self._single(node, source, made)
        if self._changes_its_input(made, shape, self._place(node)):
            self._check_change(node, source, f"inplace=True in {name}", "use inplace=False")
        operator = self.freeze(made.eval(), shape, self._place(node))
        return Step((source,), operator, None, operator.output_shape(shape))

    def _check_change(self, node: fx.Node, changed: Any, what: str, remedy: str) -> None:
        """Raise for an in-place change of a value that is also read under another name."""
        if not isinstance(changed, fx.Node) or changed not in self.steps:
            raise self._refused(f"{what} of a tensor of its own", "compute a new one")
        others = [user for user in changed.users if user is not node and user not in self.known]
        # A view that was made before changes with it, wherever it is read.
        if not self._is_new(changed) or any(user > node or not self._is_new(user) for user in others):
            raise self._refused(f"{what} of a value with other names", remedy)

    def _changes_its_input(self, module: nn.Module, shape: Shape, place: str) -> bool:
        """Whether a module, or the first of a Sequential that makes new numbers, changes what it is given."""
        if not is_plain_sequence(module):
            is_dropout = isinstance(module, (nn.Dropout, nn.Dropout2d))
            return bool(getattr(module, "inplace", False)) and not is_dropout
        for name, child in module._modules.items():
            assert child is not None, "freeze refuses it"
            if self._changes_its_input(child, shape, f"{place}.{name}"):
                return True
            operator = self.freeze(child, shape, f"{place}.{name}")
            if _makes_new_numbers(operator):
                return False
            shape = operator.output_shape(shape)
        return False

    def _with_number(self, name: str, arguments: list[Any], shape: Shape) -> Operator:
        """Sum, difference, product or quotient of x and one number; or -x."""
        first = isinstance(arguments[0], fx.Node)
        try:
            number = float(next((a for a in arguments if not isinstance(a, fx.Node)), 0.0))
        except OverflowError as error:
            raise ArgumentError("expected a number that is finite, got one beyond all floats") from error
        channels = torch.ones(shape[0], dtype=torch.float64, device="cpu")
        if name == "mul":
            return WeightedSum((Sequence(()),), (number,))
        if name == "neg":
            return WeightedSum((Sequence(()),), (-1.0,))
        if name == "div" and first:
            return ChannelAffine(0 * channels, number * channels)
        if name == "add":
            return ChannelAffine(-number * channels, channels)
        if name == "sub":
            return ChannelAffine(number * channels, channels if first else -channels)
        raise self._unknown(name)

    def _sum(self, sources: list[fx.Node], weights: tuple[float, ...]) -> Step:
        def combine(branches: list[Operator]) -> Operator:
            pairs = [_absorbed(branch, weight) for branch, weight in zip(branches, weights, strict=True)]
            return WeightedSum(tuple(b for b, _ in pairs), tuple(w for _, w in pairs))

        shapes = {self._shape(source) for source in sources}
        if len(shapes) > 1:
            raise self._refused(
                f"a sum of shapes {' and '.join(map(str, sorted(shapes)))}", "make them equal"
            )
        return Step(tuple(sources), None, combine, shapes.pop())

    def _with_factor(self, node: fx.Node, name: str, arguments: list[Any], factor: Any) -> Step:
        """`torch.add(x, y, alpha=factor)`, or `torch.sub`: x + factor y, where y may be a number."""
        first, second = arguments
        if not isinstance(first, fx.Node) or type(factor) not in (int, float):
            raise self._unknown(f"{name} with such arguments")
        weight = float(-factor if name == "sub" else factor)
        if isinstance(second, fx.Node):
            WeightedSum((Sequence(()),), (weight,))  # raises here, where the place is known
            return self._sum([first, second], (1.0, weight))
        if type(second) not in (int, float):
            raise self._unknown(f"{name} with such arguments")
        operator = self._with_number("add", [first, weight * second], self._shape(first))
        return self._single(node, first, operator)

    def _split(self, node: fx.Node, name: str, arguments: list[Any], options: dict[str, Any]) -> Step:
        """Slices of channels, which only indices take out: until then it is its input."""
        source, *rest = arguments
        is_index = [
            user.target is python.getitem and user.args[0] is node and type(user.args[1]) is int
            for user in node.users
        ]
        if not isinstance(source, fx.Node) or not all(is_index):
            raise self._refused(f"a {name} that is not taken apart at once", f"write a, b = x.{name}(...)")
        try:
            self.pieces[node] = pieces(name, self._shape(source), *rest, **options)
        except NotProvedError as error:
            raise self._refused(*error.args) from error
        except RuntimeError as error:
            raise self._unknown(f"{name} with such arguments") from error
        return Step((source,), Sequence(()), None, self._shape(source))

    def _concatenation(self, arguments: list[Any], options: dict[str, Any]) -> Step:
        given = arguments[0] if arguments else options.get("tensors")
        axis: Any = arguments[1] if len(arguments) > 1 else options.get("dim", options.get("axis", 0))
        if options.keys() - {"tensors", "dim", "axis"} or len(arguments) > 2:
            raise self._unknown("cat with other arguments")
        if not isinstance(given, (list, tuple)) or not all(isinstance(a, fx.Node) for a in given):
            raise self._unknown("cat of something else than a list of activations")
        shapes = [self._shape(source) for source in given]
        if axis_of(axis, shapes[0]) != 1:
            raise self._refused("a concatenation along another axis than the channels", "use dim=1")
        if len({s[1:] for s in shapes}) > 1:
            raise self._refused(
                f"a concatenation of shapes {' and '.join(map(str, shapes))}", "fit the sizes"
            )
        made = (sum(s[0] for s in shapes), *shapes[0][1:])
        return Step(tuple(given), None, lambda branches: Concatenation(tuple(branches)), made)

    def _single(self, node: fx.Node, source: fx.Node, operator: Operator) -> Step:
        shape = self._shape(source)
        operator = self.mark(operator, self._place(node), "function")
        return Step((source,), operator, None, operator.output_shape(shape))

    def _is_new(self, node: fx.Node) -> bool:
        """Whether a node computes new numbers; others may hand on those of the input, or a view of them."""
        operator = self.steps[node].operator
        return node is not self.root and (operator is None or _makes_new_numbers(operator))

    def _place(self, node: fx.Node) -> str:
        return f"{self.path}.{node.name}" if self.path else node.name

    def _shape(self, node: fx.Node) -> Shape:
        if node not in self.steps:
            raise self._refused(
                f"a tensor of its own ({node.name})", "compute with what the forward is given"
            )
        return self.steps[node].shape

    def _value(self, argument: Any) -> Any:
        """A parameter or buffer of one element is a number."""
        if isinstance(argument, (list, tuple)):
            return [self._value(item) for item in argument]
        if isinstance(argument, slice):
            return slice(*map(self._value, (argument.start, argument.stop, argument.step)))
        if not isinstance(argument, fx.Node) or argument.op != "get_attr":
            return self.known.get(argument, argument) if isinstance(argument, fx.Node) else argument
        value: Any = self.module
        for part in str(argument.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or value.is_complex():
            raise self._refused(
                f"the tensor {argument.target}", "only single numbers may be added or multiplied"
            )
        return Number.of(value)

    def _unknown(self, name: str) -> NotProvedError:
        plain = next((kind.__name__ for kind in PLAIN if isinstance(self.module, kind)), None)
        return self._refused(
            f"the function {name}",
            f"use nn.{plain} itself, which is read by its exact type, not a subclass"
            if plain
            else "use a layer of lipcert in its place",
        )

    def _refused(self, what: str, remedy: str) -> NotProvedError:
        kind = type(self.module).__name__
        return NotProvedError(f"{self.path or 'model'}: {what} in {kind} has no proved bound; {remedy}")


def _makes_new_numbers(operator: Operator) -> bool:
    """Whether a module with this operator computes; others may return a view of what they are given."""
    if isinstance(operator, Sequence):
        return any(map(_makes_new_numbers, operator.parts))
    return not isinstance(operator, Rearrangement)


def _absorbed(branch: Operator, weight: float) -> tuple[Operator, float]:
    """A branch that ends in a product with a number, as that branch without it and the number as weight."""
    parts = branch.parts if isinstance(branch, Sequence) else (branch,)
    last = parts[-1] if parts else None
    if isinstance(last, WeightedSum) and len(last.branches) == 1 and abs(weight) == 1:
        return Sequence.of(*parts[:-1], last.branches[0]), weight * last.weights[0]
    return branch, weight
