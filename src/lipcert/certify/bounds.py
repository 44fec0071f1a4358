"""Composition: from what each layer has proved to a bound for a network."""

import copy
import math

from torch import nn

from lipcert.certify.exact import ProvedLayer, exact_network
from lipcert.errors import NotProvedError
from lipcert.functional.rounding import product_up
from lipcert.nn.lipschitz import Shape
from lipcert.nn.walk import input_shape_of, unwrap_unchanged


def lipschitz_upper_bound(model: nn.Module, input_shape: Shape | None = None) -> float:
    """Proved upper bound on the Lipschitz constant of a network, from raw pixels to logits.

    The product of the layers' bounds, rounded up. Certificates take the tighter way: the bound of everything
    in front of the head, and the head's own pairwise rule.

    Guarantee: holds for the exact function of the weights as frozen in float64. It is that of the weights
    at this moment: what is remembered is found by a hash of all of them.

    Args:
        model: a tree of `nn.Sequential` of lipcert's layers, also inside a wrapper such as DDP.
        input_shape: shape of one image; by default the one the model was built for.

    Raises:
        NotProvedError: a module that nobody has bounded, by path and name.

    >>> import lipcert as lc
    >>> lipschitz_upper_bound(nn.Sequential(lc.Normalize(0.5, 0.25), lc.MaxMin()), (1, 8, 8))
    Traceback (most recent call last):
    ...
    lipcert.errors.ArgumentError: MaxMin: expected a number of channels divisible by 2, got 1
    >>> lipschitz_upper_bound(nn.Sequential(lc.Normalize((0.5, 0.5), 0.25), lc.MaxMin()), (2, 8, 8))
    4.0
    """
    model = unwrap_unchanged(model)
    network = exact_network(model, input_shape_of(model, input_shape))
    if network.head is None:
        return network.lipschitz
    head = network.head.lipschitz_bound((network.head.in_features,))
    if not head < math.inf:
        raise NotProvedError(f"head: {type(network.head).__name__} has no finite bound, got {head}")
    return product_up(network.lipschitz, head)


def layer_bounds(model: nn.Module, input_shape: Shape | None = None) -> tuple[ProvedLayer, ...]:
    """What is proved of every layer in front of the head, in the order of execution, for reports.

    Args:
        model: a tree of `nn.Sequential` of lipcert's layers.
        input_shape: shape of one image; by default the one the model was built for.
    """
    model = unwrap_unchanged(model)
    return copy.deepcopy(exact_network(model, input_shape_of(model, input_shape)).layers)
