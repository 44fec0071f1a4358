"""Measuring: interleaved repetitions, arithmetic counted by torch, peak memory in a process of its own."""

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lipcert.machine import in_turns


@dataclass(frozen=True)
class Contender:
    """One way to do the work: a name, what runs once, and how many images that is."""

    name: str
    run: Callable[[], object]
    images: int


@dataclass(frozen=True)
class Timing:
    """What was measured of one contender."""

    name: str
    seconds: float
    images_per_second: float
    gflops: float
    repetitions: int


_IN_PLACE = {torch.ops.aten.addmm_: torch.ops.aten.addmm, torch.ops.aten.baddbmm_: torch.ops.aten.baddbmm}
"""Products that torch's table of formulas does not know, and those that cost as much."""
_PACKED = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""A product whose matrix is opaque: its operations follow from the vectors at both ends."""


class _Arithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the floating point operations of matrix products and convolutions, by torch's own formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func._overloadpacket
        formula = flop_registry.get(_IN_PLACE.get(operation, operation))
        if operation is _PACKED:
            self.flops += 2 * args[0].numel() * result.shape[-1]
        elif formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def measure(contenders: list[Contender], repetitions: int) -> list[Timing]:
    """Median time of each contender; the contenders take turns, so that a noisy neighbour disturbs them
    alike.
    """
    counts = []
    for contender in contenders:
        with _Arithmetic() as counter:
            contender.run()
        counts.append(counter.flops)
    times = in_turns([contender.run for contender in contenders], repetitions)
    return [
        Timing(contender.name, seconds, contender.images / seconds, flops / seconds / 1e9, repetitions)
        for contender, seconds, flops in zip(contenders, times, counts, strict=True)
    ]


def peak_gflops(repetitions: int = 5, bf16: bool = True) -> dict[str, float]:
    """The machine's best rate at large matrix products and convolutions: the physical limit for the rest."""
    result = {}
    kinds = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if bf16 else {})
    for name, dtype in kinds.items():
        a = torch.randn(2048, 2048).to(dtype)
        x = torch.randn(128, 256, 8, 8).to(dtype).contiguous(memory_format=torch.channels_last)
        kernel = torch.randn(256, 256, 3, 3).to(dtype).contiguous(memory_format=torch.channels_last)
        rates = []
        for run, flops in (
            (lambda a=a: a @ a, 2 * 2048**3),
            (lambda x=x, k=kernel: F.conv2d(x, k, padding=1), 2 * 128 * 64 * 9 * 256**2),
        ):
            run()
            seconds = []
            for _ in range(repetitions):
                start = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - start)
            rates.append(flops / min(seconds) / 1e9)
        result[name] = max(rates)
    return result


def share_of_peak(precision: str, name: str, gflops: float, peak: dict[str, float]) -> float | None:
    """How much of the machine's peak a contender reaches, in the precision that it computes in.

    Args:
        precision: of the line that it belongs to.
        name: of the contender, which says so where it computes in another one.
        gflops: its rate.
        peak: from `peak_gflops`, which does not measure float64.

    >>> peak = {"fp32": 100.0, "bf16": 200.0}
    >>> share_of_peak("bf16", "ours", 50, peak), share_of_peak("bf16", "the paper's, fp32", 50, peak)
    (0.25, 0.5)
    """
    if "float64" in name:
        return None
    return gflops / peak["bf16" if precision == "bf16" and "fp32" not in name else "fp32"]


def peak_memory(prepare: Callable[[], Callable[[], object]], times: int = 2) -> float:
    """MiB by which the resident memory of a fresh process grows at most, from before `prepare` to after its
    runs.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report_memory, args=(prepare, times, sender))
    process.start()
    sender.close()
    try:
        return float(receiver.recv())
    finally:
        process.join()


def _report_memory(prepare: Callable[[], Callable[[], object]], times: int, sender: Connection) -> None:
    before = _high_water()
    run = prepare()
    for _ in range(times):
        run()
    sender.send(_high_water() - before)


def _high_water() -> float:
    """Largest resident memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent process had, too
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
