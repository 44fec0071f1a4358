"""The network that a certificate is about: stored numbers in float64, and what is proved of each layer.

A model is copied, converted to float64 and frozen, so that no power-iteration vector, cache, training mode or
autocast takes part. Weights in float32, bfloat16 or float16 are float64 numbers already: nothing is lost.
Every layer comes with a proved Lipschitz bound and a proved bound on its own rounding error.
"""

import copy
import hashlib
import json
import math
import threading
from abc import ABC
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Generic

import torch
from torch import Tensor, nn

from lipcert.certify.rounding import ForwardError, forward_error
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.functional.modulus import polynomial_modulus_upper_bound
from lipcert.functional.orthogonalize import LARGEST_CONDITION, condition
from lipcert.functional.rounding import product_up
from lipcert.models.lipconvnet import LipConvnet, structure_of
from lipcert.nn.bcop import BCOP
from lipcert.nn.cayley import LARGEST_ERROR, Cayley
from lipcert.nn.frozen_skew import FrozenSeries
from lipcert.nn.heads import ConstantHead, Head, OrthogonalHead
from lipcert.nn.linear import OrthogonalLinear
from lipcert.nn.lipschitz import LipschitzModule, Shape, is_foreign, is_plain, is_theirs, settings
from lipcert.nn.soc import SOC
from lipcert.nn.walk import PlacedLayer, device_of, placed_layers, refuse_changes, split_head


@dataclass(frozen=True)
class ProvedLayer:
    """A frozen layer with what is proved of it.

    Attributes:
        path: where it stands in the model.
        name: class of the layer that it stands for.
        layer: the layer, with buffers only.
        input_shape: shape of one sample that enters it.
        bound: proved Lipschitz constant.
        norm: the same or, for a polynomial in a skew operator, the proved norm of that operator.
    """

    path: str
    name: str
    layer: LipschitzModule
    input_shape: Shape
    bound: float
    norm: float

    @cached_property
    def error(self) -> ForwardError:
        """Proved bound on the rounding error of its forward pass in float64."""
        with at(self.path):
            return forward_error(self.layer, self.input_shape, self.norm)


@dataclass(frozen=True)
class ExactNetwork:
    """The layers in front of the head, the head (if there is one), and the proved constant of the layers."""

    layers: tuple[ProvedLayer, ...]
    head: ConstantHead | None

    @property
    def lipschitz(self) -> float:
        """Proved constant from pixels to features."""
        total = 1.0
        for layer in self.layers:
            if layer.bound != 1:  # a factor of one needs no rounding
                total = layer.bound if total == 1 else product_up(total, layer.bound)
        return total

    def classifier(self) -> nn.Sequential:
        """A copy of layers and head as one module, from images to logits."""
        assert self.head is not None, "a network without a head classifies nothing"
        return copy.deepcopy(nn.Sequential(*(proved.layer for proved in self.layers), self.head))


_KNOWN: OrderedDict[str, ExactNetwork] = OrderedDict()
_KNOWN_LIMIT = 2
_KNOWN_LOCK = threading.Lock()
PLAIN = (object, ABC, Generic)
"""Classes of Python itself among the ancestors of layers."""
MISSED = 1.2
"""A SOC layer whose proved norm exceeds its interval this many times is scaled by less than its norm."""


@torch.no_grad()
def exact_network(model: nn.Module, input_shape: Shape, dtype: torch.dtype = torch.float64) -> ExactNetwork:
    """Freeze a copy of the model in `dtype` and prove a bound for each layer, or take both from memory.

    What is remembered is found by a hash of everything that the model keeps, so it never outlives a change.
    That hash does not see the code of a layer, so only models made of lipcert's and torch's own modules are
    remembered, and of these only such that keep numbers and tensors; a layer of yours is proved anew on every
    call. What is returned is remembered too: copy a layer before you change it.

    Raises:
        NotProvedError: a module without a proved bound, by path and name.
    """
    refuse_changes(model)
    # The copy is what is hashed and what is proved, whatever another thread does to the model meanwhile.
    model = copy.deepcopy(model)
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    foreign = any(is_theirs(kind) for kind in kinds.difference(PLAIN))
    found = None if foreign else fingerprint(model)
    if found is None:
        return _prove(model, input_shape, dtype)
    key = f"{found} {tuple(input_shape)} {dtype} {device_of(model)}"
    with _KNOWN_LOCK:
        network = _KNOWN.pop(key, None) or _prove(model, input_shape, dtype)
        _KNOWN[key] = network
        while len(_KNOWN) > _KNOWN_LIMIT:
            _KNOWN.popitem(last=False)
    return network


def network_hash(model: nn.Module) -> str:
    """SHA-256 that names a network in records: its config (else what its modules are) and its tensors.

    It must not change between versions, for then old certificates could not be verified: what a later version
    adds to a config may count only where it is not the default.
    """
    if type(model) is LipConvnet and structure_of(model) == model.as_built:
        structure: object = asdict(model.config)
    else:
        structure = structure_of(model)
    digest = hashlib.sha256(json.dumps(structure, sort_keys=True).encode())
    hash_tensors(digest, model.state_dict())
    return digest.hexdigest()


def fingerprint(model: nn.Module) -> str | None:
    """SHA-256 over everything that decides what a model of known classes computes: a key for this process.

    None if a module keeps something that has no such hash.
    """
    digest = hashlib.sha256()
    for path, module in model.named_modules(remove_duplicate=False):
        digest.update(f"{path} {type(module).__qualname__} {module.extra_repr()}\n".encode())
        kept = {**vars(module), **module._parameters, **module._buffers}
        hash_tensors(digest, {name: value for name, value in kept.items() if isinstance(value, Tensor)})
        if type(module) in (nn.Sequential, LipConvnet):
            continue  # which read nothing else
        if not is_plain(settings(module)):
            return None
        digest.update(f"{settings(module)}\n".encode())
    return digest.hexdigest()


