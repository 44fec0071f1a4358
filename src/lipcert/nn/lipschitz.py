"""What every layer promises, and the registries by which models, tests and benchmarks find the layers."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError, NotProvedError, check_positive
from lipcert.functional.channels import space_to_depth

Shape = tuple[int, ...]
Value = TypeVar("Value")


class LipschitzModule(nn.Module, ABC):
    """A layer that owns a statement about l2 distances.

    Shapes are those of one sample, without the batch: (C, H, W) or (C,). The laws, for every input of
    `input_shape` and in exact arithmetic on the stored weights:

    - `lipschitz_bound(input_shape)` is proved: no two inputs move apart by more than this factor.
    - `freeze(input_shape)` computes the same function from buffers alone, for inputs of that shape only.
    - `forward` in evaluation mode depends on the weights and the input, on nothing that ran before.
    - `rounding_error(input_shape)` is proved as well; `certify` knows it of lipcert's own layers.
    """

    def output_shape(self, input_shape: Shape) -> Shape:
        """Shape of one output sample; the input's own unless the layer says otherwise."""
        return input_shape

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Proved upper bound on the Lipschitz constant for inputs of `input_shape`."""
        raise NotProvedError(
            f"{type(self).__name__} has no proved Lipschitz bound; implement lipschitz_bound, or use a layer "
            "of lipcert in its place"
        )

    def rounding_error(self, input_shape: Shape) -> tuple[float, float]:
        """(kappa, tau): in float64 the frozen layer's output is within kappa ||z|| + tau of the exact one."""
        raise NotProvedError(
            f"{type(self).__name__} has no proved rounding error; give it a method "
            "rounding_error(input_shape) that returns (kappa, tau): in float64 its output is within "
            "kappa ||z|| + tau of the exact one"
        )

    def freeze(self, input_shape: Shape) -> nn.Module:
        """Inference form for inputs of `input_shape`: same function, no parameters, no orthogonalisation."""
        frozen = copy.deepcopy(self).eval().requires_grad_(False)
        frozen.output_shape(input_shape)
        return frozen


COMPUTES = {"__call__", "forward", "transform", "linear", "activate", "logits"}
"""Methods that decide what a layer computes; those after `forward` are what lipcert's own call."""


def is_foreign(layer: LipschitzModule) -> bool:
    """Whether a part of what a layer computes was written outside of lipcert."""
    return any(is_theirs(_provider(layer, method)) for method in COMPUTES)


def replaces_forward_without(layer: LipschitzModule, statement: str) -> bool:
    """Whether a class outside of lipcert decides what is computed, without a method that speaks of it.

    Such a method is one that came with that class or a later one: what lipcert says is of lipcert's code.
    """
    order = type(layer).__mro__
    theirs = [kind for kind in (_provider(layer, method) for method in COMPUTES) if is_theirs(kind)]
    if not theirs:
        return False
    speaker = _provider(layer, statement)
    return not is_theirs(speaker) or order.index(speaker) > min(map(order.index, theirs))


def _provider(layer: LipschitzModule, method: str) -> type:
    """The class that a method of a layer comes from; torch's for a method that it does not have."""
    return next((kind for kind in type(layer).__mro__ if method in vars(kind)), nn.Module)


def is_theirs(kind: type) -> bool:
    """Whether a class was written outside of lipcert and torch; one made by `type` or `exec` was."""
    return kind.__module__.partition(".")[0] not in ("lipcert", "torch")


class WeightCache:
    """Keeps one value that was computed from weights, for as long as the weights hold the same numbers.

    Weights are compared by value. Tensor version counters would be cheaper, but they miss edits through
    `.data` and assignments of `.data`, and a stale kernel would make a certificate wrong.
    """

    def __init__(self) -> None:
        # One attribute, read and written once in a call: another thread sees the old entry or the new one.
        self._entry: tuple[object, tuple[Tensor, ...], Any] = (None, (), None)

    def get(self, weights: tuple[Tensor, ...], build: Callable[[], Value], key: object = None) -> Value:
        """Return the remembered value if it was built from these weights and this key, else build it anew."""
        known_key, known_weights, value = self._entry
        if known_key != key or not _equal(known_weights, weights):
            # A value made in inference mode could not take part in the backward pass of a later attack.
            with torch.inference_mode(False), torch.no_grad():
                value = build()
                self._entry = (key, tuple(w.detach().clone() for w in weights), value)
        return value  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def _equal(known: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> bool:
    return len(weights) == len(known) and all(
        w.dtype == k.dtype and w.device == k.device and torch.equal(w, k)
        for w, k in zip(weights, known, strict=True)
    )


OF_TORCH = frozenset(vars(nn.Module()))
"""What torch itself keeps of every module: modes, hooks, and the dictionaries of its tensors and modules."""


def settings(module: nn.Module) -> dict[str, Any]:
    """What a module keeps besides tensors, modules and caches: the arguments that it was built with."""
    return {
        name: value
        for name, value in sorted(vars(module).items())
        if name not in OF_TORCH and not isinstance(value, (Tensor, WeightCache))
    }


def is_plain(value: object) -> bool:
    """Whether the repr of a value says all of it."""
    if is_dataclass(value) and not isinstance(value, type):
        return all(is_plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return all(map(is_plain, [*value.keys(), *value.values()]))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device))


