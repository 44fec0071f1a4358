"""Counters of the service in Prometheus's text format, updated by the event loop's thread only."""

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts of values up to each limit, cumulative when written."""

    def __init__(self, name: str, about: str, limits: Sequence[float]) -> None:
        self.name, self.about, self.limits = name, about, limits
        self.counts = [0] * (len(limits) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.limits, value)] += 1
        self.total += value

    def lines(self) -> Iterator[str]:
        """The text format."""
        yield from head(self.name, self.about, "histogram")
        below = 0
        for limit, count in zip([*map(str, self.limits), "+Inf"], self.counts, strict=True):
            below += count
            yield f'{self.name}_bucket{{le="{limit}"}} {below}'
        yield f"{self.name}_sum {self.total}"
        yield f"{self.name}_count {below}"


class Metrics:
    """Counters of one service."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.pictures: Counter[str] = Counter(certified=0, unreadable=0)
        self.seconds = Histogram("lipcert_request_seconds", "Time to answer a request to certify.", SECONDS)
        self.batches = Histogram("lipcert_batch_pictures", "Pictures certified together.", SIZES)

    def text(self, *, waiting: int) -> str:
        """All of it in Prometheus's text format; `waiting` is the length of the queue."""
        return "\n".join([*self._lines(waiting), ""])

    def _lines(self, waiting: int) -> Iterator[str]:
        yield from head("lipcert_requests_total", "Requests by path and status.", "counter")
        for (path, status), count in sorted(self.requests.items()):
            yield f'lipcert_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from head("lipcert_pictures_total", "Pictures by what became of them.", "counter")
        for outcome, count in sorted(self.pictures.items()):
            yield f'lipcert_pictures_total{{outcome="{outcome}"}} {count}'
        yield from self.seconds.lines()
        yield from self.batches.lines()
        yield from head("lipcert_waiting_pictures", "Pictures in the queue.", "gauge")
        yield f"lipcert_waiting_pictures {waiting}"
        yield from head("process_cpu_seconds_total", "Processor time of all threads.", "counter")
        yield f"process_cpu_seconds_total {time.process_time()}"
        if (memory := resident_bytes()) is not None:
            yield from head("process_resident_memory_bytes", "Resident memory.", "gauge")
            yield f"process_resident_memory_bytes {memory}"


def head(name: str, about: str, kind: str) -> Iterator[str]:
    """The two lines before the values of a metric."""
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def resident_bytes() -> int | None:
    """Resident memory of this process, None if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