def hash_tensors(digest: "hashlib._Hash", tensors: dict[str, Tensor]) -> None:
    """Add names, types, shapes and bytes, in the order of the names."""
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")


def _prove(model: nn.Module, input_shape: Shape, dtype: torch.dtype) -> ExactNetwork:
    """Prove a model that may be changed for it."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            continue
        if tensor.is_floating_point() or tensor.is_complex():
            raise ArgumentError(
                f"model: expected weights in float64, float32, bfloat16 or float16, got {tensor.dtype}"
            )
    model = model.to(dtype).eval().requires_grad_(False)
    body, head = split_head(model) if ends_in_head(model) else (model, None)
    layers, shape = [], tuple(input_shape)
    for placed in placed_layers(body, shape):
        with at(placed.path):
            layers.append(_prove_layer(placed))
            shape = placed.layer.output_shape(placed.input_shape)
            if is_foreign(placed.layer):
                image = torch.zeros(1, *placed.input_shape, dtype=dtype, device=device_of(model))
                _refuse_other_shape(layers[-1].layer(image), shape)
    return ExactNetwork(tuple(layers), None if head is None else _constant_head(head, shape))


@contextmanager
def at(path: str) -> Iterator[None]:
    """Errors say where the layer stands."""
    try:
        yield
    except NotProvedError as error:
        raise NotProvedError(f"{path}: {error}") from error


def ends_in_head(model: nn.Module) -> bool:
    """Whether the last module is a head, or a plain `nn.Linear` that can be taken as one."""
    last = next(reversed(model._modules.values()), None) if isinstance(model, nn.Sequential) else None
    return isinstance(last, (Head, nn.Linear))


def _prove_layer(placed: PlacedLayer) -> ProvedLayer:
    name, shape = type(placed.layer).__name__, placed.input_shape
    layer = _frozen(placed.layer, shape)
    if isinstance(layer, FrozenSeries) and not is_foreign(layer):
        norm = layer.operator_norm_bound(shape)
        if isinstance(placed.layer, SOC) and norm > MISSED * placed.layer.evaluation_series.radius:
            raise NotProvedError(
                f"{name} has weights whose norm the power iteration does not find, which leave open how they "
                "are scaled; train it anew"
            )
        bound = polynomial_modulus_upper_bound(layer.coefficients, norm)
    else:
        # A number of numpy or torch in single precision would be multiplied in single precision.
        norm = bound = float(layer.lipschitz_bound(shape))
    if not 0 <= bound < math.inf:
        raise NotProvedError(f"{name} has no finite bound, got {bound}")
    return ProvedLayer(placed.path, name, layer, shape, bound, norm)


def _frozen(layer: LipschitzModule, input_shape: Shape) -> LipschitzModule:
    _refuse_undetermined(layer)
    if isinstance(layer, SOC) and type(layer).freeze is SOC.freeze:
        # Not layer.freeze: a dense matrix for small maps takes longer to make in float64 than it saves.
        return layer.frozen_series(input_shape)
    frozen = layer.freeze(input_shape)
    if not isinstance(frozen, LipschitzModule):
        raise NotProvedError(f"{type(layer).__name__} freezes to {type(frozen).__name__}, which has no bound")
    return frozen


def _refuse_other_shape(output: Tensor, stated: Shape) -> None:
    """Layers are proved for the shapes that those in front of them state: refuse a shape that is not made."""
    made = tuple(output.shape[1:])
    if made != tuple(stated):
        raise NotProvedError(f"the layer makes {made}, but its output_shape says {tuple(stated)}; mend that")


def _refuse_undetermined(layer: LipschitzModule) -> None:
    """Refuse weights that leave open which function they mean: machines would differ on it.

    Weights near a singular matrix have no nearest orthogonal one that every machine would find, and a Cayley
    transform of large matrices is mostly rounding.
    """
    method = layer.method if isinstance(layer, OrthogonalLinear) else ""
    if isinstance(layer, Cayley) or method == "cayley":
        error = copy.deepcopy(layer).double().orthogonality_error
        assert isinstance(error, float)
        if not error <= LARGEST_ERROR:
            raise NotProvedError(
                f"the Cayley transform in {type(layer).__name__} has a scale that makes its rounding error "
                f"larger than {LARGEST_ERROR}; train with a smaller scale"
            )
    weights: tuple[Tensor, ...] = ()
    if isinstance(layer, BCOP):
        weights = (layer.weight, layer.bases)
    elif isinstance(layer, OrthogonalLinear) and method == "bjorck":
        weights = (layer.weight,)
    for number in map(condition, weights):
        if not number <= LARGEST_CONDITION:
            raise NotProvedError(
                f"{type(layer).__name__} has weights with a condition number of {number:.1g}, which leave "
                f"open what their orthogonal factor is (at most {LARGEST_CONDITION:.0g}); train it anew"
            )


def _constant_head(head: Head, input_shape: Shape) -> ConstantHead:
    if isinstance(head, OrthogonalHead):
        _refuse_undetermined(head.linear)
    frozen = head.freeze(input_shape)
    # The rounding of a head is that of W x + b, which a head of one's own may compute in another way.
    if not isinstance(frozen, ConstantHead) or is_foreign(frozen):
        raise NotProvedError(
            f"head: {type(head).__name__} does not freeze to fixed rows, so its margin rule is unknown"
        )
    return frozen
