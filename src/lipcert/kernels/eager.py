"""Functions that torch.compile calls as they are, in place of tracing them."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def eager(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator: inside a network that torch.compile traces, the function runs as it does outside of it.

    For code with gradients of its own, tensors that are written through views, or values that it keeps. The
    graph ends in front of such a function and the next one begins behind it; with `fullgraph=True` torch says
    so. What it computes, forward and backward, is what it computes without torch.compile.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_dynamo_compiling():
            from lipcert.kernels.interpreter import interpret

            result: Result = interpret(function, *args, **kwargs)
            return result
        return function(*args, **kwargs)

    return call
