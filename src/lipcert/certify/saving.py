"""Saves any model that `prove` accepts: a builder's network as weights, others as proved networks."""

import os
from collections.abc import Sequence

from torch import nn

from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.errors import ArgumentError
from lipcert.models.storage import is_described
from lipcert.models.storage import save as save_weights
from lipcert.nn.wrappers import unwrap
from lipcert.operators import Shape


def save(
    model: nn.Module | ProvedNetwork,
    path: str | os.PathLike[str],
    *,
    input_shape: Shape | None = None,
    classes: Sequence[str] | None = None,
    compact: bool = False,
) -> None:
    """Write a network to one .safetensors file, which `lipcert.load` and every command read.

    What `lipconvnet` or `liresnet` made is written as weights, to train on: the file says how to build it
    again. Any other model is proved first and written as what is proved, which needs none of its Python
    classes; keep its `state_dict` to train on.

    Args:
        model: a network of a builder, a proved network, or a model as `lipcert.prove` takes it.
        path: the file; an existing one is replaced.
        input_shape: (C, H, W) of one image, for a model that has to be proved.
        classes: names of the logits, for such a model.
        compact: of a builder's network: round matrices to bfloat16, for a small file. It is another network
            then, if a similar one: certify it as it is loaded.

    Raises:
        NotProvedError: a module or function without a proved bound, by path and name.
        ArgumentError: an option that the kind of network has no use for, or layers of a builder's network
            that were exchanged.
        CheckpointError: the folder does not exist or cannot be written to.
    """
    is_weights = isinstance(model, nn.Module) and is_described(unwrap(model))
    if compact and not is_weights:
        raise ArgumentError("compact: only the weights of a builder's network can be rounded; leave it out")
    if (is_weights or isinstance(model, ProvedNetwork)) and not (input_shape is None and classes is None):
        raise ArgumentError("input_shape, classes: the network has its own; leave them out")
    if isinstance(model, ProvedNetwork):
        model.save(path)
    elif is_weights:
        save_weights(model, path, compact=compact)
    else:
        prove(model, input_shape, classes).save(path)
