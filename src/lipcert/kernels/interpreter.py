"""What `lipcert.kernels.eager` needs while torch.compile traces.

A file of its own, imported by then alone: the decorator imports all of torch's compiler, for over a second.
"""

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def interpret(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the function, untraced."""
    return function(*args, **kwargs)
