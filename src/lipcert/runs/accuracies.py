"""Accuracies as runs write them down: the share that is right, and the shares that are certified as well."""

from typing import Any, TypedDict

from lipcert.errors import ArgumentError
from lipcert.schema import build

Certified = TypedDict("Certified", {"36/255": float, "72/255": float, "108/255": float})


class Shares(TypedDict):
    """Accuracies alone."""

    standard: float
    certified: Certified


class Accuracies(Shares):
    """Of a model on held-out images."""

    images: int


class Tested(Accuracies):
    """Of a proved network on the test images, with its constant from pixels to features."""

    lipschitz: float


def check_accuracies(kind: Any, value: Any, name: str) -> None:
    """Raise an ArgumentError unless `value` is a `kind` of accuracies, with shares between 0 and 1."""
    found = build(kind, value, name)
    shares = [found["standard"], *found["certified"].values()]
    right = all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares)
    if not right or found.get("images", 1) < 1:
        raise ArgumentError(f"{name}: expected shares from 0 to 1, of at least one image")
