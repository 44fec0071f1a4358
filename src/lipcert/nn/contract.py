"""Base class of all trainable layers, and the registries of convolutions, activations and heads."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from lipcert.errors import ArgumentError
from lipcert.nn.outside import Registry
from lipcert.operators.operator import Operator, Shape

if TYPE_CHECKING:
    from lipcert.nn.convolution import LipschitzConv2d
    from lipcert.nn.heads import Head


class LipschitzModule(nn.Module, ABC):
    """A layer that can be frozen to operators, of which bounds and rounding are known.

    Shapes are those of one sample, without the batch: (C, H, W) or (C,). The laws:

    - `freeze(input_shape)` is the function of evaluation mode on inputs of that shape, as operators whose
      numbers have the layer's own precision. Certificates are about these operators, not about `forward`.
    - `forward` in evaluation mode computes the same up to rounding, from the weights and the input, and
      depends on nothing that ran before.
    """

    @abstractmethod
    def freeze(self, input_shape: Shape) -> Operator:
        """The layer for inputs of `input_shape`, with numbers in place of parameters."""

    def output_shape(self, input_shape: Shape) -> Shape:
        """Shape of one output sample; the input's own unless the layer says otherwise."""
        return input_shape

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Proved upper bound on the Lipschitz constant of the layer, frozen in float64."""
        return copy.deepcopy(self).double().freeze(input_shape).lipschitz_bound(input_shape)


CONVOLUTIONS: "Registry[type[LipschitzConv2d]]" = Registry()
ACTIVATIONS: Registry[Callable[[int], LipschitzModule]] = Registry()
HEADS: "Registry[Callable[[int, int], Head]]" = Registry()


def register_convolution(
    name: str,
) -> "Callable[[type[LipschitzConv2d]], type[LipschitzConv2d]]":
    """Class decorator: make a convolution known to models, the contract tests and the tool as `name`.

    Raises:
        ArgumentError: the name is one of lipcert's own.
    """

    def register(cls: "type[LipschitzConv2d]") -> "type[LipschitzConv2d]":
        _register(CONVOLUTIONS, name, cls)
        return cls

    return register


def register_activation(name: str, build: Callable[[int], LipschitzModule]) -> None:
    """Make an activation known to models, the contract tests and the tool; `build(channels)` returns the
    layer.

    Raises:
        ArgumentError: the name is one of lipcert's own.
    """
    _register(ACTIVATIONS, name, build)


def register_head(name: str, build: "Callable[[int, int], Head]") -> None:
    """Make a head known to models and the tool; `build(features, classes)` returns the layer.

    Raises:
        ArgumentError: the name is one of lipcert's own.
    """
    _register(HEADS, name, build)


def _register(layers: Registry[Any], name: str, new: Any) -> None:
    """Add a layer, unless the name is one of lipcert's own: saved networks refer to those."""
    known = layers.registered.get(name)
    if known is not None and known.__module__.startswith("lipcert.") and new.__module__ != known.__module__:
        raise ArgumentError(f"name: {name!r} is one of lipcert's own; choose another")
    layers[name] = new
