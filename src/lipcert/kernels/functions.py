"""What functions with a gradient of their own share, so that torch.func can transform them."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from lipcert.errors import ArgumentError


class OfWeights(torch.autograd.Function):
    """A function of weights, which transforms over inputs pass by.

    torch.func asks every function for a rule, whether or not what it maps over reaches the function.
    """

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Refuse: `torch.vmap` leaves out functions that none of its batches reaches."""
        raise ArgumentError(
            "vmap: expected a batch of inputs, got a batch of weights; call a module for each, in a loop"
        )


class OfSamples(torch.autograd.Function):
    """A function of one tensor (N, ...) that treats every sample alike, so that batches may be laid together.

    Attributes:
        samples: places of the arguments that hold something for every sample; the others are parameters.
    """

    samples: ClassVar[tuple[int, ...]] = (0,)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        """A batch of batches is a larger batch."""
        if any(dim is not None for place, dim in enumerate(in_dims) if place not in cls.samples):
            OfWeights.vmap(info, in_dims)
        laid = list(arguments)
        for place in cls.samples:
            dim, value = in_dims[place], arguments[place]
            batch = value.movedim(dim, 0) if dim is not None else value.expand(info.batch_size, *value.shape)
            laid[place] = batch.flatten(0, 1)
        result: Tensor = cls.apply(*laid)  # type: ignore[no-untyped-call]
        return torch.unflatten(result, 0, (info.batch_size, -1)), 0


def rows_together(
    function: type[torch.autograd.Function],
    info: Any,
    in_dims: tuple[int | None, ...],
    x: Tensor,
    *weights: Any,
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """Rule of a function of (N, ...) and weights that returns a result per sample and what it keeps."""
    if in_dims[0] is None or any(dim is not None for dim in in_dims[1:]):
        OfWeights.vmap(info, in_dims)
    together = x.movedim(in_dims[0], 0).flatten(0, 1)  # type: ignore[arg-type]
    y, *kept = function.apply(together, *weights)  # type: ignore[no-untyped-call]
    return (y.unflatten(0, (info.batch_size, -1)), *kept), (0, *[None] * len(kept))


class Flags(OfSamples):
    """Which samples are on which side: whole numbers or bools, without a gradient."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Never asked for."""
        return (None,) * len(ctx.needs_input_grad)
