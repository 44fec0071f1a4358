"""What every frozen operator promises, and how a computed value carries the error that it may have."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.constants import may_be_kept
from lipcert.proofs.rounding import product_up

Shape = tuple[int, ...]
Made = TypeVar("Made")


@dataclass(frozen=True)
class RoundingError:
    """In float64 a computed output is within relative * ||x|| + absolute of the exact one, in l2."""

    relative: float
    absolute: float


LARGEST_RADIUS = 1e6
"""Rounding errors grow with the ball, so no radius beyond this is claimed: far beyond any image."""
LARGEST_MAP = 2**26
"""Numbers of one image between two operators; a file that asks for more would only use up memory."""
EXACT = RoundingError(0.0, 0.0)
"""Of operators that move numbers, or compare them, and round none."""


@dataclass(frozen=True)
class Flow:
    r"""A computed batch, and what is known of all inputs within a distance r of the images behind it.

    For every x' within r of image x, with exact value z(x') and computed value :math:`\hat z(x')` here:

    .. math:: \|\hat z(x') - z(x')\| \le e_0 + e_1 r, \qquad \|z(x') - z(x)\| \le \text{reach} \cdot r.

    Attributes:
        value: (N, ...), computed at the images themselves.
        reach: Lipschitz constant from the images to here.
        fixed: (N,), e_0.
        slope: e_1, which is the same for all images.
        largest: (N,), bound on the norm of what entered any operator up to here that rounds or stretches, for
            r up to `LARGEST_RADIUS`.
    """

    value: Tensor
    reach: float
    fixed: Tensor
    slope: float
    largest: Tensor

    @classmethod
    def of_images(cls, images: Tensor) -> Self:
        """The images themselves, which are exact."""
        zero = images.new_zeros(len(images), dtype=torch.float64)
        return cls(images, 1.0, zero, 0.0, zero)

    def size(self) -> tuple[Tensor, float]:
        r"""Bound a + b r on the norm of computed values in the ball: a = n + 2 e_0, b = 2 e_1 + reach.

        :math:`\|\hat z(x')\| \le \|z(x')\| + E \le \|z(x)\| + \text{reach}\,r + E \le n + 2E +
        \text{reach}\,r` with n the norm of the value at the image.
        """
        norms = vector_norms(self.value).add_(self.fixed, alpha=2)
        return inflate(norms), inflate(2 * self.slope + self.reach)


Bound = TypeVar("Bound", Tensor, float)


def inflate(x: Bound) -> Bound:
    """Covers the rounding of a few operations on bounds, and of norms of up to 2^30 numbers."""
    return x * (1 + 2.0**-20)


def vector_norms(x: Tensor) -> Tensor:
    """(N,): the computed norms, and what entries below 2^-511 contribute, whose squares vanish."""
    flat = x.flatten(1)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
    return norms.add_(math.sqrt(flat.shape[1]) * 2.0**-510)


@dataclass(frozen=True, eq=False, repr=False)
class Operator(ABC):
    """A function of one batch, with numbers in place of parameters; immutable.

    Shapes are those of one sample, without the batch: (C, H, W) or (C,). The laws, for inputs of
    `input_shape`:

    - `apply` depends on the stored numbers and its input, on nothing else.
    - `output_shape(input_shape)` is the shape that `apply` makes; it raises where `apply` would fail.
    - `lipschitz_bound(input_shape)` is proved for the exact function of the stored numbers: no two inputs
      move apart by more than this factor.
    - `rounding_error(input_shape)` is proved for `apply` in float64, for every ordinary BLAS.

    Values that follow from the stored numbers (a norm, a kernel in another layout) are kept in `_made`: the
    numbers never change.
    """

    _made: dict[Any, Any] = field(init=False, default_factory=dict)

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """The function on a batch (N, ...), in the dtype and on the device of the stored numbers."""

    @abstractmethod
    def output_shape(self, input_shape: Shape) -> Shape:
        """Shape of one output sample; raises ArgumentError for inputs that the operator does not take."""

    @abstractmethod
    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Proved upper bound on the Lipschitz constant."""

    @abstractmethod
    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Proved bound on what rounding adds to the output of `apply` in float64."""

    def channels_read(self, input_shape: Shape) -> range:
        """Channels of the input outside of which nothing changes the output; all, unless one knows better."""
        return range(input_shape[0])

    def pair_bounds(self, input_shape: Shape) -> Tensor:
        r"""(K, K) in float64, of an operator that makes K numbers: proved Lipschitz constants of f_i - f_j.

        In general :math:`|(f_i - f_j)(x) - (f_i - f_j)(x')| \le \sqrt 2\,\|f(x) - f(x')\|`.
        """
        (count,) = self.output_shape(input_shape)
        steepest = product_up(math.sqrt(2) * (1 + 2.0**-52), self.lipschitz_bound(input_shape))
        bounds = torch.full((count, count), steepest, dtype=torch.float64, device="cpu")
        return bounds.fill_diagonal_(0)

    def feature_bound(self, input_shape: Shape) -> float:
        """Proved constant up to the features in front of the last matrix; of all of it if there is none."""
        return self.lipschitz_bound(input_shape)

    def run(self, flow: Flow, input_shape: Shape) -> Flow:
        r"""`apply`, with the error: :math:`E' = L E + \kappa\,\text{size} + \tau` and reach' = L reach."""
        lipschitz, error = self.lipschitz_bound(input_shape), self.rounding_error(input_shape)
        if lipschitz == 1 and error == EXACT:
            return replace(flow, value=self.apply(flow.value))
        fixed, slope = flow.size()
        return Flow(
            self.apply(flow.value),
            product_up(lipschitz, flow.reach) if lipschitz != 1 else flow.reach,
            inflate(lipschitz * flow.fixed + error.relative * fixed + error.absolute),
            inflate(lipschitz * flow.slope + error.relative * slope),
            torch.maximum(flow.largest, fixed + slope * LARGEST_RADIUS),
        )

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same operator with its numbers elsewhere, or in another precision (then another function)."""
        return self.with_arrays(lambda array: array.to(device=device, dtype=dtype))

    def with_arrays(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same operator with every tensor inside replaced by `change(tensor)`."""
        entries = {e.name: _changed(getattr(self, e.name), change) for e in fields(self) if e.init}
        return replace(self, **entries)

    def arrays(self) -> list[Tensor]:
        """Every tensor inside, in the order of the fields; those of parts too."""
        return [
            tensor for entry in fields(self) if entry.init for tensor in _tensors(getattr(self, entry.name))
        ]

    def _make(self, key: Any, build: Callable[[], Made]) -> Made:
        if key in self._made:
            return self._made[key]  # type: ignore[no-any-return]
        # What is made in inference mode could not take part in an attack's backward pass.
        with torch.inference_mode(False), torch.no_grad():
            made = build()
        if may_be_kept():
            self._made[key] = made
        return made

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = ((getattr(self, e.name), getattr(other, e.name)) for e in fields(self) if e.init)
        return all(_equal(first, second) for first, second in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = (f"{e.name}={_shown(getattr(self, e.name))}" for e in fields(self) if e.init)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _refuse(self, expected: str, input_shape: Shape) -> ArgumentError:
        return ArgumentError(f"{type(self).__name__}: expected {expected}, got shape {tuple(input_shape)}")


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Operator):
        return value.with_arrays(change)
    return tuple(_changed(item, change) for item in value) if isinstance(value, tuple) else value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Operator):
        return value.arrays()
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, tuple) else []


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.dtype == second.dtype and torch.equal(first.cpu(), second.cpu())
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(first == second)


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return repr(value)
