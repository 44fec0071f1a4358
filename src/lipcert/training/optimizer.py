"""SGD as the paper uses it: weight decay on convolutions and head, none on activations."""

from typing import Any

import torch
from torch import nn

from lipcert.nn.lipschitz import OrthogonalConv2d
from lipcert.training.config import TrainConfig


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Split the parameters in two: those of convolutions and of `model.head` decay, all others do not.

    Biases of convolutions and head decay with their weights, as in the authors' training. What is neither
    (the angles of the activations) never decays: an angle has no natural zero to be pulled to.
    """
    owners: list[nn.Module] = [module for module in model.modules() if isinstance(module, OrthogonalConv2d)]
    head = getattr(model, "head", None)
    if isinstance(head, nn.Module):
        owners.append(head)
    decayed = {parameter for owner in owners for parameter in owner.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if p in decayed], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p not in decayed], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.SGD:
    """SGD over `parameter_groups`, in one kernel where `device` has it."""
    fused = device.type in ("cpu", "cuda")
    return torch.optim.SGD(
        parameter_groups(model, config.decay),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        fused=fused,
        foreach=not fused,
    )