class OrthogonalConv2d(LipschitzModule):
    """Arguments, checks and bookkeeping that the orthogonal convolutions share; behaves like `nn.Conv2d`.

    A subclass implements `transform` on stride-1 maps and states its `orthogonality_error`. Stride 2 is a
    2x2 space-to-depth (an isometry) in front, so the map sees 4 * in_channels channels of half the size.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output. With more outputs than (after stride) inputs the Jacobian has
            orthonormal columns, with fewer it has orthonormal rows.
        kernel_size: side of the square kernel, odd.
        stride: 1 or 2; stride 2 needs a map of even height and width.
        bias: add a learnable bias per output channel, uniform in +-1/sqrt(out_channels) at first.
    """

    kernel_sizes: tuple[int, ...] = (1, 3)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels)
        if kernel_size not in self.kernel_sizes:
            sizes = ", ".join(map(str, self.kernel_sizes))
            raise ArgumentError(f"kernel_size: {type(self).__name__} takes {sizes}, got {kernel_size!r}")
        if stride not in (1, 2):
            raise ArgumentError(f"stride: expected 1 or 2, got {stride!r}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel_size, stride
        self.map_channels = stride**2 * in_channels
        self.cache = WeightCache()
        self.bias: nn.Parameter | None = None
        if bias:
            limit = out_channels**-0.5
            self.bias = nn.Parameter(
                torch.empty(out_channels, device=device, dtype=dtype).uniform_(-limit, limit)
            )

    @property
    @abstractmethod
    def orthogonality_error(self) -> float:
        """Largest possible |s - 1| over the singular values s of the layer in evaluation mode."""

    @abstractmethod
    def transform(self, x: Tensor) -> Tensor:
        """Apply the orthogonal map to (N, map_channels, H, W); returns (N, out_channels, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to a batch of maps (N, in_channels, H, W)."""
        if x.dim() != 4:
            raise ArgumentError(
                f"{type(self).__name__}: expected a batch of maps (N, C, H, W), got shape {tuple(x.shape)}"
            )
        self.output_shape(tuple(x.shape[1:]))
        if not x.is_floating_point():
            raise ArgumentError(f"{type(self).__name__}: expected floating point input, got {x.dtype}")
        y = self.transform(space_to_depth(x) if self.stride == 2 else x)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(1, -1, 1, 1)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, H / stride, W / stride); raises if the layer cannot take `input_shape`."""
        if len(input_shape) != 3 or input_shape[0] != self.in_channels:
            raise ArgumentError(
                f"{type(self).__name__}: expected maps of {self.in_channels} channels, "
                f"got shape {tuple(input_shape)}"
            )
        height, width = input_shape[1:]
        if self.stride == 2 and (height % 2 or width % 2):
            raise ArgumentError(
                f"{type(self).__name__}: stride 2 needs a map of even height and width, got "
                f"{height}x{width}; pad or crop it, or use stride 1"
            )
        return (self.out_channels, height // self.stride, width // self.stride)

    def weights_are_constant(self) -> bool:
        """Whether a value computed from the weights may be remembered: evaluation, and no gradient wanted."""
        trainable = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters(recurse=False))
        return not self.training and not trainable

    def extra_repr(self) -> str:
        """The arguments, in the order and form of `nn.Conv2d`."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        return text if self.bias is not None else f"{text}, bias=False"


CONVOLUTIONS: dict[str, type[OrthogonalConv2d]] = {}
ACTIVATIONS: dict[str, Callable[[int], LipschitzModule]] = {}


def register_convolution(name: str) -> Callable[[type[OrthogonalConv2d]], type[OrthogonalConv2d]]:
    """Class decorator: make a convolution known to models, the contract tests and the tool as `name`.

    Raises:
        ArgumentError: the name is one of lipcert's own.
    """

    def register(cls: type[OrthogonalConv2d]) -> type[OrthogonalConv2d]:
        _refuse_taken(name, CONVOLUTIONS.get(name), cls)
        CONVOLUTIONS[name] = cls
        return cls

    return register


def register_activation(name: str, build: Callable[[int], LipschitzModule]) -> None:
    """Make an activation known to models, the contract tests and the tool; `build(channels)` returns the
    layer.

    Raises:
        ArgumentError: the name is one of lipcert's own.
    """
    _refuse_taken(name, ACTIVATIONS.get(name), build)
    ACTIVATIONS[name] = build


def _refuse_taken(name: str, known: Any, new: Any) -> None:
    """A saved network names its layers: lipcert's names mean lipcert's. Others may be defined again."""
    if known is not None and known.__module__.startswith("lipcert.") and new.__module__ != known.__module__:
        raise ArgumentError(f"name: {name!r} is one of lipcert's own; choose another")
