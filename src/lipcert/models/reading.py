"""From a model to operators: modules are read by their type, forwards of one's own are traced."""

import operator
from collections.abc import Callable
from typing import Any

from torch import nn

from lipcert.errors import ArgumentError, LipcertError, NotProvedError
from lipcert.models.trace import Place, trace
from lipcert.nn.contract import LipschitzModule
from lipcert.operators import Matrix, Operator, Reshape, Sequence, Shape


def _flatten(module: nn.Flatten) -> Operator:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise NotProvedError("only a flattening of all axes but the batch has a proved bound")
    return Reshape()


def _linear(module: nn.Linear) -> Operator:
    if not {"weight", "bias"} <= module._parameters.keys() or module.weight.is_complex():
        raise NotProvedError(
            "its weight is computed by a hook (as weight_norm, spectral_norm and prune do), or complex; "
            "remove that first (torch.nn.utils.remove_weight_norm, prune.remove)"
        )
    return Matrix(
        module.weight.detach().clone(), None if module.bias is None else module.bias.detach().clone()
    )


PLAIN: dict[type[nn.Module], Callable[[Any], Operator]] = {
    nn.Identity: lambda module: Sequence(()),
    nn.Dropout: lambda module: Sequence(()),
    nn.Flatten: _flatten,
    nn.Linear: _linear,
}
"""Modules of torch that are known, by exact type, as they are in evaluation mode."""


def read_model(model: nn.Module, shape: Shape, place: Place) -> Operator:
    """The operators of a model for inputs of one shape, in the precision of its weights.

    Args:
        model: in evaluation mode.
        shape: of one sample of its input.
        place: called with every operator, its input shape, its path and the name of its layer; returns what
            stands in the tree.

    Raises:
        NotProvedError: a module or function that is not known, by path and name.
        ArgumentError: layers that do not fit each other.
    """

    def read(module: nn.Module, shape: Shape, path: str) -> Operator:
        kind = type(module)
        if isinstance(module, LipschitzModule) or kind in PLAIN:
            try:
                if not all(bool(parameter.isfinite().all()) for parameter in module.parameters()):
                    raise NotProvedError(
                        f"{kind.__name__} has weights that are not finite; the model diverged or is damaged"
                    )
                frozen = module.freeze(shape) if isinstance(module, LipschitzModule) else PLAIN[kind](module)
                if not isinstance(frozen, Operator):
                    raise NotProvedError(f"{kind.__name__} freezes to {type(frozen).__name__}, no operator")
                return place(frozen, shape, path or "model", kind.__name__)
            except LipcertError as error:
                raise type(error)(f"{path or 'model'}: {error}") from error
        if isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward:
            parts: list[Operator] = []
            for name, child in module._modules.items():
                if child is None:
                    raise NotProvedError(f"{path or 'model'}: a Sequential with None in it cannot run")
                parts.append(read(child, shape, f"{path}.{name}" if path else name))
                shape = parts[-1].output_shape(shape)
            return Sequence.of(*parts)
        if _is_of_torch(module):
            raise NotProvedError(
                f"{path or 'model'}: {kind.__name__} has no proved bound; use a layer of lipcert in its "
                "place, or make it a LipschitzModule that freezes to operators"
            )
        return trace(module, shape, path, _is_leaf, read, place)

    return read(model, shape, "")


def _is_leaf(module: nn.Module) -> bool:
    """Whether a module is read, or refused, as a whole: layers, plain Sequentials, what torch wrote."""
    is_plain_sequence = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return isinstance(module, LipschitzModule) or is_plain_sequence or _is_of_torch(module)


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


def input_shape_of(model: nn.Module, input_shape: Shape | None = None) -> Shape:
    """`input_shape` if given, else the shape of one image that a LipConvnet was built for."""
    shape = input_shape or getattr(getattr(model, "config", None), "input_shape", None)
    if shape is None:
        raise ArgumentError(
            f"input_shape: {type(model).__name__} does not say which images it takes; "
            "pass the shape of one, such as (3, 32, 32)"
        )
    try:
        sides = tuple(map(operator.index, shape))
    except TypeError as error:
        raise ArgumentError(f"input_shape: expected integers such as (3, 32, 32), got {shape!r}") from error
    if not sides or min(sides) < 1:
        raise ArgumentError(f"input_shape: expected positive sides such as (3, 32, 32), got {shape!r}")
    return sides
