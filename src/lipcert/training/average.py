"""Exponential moving average of the weights of a run."""

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from lipcert.nn.carried import complete_state

Model = TypeVar("Model", bound=nn.Module)


class WeightAverage(Generic[Model]):
    r"""A copy of a model whose parameters are an exponential moving average over the training steps.

    .. math:: \bar w_t = d_t \bar w_{t-1} + (1 - d_t) w_t, \qquad d_t = \min(d, t / (t + 9)), \quad t \ge 1

    Until t = 9 d / (1 - d) steps the smaller decay holds, under which the average forgets its beginning: the
    random weights count nearly nothing from the start, and the average reaches over a tenth of the steps so
    far. The certificate of the average is proved like that of any network.

    Args:
        model: copied; it need not have run yet.
        decay: d, above 0 and below 1. The average reaches back over some 1 / (1 - d) steps.
        device: of the copy; None is that of the model.

    Attributes:
        model: the copy, in evaluation mode. Buffers are those of the model at the last `update_buffers`.
    """

    def __init__(self, model: Model, decay: float, device: torch.device | None = None) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model)
        self.model.to(device).eval().requires_grad_(False)

    def decay_at(self, step: int) -> float:
        """The decay of step `step` = 1, 2, ..."""
        return min(self.decay, step / (step + 9))

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after step `step` = 1, 2, ..."""
        torch._foreach_lerp_(  # what torch's own averages use
            list(self.model.parameters()), list(model.parameters()), 1 - self.decay_at(step)
        )

    def reset(self, model: nn.Module) -> None:
        """Begin again with the weights of `model`."""
        self.model.load_state_dict(complete_state(model))

    def update_buffers(self, model: nn.Module) -> None:
        """Copy the buffers, which belong to the latest weights: a mean of them would mean nothing."""
        self.model.load_state_dict(dict(model.named_buffers()), strict=False)
