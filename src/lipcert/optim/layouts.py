"""How a parameter is read as matrices: one layout per kind of weight, each with its way back."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.errors import ArgumentError


@dataclass(frozen=True)
class Layout:
    """A view of a parameter as a batch of matrices, each of which keeps its own norm.

    Args:
        shape: what parameters it takes, for error messages.
        fits: whether it takes a parameter of this shape.
        matrices: parameter -> (B, m, n).
        parameter: (B, m, n) and the shape of the parameter -> parameter.
        length: parameter -> Frobenius norms of its matrices, in a shape that broadcasts with it.
        clean: removes in place what the layer does not read, from a parameter or a step.
    """

    shape: str
    fits: Callable[[tuple[int, ...]], bool]
    matrices: Callable[[Tensor], Tensor]
    parameter: Callable[[Tensor, tuple[int, ...]], Tensor]
    length: Callable[[Tensor], Tensor]
    clean: Callable[[Tensor], None] = lambda _: None


def _taps_to_matrix(taps: Tensor) -> Tensor:
    """(T, c, c) -> (1, c, T c): the taps side by side."""
    return taps.transpose(0, 1).reshape(1, taps.shape[1], -1)


def _matrix_to_taps(matrices: Tensor, shape: tuple[int, ...]) -> Tensor:
    count, rows, columns = shape
    return matrices.reshape(rows, count, columns).transpose(0, 1)


def _make_centre_skew(taps: Tensor) -> None:
    """Replace the first tap M by (M - M^T) / 2: its symmetric part moves nothing, but would count in norms.

    With a skew centre the norm of the held taps is that of the full kernel over sqrt(2), since `skew_taps`
    scales the centre by sqrt(2) and every other tap stands for two.
    """
    centre = taps[0]
    # A transposed copy is blocked by cache lines where elementwise reads of a transpose are not.
    centre.sub_(centre.mT.contiguous()).mul_(0.5)


LAYOUTS = {
    "taps": Layout(
        "(T, c, c)",
        lambda shape: len(shape) == 3 and shape[1] == shape[2],
        _taps_to_matrix,
        _matrix_to_taps,
        torch.linalg.vector_norm,
        _make_centre_skew,
    ),
    "kernel": Layout(
        "(out, in, ...)",
        lambda shape: len(shape) >= 2,
        lambda kernel: kernel.reshape(1, kernel.shape[0], -1),
        lambda matrices, shape: matrices.reshape(shape),
        torch.linalg.vector_norm,
    ),
    "stack": Layout(
        "(..., m, n)",
        lambda shape: len(shape) >= 2,
        lambda stack: stack.reshape(-1, *stack.shape[-2:]),
        lambda matrices, shape: matrices.reshape(shape),
        lambda stack: torch.linalg.vector_norm(stack, dim=(-2, -1), keepdim=True),
    ),
}
"""By name: held taps of a skew kernel, centre first, as one matrix; a kernel as one matrix with a row per
output; a stack of matrices that have nothing to do with each other."""


def check_layout(name: str, parameter: Tensor) -> None:
    """Raise unless the layout takes the parameter.

    Raises:
        ArgumentError: it does not.
    """
    layout = LAYOUTS[name]
    if not layout.fits(tuple(parameter.shape)):
        raise ArgumentError(
            f"params: layout {name!r} takes parameters of shape {layout.shape}, got "
            f"{tuple(parameter.shape)}; leave others to SGD, in a group without a layout"
        )
