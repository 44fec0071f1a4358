"""A value that follows from weights, kept while the weights hold the same numbers."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from lipcert.kernels.constants import may_be_kept

Value = TypeVar("Value")


class WeightCache:
    """Keeps one value that was computed from weights, for as long as the weights hold the same numbers.

    Weights are compared by value. Tensor version counters would be cheaper, but they miss edits through
    `.data` and assignments of `.data`, and a stale kernel would make a certificate wrong.
    """

    def __init__(self) -> None:
        # One attribute, read and written once in a call: another thread sees the old entry or the new one.
        self._entry: tuple[object, tuple[Tensor, ...], Any] | None = None

    def get(self, weights: tuple[Tensor, ...], build: Callable[[], Value], key: object = None) -> Value:
        """Return the cached value if it was built from these weights and this key, else build it."""
        if not may_be_kept():
            return build()
        entry = self._entry
        if entry is None or entry[0] != key or not _equal(entry[1], weights):
            # A value made in inference mode could not take part in the backward pass of a later attack.
            with torch.inference_mode(False), torch.no_grad():
                value = build()
                self._entry = entry = (key, tuple(w.detach().clone() for w in weights), value)
        return entry[2]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def _equal(known: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> bool:
    return len(weights) == len(known) and all(
        w.dtype == k.dtype and w.device == k.device and torch.equal(w, k)
        for w, k in zip(weights, known, strict=True)
    )
