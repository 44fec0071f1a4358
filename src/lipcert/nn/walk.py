"""Ways into a network: past wrappers, layer by layer with shapes, and to its head."""

from collections import OrderedDict
from collections.abc import Iterator
from inspect import getattr_static
from types import FunctionType
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.utils import parametrize

from lipcert.errors import ArgumentError, NotProvedError
from lipcert.nn.heads import ConstantHead, Head
from lipcert.nn.lipschitz import COMPUTES, LipschitzModule, Shape, is_foreign, replaces_forward_without


class PlacedLayer(NamedTuple):
    """A layer where it stands: its path in the model, and the shape of one sample that enters it."""

    path: str
    layer: LipschitzModule
    input_shape: Shape


WRAPPERS = ("DistributedDataParallel", "DataParallel", "AveragedModel", "OptimizedModule", "_FabricModule")
"""Classes of torch and lightning-fabric that compute what the model inside of them computes."""


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel, lightning-fabric and torch.compile, inside no other wrapper."""
    return _layers_of_wrapping(model)[-1]


def _layers_of_wrapping(model: nn.Module) -> list[nn.Module]:
    found = [model]
    while type(model).__name__ in WRAPPERS and type(model).__module__.startswith(("torch.", "lightning")):
        parts = (model._modules.get(name) for name in ("_orig_mod", "module", "_forward_module"))
        inner = next((part for part in parts if part is not None), None)
        if inner is None:
            break
        model = inner
        found.append(model)
    return found


def unwrap_unchanged(model: nn.Module, *, to_prove: bool = True) -> nn.Module:
    """`unwrap` for a proof, or a file, which speaks of the model inside.

    Raises:
        NotProvedError: a hook or a method on a wrapper, or on any part of the model, see `refuse_changes`.
    """
    for wrapper in _layers_of_wrapping(model)[:-1]:
        if wrapper._forward_hooks or wrapper._forward_pre_hooks:
            raise NotProvedError(f"model: {type(wrapper).__name__} has a forward hook; {NO_HOOK}")
        if type(wrapper).__name__ != "OptimizedModule":  # whose forward is what torch compiled
            _refuse_methods_of_instances(wrapper, "model")
    model = unwrap(model)
    refuse_changes(model, to_prove=to_prove)
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
    shape = input_shape if input_shape is not None else built_for(model)
    if shape is None:
        raise ArgumentError(
            f"input_shape: {type(model).__name__} does not say which images it takes; "
            "pass the shape of one, such as (3, 32, 32)"
        )
    return tuple(shape)


def built_for(model: nn.Module) -> Shape | None:
    """The shape of one image that a LipConvnet was built for; other models do not say it."""
    return getattr(getattr(model, "config", None), "input_shape", None)


def placed_layers(model: nn.Module, input_shape: Shape) -> Iterator[PlacedLayer]:
    """Every layer of a tree of `nn.Sequential` in the order of execution, as often as it runs.

    Raises:
        NotProvedError: a module that is neither a Sequential nor one of lipcert's layers, or one whose
            forward pass was changed from outside, by path and name.
    """
    refuse_changes(model)
    return _placed(model, input_shape, "")


def _placed(model: nn.Module, input_shape: Shape, path: str) -> Iterator[PlacedLayer]:
    if isinstance(model, LipschitzModule):
        yield PlacedLayer(path, model, input_shape)
    elif isinstance(model, nn.Sequential):
        # Not named_children, which names a module that stands in two places only once.
        for name, child in model._modules.items():
            assert child is not None, "a Sequential cannot run None"
            shape = input_shape
            for placed in _placed(child, input_shape, f"{path}.{name}" if path else name):
                yield placed
                shape = placed.layer.output_shape(placed.input_shape)
            input_shape = shape
    else:
        kind = type(model).__name__
        instead = f"lipcert.{kind}" if isinstance(model, nn.Flatten) else "a layer of lipcert"
        raise NotProvedError(
            f"{path or 'model'}: {kind} has no proved bound; use {instead} in its place, or make it a "
            "LipschitzModule that states one"
        )


STATEMENTS = ("lipschitz_bound", "freeze", "pair_distance_bounds")
"""Methods that speak of what a layer computes; the last one is of heads."""
NO_HOOK = "no bound holds for what that does, so remove it"


def refuse_changes(module: nn.Module, path: str = "", *, to_prove: bool = True) -> None:
    """Raise where a module computes something else than its class and weights say, for no bound sees that.

    Inside of a layer of somebody else's nothing is looked at: its own statements speak for that. What is not
    `to_prove` need not have any.

    Raises:
        NotProvedError: a forward hook (of a module, or of all modules), a method that was put on an
            instance, a Sequential or a linear layer with a forward (or a way to call it) of its own, or a
            layer whose class replaces a forward but inherits what was stated of that.
    """
    place, kind = path or "model", type(module)
    everywhere = (*_global_forward_hooks.values(), *_global_forward_pre_hooks.values())
    # Those of torch itself, such as the counter of operations, only watch.
    if not all(str(hook.__module__).startswith("torch.") for hook in everywhere):
        raise NotProvedError(f"{place}: torch runs a forward hook for every module; {NO_HOOK}")
    if module._forward_hooks or module._forward_pre_hooks:
        raise NotProvedError(f"{place}: {kind.__name__} has a forward hook; {NO_HOOK}")
    if parametrize.is_parametrized(module) and getattr(parametrize, "_cache_enabled", False):
        raise NotProvedError(
            f"{place}: inside of parametrize.cached() weights may be those of a moment ago; leave it first"
        )
    _refuse_methods_of_instances(module, place)
    for plain in (nn.Sequential, nn.Linear):
        for name in ("forward", "__call__", "__iter__"):
            if isinstance(module, plain) and getattr(kind, name, None) is not getattr(plain, name, None):
                raise NotProvedError(
                    f"{place}: {kind.__name__} is an nn.{plain.__name__} with a {name} of its own, which has "
                    "no proved bound; make it a LipschitzModule that states one"
                )
    if isinstance(module, LipschitzModule):
        statements = STATEMENTS if isinstance(module, Head) else STATEMENTS[:2]
        for statement in statements if to_prove else ():
            # What LipschitzModule itself says is true of every forward: no bound, and a copy.
            stated = getattr(kind, statement) is not getattr(LipschitzModule, statement, None)
            if stated and replaces_forward_without(module, statement):
                raise NotProvedError(
                    f"{place}: {kind.__name__} has a forward of its own but inherits {statement}, which "
                    "speaks of another one; implement it too"
                )
        if is_foreign(module):
            return
    for name, child in module._modules.items():
        if child is not None:
            refuse_changes(child, f"{path}.{name}" if path else name, to_prove=to_prove)


def _refuse_methods_of_instances(module: nn.Module, place: str) -> None:
    """A method that was put on one instance, such as its forward, is not what its class says."""
    theirs = isinstance(module, LipschitzModule) and is_foreign(module)
    compiled = vars(module).get("_compiled_call_impl")  # None but for what module.compile() leaves there
    if (
        compiled is not None
        and getattr(compiled, "_torchdynamo_orig_callable", compiled) != module._call_impl
    ):
        raise NotProvedError(f"{place}: {type(module).__name__} was given another call; {NO_HOOK}")
    for name, value in vars(module).items():
        method = getattr_static(type(module), name, None)
        if not isinstance(method, FunctionType) or (theirs and name not in {*COMPUTES, *STATEMENTS}):
            continue
        # Some wrappers leave a module its own method as an attribute, which is no change.
        if value != method.__get__(module):
            raise NotProvedError(
                f"{place}: {type(module).__name__} was given another {name}; {NO_HOOK} (del module.{name})"
            )


def split_head(model: nn.Module) -> tuple[nn.Sequential, Head]:
    """A network as (what is in front of the head, the head); a last `nn.Linear` counts as a head.

    Raises:
        NotProvedError: the model does not end in a head, so that no margin rule is known for it.
    """
    model = unwrap_unchanged(model)
    children = OrderedDict((name, child) for name, child in model._modules.items() if child is not None)
    last = next(reversed(children.values()), None)
    if isinstance(model, nn.Sequential) and isinstance(last, nn.Linear):
        head: Head = ConstantHead(last.weight, last.bias)
    else:
        head = find_head(model)
    children.popitem()
    return nn.Sequential(children), head
