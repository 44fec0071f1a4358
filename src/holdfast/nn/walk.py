"""Ways into a network: past wrappers, layer by layer with shapes, and to its head."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from holdfast.errors import ArgumentError, NotProvedError
from holdfast.nn.heads import ConstantHead, Head
from holdfast.nn.lipschitz import LipschitzModule, Shape


class PlacedLayer(NamedTuple):
    """A layer where it stands: its path in the model, and the shape of one sample that enters it."""

    path: str
    layer: LipschitzModule
    input_shape: Shape


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel, lightning-fabric and torch.compile."""
    while not isinstance(model, (nn.Sequential, LipschitzModule)):
        inner = (model._modules.get(name) for name in ("_orig_mod", "module", "_forward_module"))
        found = next((m for m in inner if m is not None), None)
        if found is None:
            break
        model = found
    return model


def find_head(model: nn.Module) -> Head:
    """The head that a network ends in, with its live parameters.

    Raises:
        NotProvedError: the model does not end in a head, so that no margin rule is known for it.
    """
    model = unwrap(model)
    last = next(reversed(model._modules.values()), None) if isinstance(model, nn.Sequential) else None
    if isinstance(last, Head):
        return last
    ending = "" if last is None else f" ending in {type(last).__name__}"
    raise NotProvedError(
        "model: expected an nn.Sequential that ends in a head (NormalizedLinear, OrthogonalHead), "
        f"got {type(model).__name__}{ending}"
    )


def device_of(model: nn.Module) -> torch.device:
    """Where the model lives; the CPU if it holds no tensors."""
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def input_shape_of(model: nn.Module, input_shape: Shape | None = None) -> Shape:
    """`input_shape` if given, else the shape of one image that the model was built for."""
    if input_shape is not None:
        return tuple(input_shape)
    shape = getattr(getattr(model, "config", None), "input_shape", None)
    if shape is None:
        raise ArgumentError(
            f"input_shape: {type(model).__name__} does not say which images it takes; "
            "pass the shape of one, such as (3, 32, 32)"
        )
    return tuple(shape)


def placed_layers(model: nn.Module, input_shape: Shape, path: str = "") -> Iterator[PlacedLayer]:
    """Every layer of a tree of `nn.Sequential` in the order of execution.

    Raises:
        NotProvedError: a module that is neither a Sequential nor one of holdfast's layers, by path and name.
    """
    if isinstance(model, LipschitzModule):
        yield PlacedLayer(path, model, input_shape)
    elif isinstance(model, nn.Sequential):
        for name, child in model.named_children():
            shape = input_shape
            for placed in placed_layers(child, input_shape, f"{path}.{name}" if path else name):
                yield placed
                shape = placed.layer.output_shape(placed.input_shape)
            input_shape = shape
    else:
        raise NotProvedError(
            f"{path or 'model'}: {type(model).__name__} has no proved bound; use a layer of holdfast in its "
            "place, or make it a LipschitzModule that states one"
        )


def split_head(model: nn.Module) -> tuple[nn.Sequential, Head]:
    """A network as (what is in front of the head, the head); a last `nn.Linear` counts as a head.

    Raises:
        NotProvedError: the model does not end in a head, so that no margin rule is known for it.
    """
    model = unwrap(model)
    children = OrderedDict(model.named_children())
    last = next(reversed(children.values()), None)
    if isinstance(model, nn.Sequential) and isinstance(last, nn.Linear):
        head: Head = ConstantHead(last.weight, last.bias)
    else:
        head = find_head(model)
    children.popitem()
    return nn.Sequential(children), head
