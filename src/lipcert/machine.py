"""Processor and command line for records, timing in turns, and the speed of bfloat16."""

import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median


def cpu_model() -> str:
    """The processor's name, as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def is_amd_with_avx512() -> bool:
    """Whether oneDNN uses wider instructions than MKL, which asks for the maker and takes AVX2 for AMD's."""
    import torch

    return cpu_model().startswith("AMD") and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def command_line() -> str:
    """The running command as a user would type it; `python -m lipcert` is written as `lipcert`."""
    program = Path(sys.argv[0]).name
    return shlex.join(["lipcert" if program == "__main__.py" else program, *sys.argv[1:]])


def in_turns(works: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Median seconds of each function after a warm-up call; they take turns, so load slows all alike."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(repetitions + 1):
        for work, seconds in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            if turn:
                seconds.append(time.perf_counter() - start)
    return [median(seconds) for seconds in times]


def bf16_slowdown(size: int = 256, repetitions: int = 5) -> float:
    """Time of a bfloat16 matrix product on this processor over the time of the same product in float32.

    Measured, because no list of processors stays complete. With instructions for bfloat16 it is below 1;
    without them it is 4 to 5 with AVX-512, which converts to float32 and back, and 30 and more with AVX2.
    """
    import torch  # imported here: the processor's name needs no torch

    fastest = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other on a busy machine
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


@cache
def has_bf16() -> bool:
    """Whether bfloat16 products take less than twice the time of float32 products on this processor."""
    return bf16_slowdown() < 2
