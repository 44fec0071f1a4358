"""Which precision: orthogonalisation in at least single, bfloat16 only where the processor has it."""

import time
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


def at_least_single(tensor: Tensor) -> Tensor:
    """The tensor itself in float32 or float64, else a float32 copy: LAPACK knows no half precision.

    >>> at_least_single(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def bf16_slowdown(size: int = 256, repetitions: int = 5) -> float:
    """Time of a bfloat16 matrix product on this processor over the time of the same product in float32.

    Measured, because no list of processors stays complete. With instructions for bfloat16 it is below 1;
    where torch has to compute without them, number by number, it is 30 and more.
    """
    fastest = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other on a busy machine, in both precisions alike
    try:
        for dtype in (torch.bfloat16, torch.float32):
            matrix = torch.ones(size, size, dtype=dtype, device="cpu")
            times = []
            for _ in range(repetitions):
                start = time.perf_counter()
                matrix @ matrix
                times.append(time.perf_counter() - start)
            fastest.append(min(times))
    finally:
        torch.set_num_threads(threads)
    return fastest[0] / fastest[1]


def has_bf16() -> bool:
    """Whether bfloat16 is worth its while on this processor, and not several times slower than float32."""
    return bf16_slowdown() < 4
