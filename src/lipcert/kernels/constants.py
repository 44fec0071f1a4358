"""Tensors that are made once and kept: those that follow from sizes alone, and those of one operator."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from lipcert.kernels.precision import without_autocast

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def may_be_kept() -> bool:
    """Whether a tensor that is made now is an ordinary one, of use later.

    Under fake tensors, and while torch.export traces, it would belong to that mode.
    """
    return type(torch.empty(0, device="cpu")) is Tensor


def constant(kept: int) -> Callable[[Callable[Arguments, Made]], Callable[Arguments, Made]]:
    """Decorator: keep the results of a function whose arguments say all of them, device and dtype included.

    So a training step makes none of them and sends none to its device.

    Args:
        kept: how many results, the latest ones.
    """

    def decorate(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
        @wraps(make)
        def outside_of_modes(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
            # A tensor made in inference mode could not take part in a later backward pass.
            with torch.inference_mode(False), torch.no_grad():
                return make(*args, **kwargs)

        remembered = lru_cache(maxsize=kept)(outside_of_modes)

        @wraps(make)
        def get(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
            if not may_be_kept():
                return make(*args, **kwargs)
            return remembered(*args, **kwargs)  # type: ignore[arg-type]

        return get

    return decorate


def made_once(make: Callable[[Any], Made]) -> Callable[[Any], Made]:
    """A method whose result is kept in `owner.made`; in the precision of `owner.taps`, without gradient."""
    name = make.__name__

    @wraps(make)
    def made(owner: Any) -> Made:
        known: Made | None = owner.made.get(name)
        if known is None:
            with torch.no_grad(), without_autocast(owner.taps):
                known = make(owner)
            if may_be_kept():
                owner.made[name] = known
        return known

    return made
