"""Whether this processor has bfloat16 is told by the clock."""

import pytest
import torch

from lipcert import machine


@pytest.mark.parametrize(
    ("bf16", "fp32", "ratio"), [([9, 8, 100], [4, 50, 2], 4.0), ([1, 2, 3], [5, 4, 6], 0.25)]
)
def test_the_fastest_products_are_compared(
    monkeypatch: pytest.MonkeyPatch, bf16: list[int], fp32: list[int], ratio: float
) -> None:
    readings = iter([reading for seconds in (*bf16, *fp32) for reading in (0.0, float(seconds))])
    threads: set[int] = set()

    def clock() -> float:
        threads.add(torch.get_num_threads())
        return next(readings)

    before = torch.get_num_threads()
    monkeypatch.setattr(machine.time, "perf_counter", clock)
    assert machine.bf16_slowdown(size=2, repetitions=3) == ratio
    assert threads == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("slowdown", "has"), [(0.5, True), (1.2, True), (3.9, False), (30.0, False)])
def test_a_processor_that_converts_to_float32_and_back_has_none(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, has: bool
) -> None:
    monkeypatch.setattr(machine, "bf16_slowdown", lambda: slowdown)
    machine.has_bf16.cache_clear()
    assert machine.has_bf16() is has
    machine.has_bf16.cache_clear()
