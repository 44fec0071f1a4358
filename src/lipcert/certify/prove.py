"""From a trainable model to a proved network: freeze in float64, bound every operator, bound its rounding."""

import copy
from collections.abc import Iterable
from collections.abc import Sequence as Names
from typing import TYPE_CHECKING

import torch
from torch import nn

from lipcert.certify.certificates import Certificates
from lipcert.certify.images import as_batch, check_images
from lipcert.certify.network import ProvedNetwork, numbered_classes
from lipcert.certify.network_file import DEEPEST, TOO_DEEP
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.models.reading import input_shape_of, read_model
from lipcert.nn.wrappers import unwrap
from lipcert.operators import KINDS, Operator, Proved, Shape
from lipcert.operators.tree import children

if TYPE_CHECKING:
    from lipcert.certify.images import Images

SMALLEST = 2.0**-1000
"""Weights below this are replaced by zero: some processors would take the smallest floats for zero."""
_NOT_COPIED = (RuntimeError, NotImplementedError, ValueError, TypeError)


def prove(
    model: nn.Module, input_shape: Shape | None = None, classes: Names[str] | None = None
) -> ProvedNetwork:
    """Freeze a model in float64 and prove what certificates need: seconds, once.

    The weights are converted to float64 (exactly, also from bfloat16 and float16) and orthogonalised after
    that. Modules are read by their type: their forward, hooks and training mode take no part. A module with
    a forward of its own is traced with torch.fx and put together from known operators. The model is left as
    it is, and nothing that happens to it later reaches the result; do not change it from another thread
    meanwhile.

    Args:
        model: a network of lipcert's layers, also inside DDP or torch.compile; docs/own-network.md lists the
            modules and functions of torch that are known.
        input_shape: (C, H, W) of one image; by default the one that a builder made the model for.
        classes: names of the logits; by default "class 0", "class 1", ...

    Raises:
        NotProvedError: a module or function without a proved bound, by path and name.
        ArgumentError: layers that do not fit each other, or another number of names than of logits.

    >>> import lipcert as lc
    >>> model = nn.Sequential(lc.Normalize(0.5, 0.25), lc.Flatten(), nn.Linear(4, 2))
    >>> prove(model, (1, 2, 2), ["cat", "dog"]).lipschitz
    4.0
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    model = unwrap(model)
    shape = input_shape_of(model, input_shape)
    if len(shape) != 3:
        raise ArgumentError(
            f"input_shape: expected (C, H, W) of one image, got {shape}; for vectors of n numbers use "
            "(n, 1, 1) and start with nn.Flatten()"
        )
    exact = _exact(model)
    with torch.inference_mode(False), torch.no_grad():
        try:
            operator = read_model(exact, shape, _prove)
            made = operator.output_shape(shape)
            depth = _depth(operator)
        except RecursionError as error:
            raise NotProvedError(f"model: {TOO_DEEP}") from error
    if depth > DEEPEST:
        raise NotProvedError(f"model: {TOO_DEEP}")
    if len(made) != 1:
        raise ArgumentError(f"model: expected one number per class at its end, got outputs of shape {made}")
    if classes is not None and not isinstance(classes, Iterable):
        raise ArgumentError(f"classes: expected {made[0]} names, one for each logit, got {classes!r}")
    names = numbered_classes(made[0]) if classes is None else tuple(map(str, classes))
    if len(names) != made[0]:
        raise ArgumentError(f"classes: expected {made[0]} names, one for each logit, got {len(names)}")
    title = getattr(getattr(model, "config", None), "title", type(model).__name__)
    return ProvedNetwork(operator, shape, names, title)


def certify(model: nn.Module | ProvedNetwork, images: "Images") -> Certificates:
    """Certify the predictions of a model, each with its own radius in l2; see `ProvedNetwork.certify`.

    The model is proved again on every call, which takes seconds: to certify more than once, keep what
    `lipcert.prove` returns.

    Args:
        model: as `lipcert.prove` takes it, or a proved network.
        images: a tensor (N, C, H, W), float32 or float64 pixels in [0, 1]; or a numpy array, a PIL image or a
            list of such, in which uint8 means 0 to 255 and channels may come last.
    """
    return proved_for(model, images).certify(images)


def proved_for(model: nn.Module | ProvedNetwork, images: "Images") -> ProvedNetwork:
    """The network itself if it is proved, else the model proved for images of the shape of these."""
    if isinstance(model, ProvedNetwork):
        return model
    inner = unwrap(model)
    known = getattr(getattr(inner, "config", None), "input_shape", None)
    if known is None:
        batch = as_batch(images)
        check_images(batch, () if batch.is_nested else tuple(batch.shape[1:]))
        known = tuple(batch.shape[1:])
    return prove(inner, known)


def _exact(model: nn.Module) -> nn.Module:
    """A copy in float64, on the CPU, in evaluation mode.

    Raises:
        NotProvedError: by path and name, a part without numbers (lazy, meta) or one of TorchScript.
    """

    def copied(part: nn.Module) -> nn.Module:
        return _copy(part).cpu().double().eval().requires_grad_(False)

    try:
        return copied(model)
    except RecursionError as error:
        raise NotProvedError(f"model: {TOO_DEEP}") from error
    except _NOT_COPIED:
        for path, part in reversed(list(model.named_modules())):  # parts come before what holds them
            try:
                copied(part)
            except _NOT_COPIED as error:
                reason = str(error).partition("\n")[0]
                raise NotProvedError(
                    f"{path or 'model'}: {type(part).__name__} cannot be copied and converted to float64 "
                    f"({reason}); use a plain module with numbers of its own"
                ) from error
        raise


def _copy(model: nn.Module) -> nn.Module:
    """A deep copy, also of modules that keep a result of their last forward, which torch does not copy."""
    kept = (v for module in model.modules() for v in (*vars(module).values(), *module._buffers.values()))
    results = {id(v): v.detach().clone() for v in kept if isinstance(v, torch.Tensor) and not v.is_leaf}
    return copy.deepcopy(model, results)


def _depth(operator: Operator) -> int:
    """Operators that are nested in each other, as a file counts them."""
    inner = (operator.operator,) if isinstance(operator, Proved) else children(operator) or ()
    return 1 + max(map(_depth, inner), default=0)


def _prove(operator: Operator, shape: Shape, path: str, layer: str) -> Operator:
    """An operator that is no combinator, proved at its place."""
    if isinstance(operator, Proved):  # what a layer states of itself is not believed
        operator = operator.operator
    if type(operator) not in KINDS.values():
        raise NotProvedError(
            f"{layer} freezes to {type(operator).__name__}, which is none of lipcert's operators"
        )
    for array in operator.arrays():
        if not bool(array.isfinite().all()):
            raise NotProvedError(f"{layer} has weights that are not finite; the model diverged or is damaged")
    exact = operator.with_arrays(lambda array: array.cpu().double())
    flushed = exact.with_arrays(lambda array: array.masked_fill(array.abs() < SMALLEST, 0))
    flushed.output_shape(shape)
    return Proved.of(flushed, path, layer, shape)
