"""Affine functions of channels, such as batch normalisation, folded into the convolution beside them.

The norm of the folded convolution is at most the product of both, and most often much smaller.
"""

from dataclasses import replace

import torch

from lipcert.operators import ChannelAffine, Convolution, Operator

LARGEST_SHIFT = 1e6
"""In front of a folded convolution; of a channel that batch normalisation nearly drops it is larger."""


def fold(first: Operator, second: Operator) -> tuple[Operator, ...] | None:
    """Two operators in sequence as one, or with a shift in front of it; None if they do not fold.

    Args:
        first: runs first.
        second: runs on what it made.
    """
    if not isinstance(first, Convolution) or not isinstance(second, Convolution):
        return None
    if _is_per_channel(second):
        scale = second.kernel.flatten()
        kernel = first.kernel * scale.view(-1, 1, 1, 1)
        bias = None if first.bias is None else scale * first.bias
        if second.bias is not None:
            bias = second.bias if bias is None else bias + second.bias
        return (replace(first, kernel=kernel, bias=bias),)
    scale = first.kernel.flatten()
    if not _is_per_channel(first) or not bool((scale != 0).all()):
        return None
    # Zeros around the map come after the shift, so that it cannot become a part of the bias.
    grouped = second.kernel.view(second.groups, -1, *second.kernel.shape[1:])
    kernel = (grouped * scale.view(second.groups, 1, -1, 1, 1)).flatten(0, 1)
    folded = replace(second, kernel=kernel)
    if first.bias is None or not bool(first.bias.any()):
        return (folded,)
    shift = first.bias / scale
    # Beside a far larger shift the pixels would be rounded away.
    if not bool((shift.abs() <= LARGEST_SHIFT).all()):
        return None
    return ChannelAffine(-shift, torch.ones_like(scale)), folded


def _is_per_channel(operator: Convolution) -> bool:
    channels, inputs, *size = operator.kernel.shape
    plain = (operator.stride, operator.padding) == ((1, 1), (0, 0))
    return plain and channels == operator.groups and inputs == 1 and size == [1, 1]
