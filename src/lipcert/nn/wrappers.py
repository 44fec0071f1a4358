"""The model inside wrappers of torch and lightning-fabric."""

import torch
from torch import nn

WRAPPERS = ("DistributedDataParallel", "DataParallel", "AveragedModel", "OptimizedModule", "_FabricModule")
"""Classes that compute what the model inside of them computes."""


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel, lightning-fabric and torch.compile, inside no other wrapper."""
    while type(model).__name__ in WRAPPERS and type(model).__module__.startswith(("torch.", "lightning")):
        parts = (model._modules.get(name) for name in ("_orig_mod", "module", "_forward_module"))
        inner = next((part for part in parts if part is not None), None)
        if inner is None:
            break
        model = inner
    return model


def device_of(model: nn.Module) -> torch.device:
    """Where the model lives; the CPU if it holds no tensors."""
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
