"""From a model to operators: known modules by their type, other forwards by tracing."""

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lipcert.errors import ArgumentError, LipcertError, NotProvedError
from lipcert.models.folding import fold
from lipcert.models.plain import PLAIN, is_plain_sequence
from lipcert.models.trace import trace
from lipcert.nn.contract import LipschitzModule
from lipcert.nn.wrappers import unwrap
from lipcert.operators import Operator, Sequence, Shape
from lipcert.operators.operator import LARGEST_MAP
from lipcert.operators.tree import children, map_children

Place = Callable[[Operator, Shape, str, str], Operator]
"""place(operator, input_shape, path, layer): an operator as it stands in the network, proved or as it is."""


def read_model(model: nn.Module, shape: Shape, place: Place) -> Operator:
    """The operators of a model for inputs of one shape, in the precision of its weights.

    Args:
        model: in evaluation mode.
        shape: of one sample of its input.
        place: called with every operator, its input shape, its path and the name of its layer; returns what
            stands in the tree. By then batch normalisation is a part of the convolution beside it.

    Raises:
        NotProvedError: a module or function that is not known, by path and name.
        ArgumentError: layers that do not fit each other.
    """
    tree = _Places()
    known: dict[tuple[int, Shape, str], tuple[nn.Module, Operator]] = {}

    def read(module: nn.Module, shape: Shape, path: str) -> Operator:
        """The operator of a module, cached for a forward that calls it twice."""
        module = unwrap(module)
        key = (id(module), shape, path)
        if key not in known:
            known[key] = (module, fresh(module, shape, path))  # kept, so that no other module gets its id
        return known[key][1]

    def fresh(module: nn.Module, shape: Shape, path: str) -> Operator:
        kind = type(module)
        if kind.__call__ is not nn.Module.__call__ and not _is_of_torch(module):
            raise NotProvedError(
                f"{path or 'model'}: {kind.__name__} has a __call__ of its own, which is not read; write a "
                "forward"
            )
        if isinstance(module, LipschitzModule) or kind in PLAIN:
            try:
                _refuse_computed_weights(module)
                tensors = (*module.parameters(), *module.buffers())
                if not all(bool(tensor.isfinite().all()) for tensor in tensors):
                    raise NotProvedError(
                        f"{kind.__name__} has weights that are not finite; the model diverged or is damaged"
                    )
                plain = PLAIN.get(kind)
                frozen = _plain(plain, module, shape) if plain else module.freeze(shape)  # type: ignore[operator]
                if not isinstance(frozen, Operator):
                    raise NotProvedError(f"{kind.__name__} freezes to {type(frozen).__name__}, no operator")
                made = frozen.output_shape(shape)
                if math.prod(made) > LARGEST_MAP:
                    raise ArgumentError(f"{kind.__name__} makes {made}, more than {LARGEST_MAP:,} numbers")
            except LipcertError as error:
                raise type(error)(f"{path or 'model'}: {error}") from error
            return tree.mark(frozen, path or "model", kind.__name__)
        if is_plain_sequence(module):
            parts: list[Operator] = []
            for name, child in module._modules.items():
                if child is None:
                    raise NotProvedError(f"{path or 'model'}: a Sequential with None in it cannot run")
                parts.append(read(child, shape, f"{path}.{name}" if path else name))
                shape = parts[-1].output_shape(shape)
            return Sequence.of(*parts)
        if is_parametrized(module):
            names = ", ".join(module.parametrizations)  # type: ignore[arg-type]
            raise NotProvedError(
                f"{path or 'model'}: {kind.__bases__[0].__name__} has a parametrized {names}, as "
                "spectral_norm, orthogonal and weight_norm of torch make it; make it plain by "
                "torch.nn.utils.parametrize.remove_parametrizations(layer, name), or use a layer of lipcert"
            )
        if _is_of_torch(module):
            raise NotProvedError(
                f"{path or 'model'}: {kind.__name__} has no proved bound; use a layer of lipcert in its "
                "place, or make it a LipschitzModule that freezes to operators"
            )
        return trace(module, shape, path, _is_leaf, read, tree.mark)

    return tree.placed(read(model, shape, ""), shape, place)


