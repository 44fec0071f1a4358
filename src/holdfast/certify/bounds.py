"""Composition: from what each layer has proved to a bound for a network."""

import math

from torch import nn

from holdfast.errors import NotProvedError
from holdfast.functional.rounding import up
from holdfast.nn.lipschitz import Shape
from holdfast.nn.walk import input_shape_of, placed_layers, unwrap


def lipschitz_upper_bound(model: nn.Module, input_shape: Shape | None = None) -> float:
    """Proved upper bound on the Lipschitz constant of a network, from raw pixels to logits.

    The product of the layers' bounds, rounded up. Certificates take the tighter way: the bound of everything
    in front of the head, and the head's own pairwise rule.

    Args:
        model: a tree of `nn.Sequential` of holdfast's layers, also inside a wrapper such as DDP.
        input_shape: shape of one image; by default the one the model was built for.

    Raises:
        NotProvedError: a module that nobody has bounded, by path and name.
    """
    model = unwrap(model)
    return body_upper_bound(model, input_shape_of(model, input_shape))


def body_upper_bound(body: nn.Module, input_shape: Shape) -> float:
    """Proved upper bound for the layers in `body`, in the order of execution."""
    total = 1.0
    for path, layer, shape in placed_layers(body, input_shape):
        try:
            bound = layer.lipschitz_bound(shape)
        except NotProvedError as error:
            raise NotProvedError(f"{path}: {error}") from error
        if not 0 <= bound < math.inf:
            raise NotProvedError(f"{path}: {type(layer).__name__} has no finite bound, got {bound}")
        if bound != 1:  # a factor of one needs no rounding
            total = bound if total == 1 else up(total * bound)
    return total
