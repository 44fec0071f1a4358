"""Biases: how they begin, and their copies in operators."""

import torch
from torch import Tensor, nn


def new_bias(
    count: int, limit: float, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Parameter:
    """A bias of `count` numbers, uniform in +-limit."""
    return nn.Parameter(torch.empty(count, device=device, dtype=dtype).uniform_(-limit, limit))


def copied_bias(bias: Tensor | None) -> Tensor | None:
    """A copy without gradient, for an operator."""
    return None if bias is None else bias.detach().clone()