class _Places:
    """Where in the model every operator of a tree comes from."""

    def __init__(self) -> None:
        self.marks: dict[int, tuple[Operator, str, str]] = {}
        self.made: dict[tuple[int, Shape], Operator] = {}
        self.folds: dict[tuple[int, int], list[Operator]] = {}

    def mark(self, operator: Operator, path: str, layer: str) -> Operator:
        """The same tree with leaves of its own, each with a path and the name of its layer."""
        if children(operator) is not None:
            return map_children(operator, lambda child: self.mark(child, path, layer))
        own = copy.copy(operator)
        self.marks[id(own)] = (own, path, layer)  # kept, so that no other object gets its id
        return own

    def placed(self, operator: Operator, shape: Shape, place: Place) -> Operator:
        """The same tree with every leaf replaced by what `place` makes of it."""
        if type(operator) is Sequence:
            parts: list[Operator] = []
            for part in self._folded(operator.parts):
                parts.append(self.placed(part, shape, place))
                shape = parts[-1].output_shape(shape)
            return Sequence.of(*parts)
        if children(operator) is not None:
            return map_children(operator, lambda branch: self.placed(branch, shape, place))
        if (id(operator), shape) not in self.made:
            _, path, layer = self.marks[id(operator)]
            try:
                self.made[id(operator), shape] = place(operator, shape, path, layer)
            except LipcertError as error:
                raise type(error)(f"{path}: {error}") from error
        return self.made[id(operator), shape]

    def _folded(self, parts: tuple[Operator, ...]) -> list[Operator]:
        found: list[Operator] = []
        for part in parts:
            folded = fold(found[-1], part) if found else None
            if folded is None:
                found.append(part)
                continue
            first = found.pop()
            pair = (id(first), id(part))
            if pair not in self.folds:
                (_, path, layer), (_, _, second) = self.marks[id(first)], self.marks[id(part)]
                self.folds[pair] = [self.mark(new, path, f"{layer}, {second}") for new in folded]
            found += self.folds[pair]
        return found


def _plain(read: Callable[[Any, Shape], Operator], module: nn.Module, shape: Shape) -> Operator:
    try:
        return read(module, shape)
    except LipcertError:
        raise
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise ArgumentError(f"{module} has a setting that it cannot run with ({error})") from error


def _is_leaf(module: nn.Module) -> bool:
    """Whether a module is read, or refused, as a whole: layers, plain Sequentials, what torch wrote."""
    return isinstance(module, LipschitzModule) or is_plain_sequence(module) or _is_of_torch(module)


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


def input_shape_of(model: nn.Module, input_shape: Shape | None = None) -> Shape:
    """`input_shape` if given, else the shape of one image that a builder made the model for."""
    shape = input_shape
    if shape is None:
        shape = getattr(getattr(model, "config", None), "input_shape", None)
    if shape is None:
        raise ArgumentError(
            f"input_shape: {type(model).__name__} does not say which images it takes; "
            "pass the shape of one, such as (3, 32, 32)"
        )
    try:
        sides = tuple(map(operator.index, shape))
    except TypeError as error:
        raise ArgumentError(f"input_shape: expected integers such as (3, 32, 32), got {shape!r}") from error
    if not sides or min(sides) < 1 or math.prod(sides) > LARGEST_MAP:
        raise ArgumentError(
            f"input_shape: expected positive sides such as (3, 32, 32), at most {LARGEST_MAP:,} numbers, got "
            f"{shape!r}"
        )
    return sides


def _refuse_computed_weights(module: nn.Module) -> None:
    """Raise for weights that a hook recomputes at the next call, such as those of prune: they may be stale.

    Raises:
        NotProvedError: a part of the module has such a hook.
    """
    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if type(hook).__module__.startswith("torch.nn.utils"):
                raise NotProvedError(
                    f"{type(part).__name__} has a weight that is computed by a hook (as weight_norm, "
                    "spectral_norm and prune do); remove that first (torch.nn.utils.remove_weight_norm, "
                    "remove_spectral_norm, prune.remove)"
                )
