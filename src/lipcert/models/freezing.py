"""The inference form of a whole network."""

from collections import OrderedDict

import torch
from torch import nn

from lipcert.errors import ArgumentError
from lipcert.nn.lipschitz import Shape
from lipcert.nn.walk import input_shape_of, placed_layers, unwrap_unchanged


def freeze(model: nn.Module, input_shape: Shape | None = None) -> nn.Sequential:
    """Same function for images of one shape, from buffers alone, each layer in the form that is fast there.

    The frozen network is flat, its layers named by where they stood ("body_stage1_conv1"), and ends in a
    head, so that `certify` takes it like any other. It has no parameters and is in evaluation mode; the model
    is left as it is, and later changes of its weights do not reach the frozen copy.

    Args:
        model: a tree of `nn.Sequential` of lipcert's layers.
        input_shape: shape of one image; by default the one the model was built for.

    Raises:
        NotProvedError: a module that is none of lipcert's layers, by path and name.
        ArgumentError: two layers whose paths differ in a dot only.
    """
    model = unwrap_unchanged(model)
    shape = input_shape_of(model, input_shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    # What is made in inference mode could never be differentiated through.
    with torch.inference_mode(mode=False), torch.no_grad():
        for placed in placed_layers(model, shape):
            name = placed.path.replace(".", "_") or "layer"
            if name in layers:
                raise ArgumentError(
                    f"model: two layers would be called {name!r} when frozen; rename one of them"
                )
            layers[name] = placed.layer.freeze(placed.input_shape)
    return nn.Sequential(layers).eval()
