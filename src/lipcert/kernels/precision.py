"""Keeps orthogonalisation in at least single precision, whatever autocast or half-precision weights say."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Context in which autocast is off for the device of `tensor`.

    bfloat16 products would leave a kernel orthonormal to 1e-2 only; the kernel may be *applied* in bfloat16,
    but it has to be *built* in the precision of its weights.
    """
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def working_dtype(tensor: Tensor) -> torch.dtype:
    """In which precision a product with `tensor` runs here: autocast's, if it is on."""
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def without_tf32() -> AbstractContextManager[object]:
    """Context in which cuDNN convolves float32 in float32; GPUs that can round its factors to 11 bits."""
    cudnn = torch.backends.cudnn
    flags: AbstractContextManager[object] = cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark,
        deterministic=cudnn.deterministic,
        allow_tf32=False,
    )
    return flags


def at_least_single(tensor: Tensor) -> Tensor:
    """The tensor itself in float32 or float64, else a float32 copy: LAPACK knows no half precision.

    >>> at_least_single(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
