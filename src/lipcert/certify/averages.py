"""Averages of networks, and over an image and its mirror image; of modules or of proved networks."""

import math
import reprlib
from collections.abc import Sequence as Several
from dataclasses import replace
from functools import partial
from typing import overload

from torch import nn

from lipcert.certify.network import ProvedNetwork
from lipcert.errors import ArgumentError
from lipcert.nn.composition import Average, Mirrored
from lipcert.operators import Operator, Proved, Sequence, WeightedSum
from lipcert.operators.rearrange import Mirror
from lipcert.operators.tree import map_children


@overload
def mirrored(model: ProvedNetwork) -> ProvedNetwork: ...
@overload
def mirrored(model: nn.Module) -> Mirrored: ...
def mirrored(model: nn.Module | ProvedNetwork) -> Mirrored | ProvedNetwork:
    """The mean of a network's logits for an image and for its mirror image.

    Guarantee: the constants of the network itself, also between pairs of logits: mirroring is an isometry.

    Args:
        model: from images (N, C, H, W) to logits. A module is not copied, so that both branches train
            together; nothing of a proved network is proved again.

    >>> import torch
    >>> mirrored(nn.Flatten())(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2., 2.]])
    """
    if not isinstance(model, ProvedNetwork):
        return Mirrored(_module("model", model))
    mirror = Proved.of(Mirror(), "mirror", "Mirror", model.input_shape)
    tree = WeightedSum((model.operator, Sequence.of(mirror, model.operator)), (0.5, 0.5))
    return ProvedNetwork(tree, model.input_shape, model.classes, f"{model.name}, mirrored")


@overload
def average(models: Several[ProvedNetwork], weights: Several[float] | None = None) -> ProvedNetwork: ...
@overload
def average(models: Several[nn.Module], weights: Several[float] | None = None) -> Average: ...
def average(
    models: Several[nn.Module] | Several[ProvedNetwork], weights: Several[float] | None = None
) -> Average | ProvedNetwork:
    """The weighted mean of several networks' logits.

    Guarantee: the weighted mean of their constants, also between pairs of logits.

    Args:
        models: at least one, with the same images and classes, all modules or all proved. Modules are not
            copied; nothing of proved networks is proved again.
        weights: one for each, by default all equal.

    >>> import torch
    >>> average([nn.Identity(), nn.ReLU()])(torch.tensor([[-2.0, 2.0]]))
    tensor([[-1.,  2.]])
    """
    if not isinstance(models, (Several, nn.ModuleList)):
        raise ArgumentError(f"models: expected a list of networks, got {type(models).__name__}")
    try:
        shares = [1 / len(models) for _ in models] if weights is None else [float(w) for w in weights]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"weights: expected a number for each model, got {weights!r}") from error
    if not models or len(models) != len(shares) or not all(map(math.isfinite, shares)):
        raise ArgumentError(
            f"weights: expected a finite number for each of {len(models)} models (at least one), "
            f"got {weights}"
        )
    proved = [model for model in models if isinstance(model, ProvedNetwork)]
    if len(proved) == len(models):
        return _average(proved, shares)
    return Average([_module(f"models[{k}]", model) for k, model in enumerate(models)], shares)


def _average(networks: list[ProvedNetwork], weights: list[float]) -> ProvedNetwork:
    first = networks[0]
    for k, other in enumerate(networks):
        for name in ("input_shape", "classes"):
            if getattr(other, name) != getattr(first, name):
                raise ArgumentError(
                    f"models[{k}]: expected the {name} of the first network, {_short(getattr(first, name))}, "
                    f"got {_short(getattr(other, name))}"
                )
    branches = tuple(_at(f"models.{k}.", network.operator) for k, network in enumerate(networks))
    names = list(dict.fromkeys(network.name for network in networks))
    title = f"average of {len(networks)}: {'; '.join(names)}"
    return ProvedNetwork(WeightedSum(branches, tuple(weights)), first.input_shape, first.classes, title)


def _short(values: tuple[object, ...]) -> str:
    """The first six, and how many there are: a hundred classes would bury the message.

    >>> _short(tuple(range(8)))
    '(0, 1, 2, 3, 4, 5, ...), 8 in all'
    """
    shown = reprlib.repr(values)
    return shown if len(values) <= 6 else f"{shown}, {len(values)} in all"


def _at(prefix: str, operator: Operator) -> Operator:
    """The same tree with longer paths."""
    if isinstance(operator, Proved):
        return replace(operator, path=prefix + operator.path)
    return map_children(operator, partial(_at, prefix))


def _module(name: str, value: object) -> nn.Module:
    if not isinstance(value, nn.Module):
        raise ArgumentError(f"{name}: expected a torch.nn.Module, got {type(value).__name__}")
    return value
