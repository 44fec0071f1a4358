"""The optimizer of a run: SGD as the paper uses it, or Muon for the convolutions' matrices with that SGD."""

import math
from typing import Any

import torch
from torch import nn

from lipcert.errors import ArgumentError
from lipcert.nn.convolution import LipschitzConv2d
from lipcert.nn.heads import Head
from lipcert.optim.groups import muon_groups
from lipcert.optim.muon import Muon
from lipcert.runs.config import TrainConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for torch's optimizers: convolutions and heads decay, all others do not.

    `nn.Conv2d` and `nn.Linear` decay as well. Biases decay with their weights, as in the authors' training.
    Other parameters (the angles of the activations) never decay: zero is not a natural value of an angle.

    Raises:
        ArgumentError: no module, or a decay that is negative or not finite.

    >>> import torch, lipcert as lc
    >>> model = lc.lipconvnet(depth=5, width=4, num_classes=3)
    >>> optimizer = torch.optim.SGD(parameter_groups(model, weight_decay=5e-4), lr=0.1)
    >>> {group["weight_decay"]: len(group["params"]) for group in optimizer.param_groups}
    {0.0005: 12, 0.0: 5}
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(weight_decay, (int, float)) or not 0 <= weight_decay < math.inf:
        raise ArgumentError(f"weight_decay: expected a number of at least 0, got {weight_decay!r}")
    kinds = (LipschitzConv2d, Head, nn.Conv2d, nn.Linear)
    owners = [module for module in model.modules() if isinstance(module, kinds)]
    decayed = {parameter for owner in owners for parameter in owner.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if p in decayed], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p not in decayed], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer that `config` names. `initial_lr` of a group is what the schedule scales.

    Raises:
        ArgumentError: Muon is asked for, but knows no matrix of the network.
    """
    groups = parameter_groups(model, config.decay)
    if config.optimizer == "sgd":
        fused = device.type in ("cpu", "cuda")
        return torch.optim.SGD(
            [group | {"initial_lr": config.lr} for group in groups],
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            fused=fused,
            foreach=not fused,
        )
    matrices = [group for group in muon_groups(model) if "layout" in group]
    if not matrices:
        raise ArgumentError(
            f"optimizer: the convolution {config.conv!r} names no matrix for Muon; use 'sgd', or name "
            "its parameters in the class's `matrices`"
        )
    taken = {parameter for group in matrices for parameter in group["params"]}
    rest = [group | {"params": [p for p in group["params"] if p not in taken]} for group in groups]
    return Muon(
        [group | {"initial_lr": config.muon_step} for group in matrices]
        + [group | {"initial_lr": config.lr} for group in rest if group["params"]],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        step=config.muon_step,
    )


def learning_rate_of(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate of SGD at the moment, for records; that of the last group, which is never Muon's."""
    return float(optimizer.param_groups[-1]["lr"])
