"""lipcert bench: what it prints, and in whose turn it measures."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from lipcert import machine

from .conftest import Command


@pytest.mark.parametrize(("bf16", "last"), [(True, "bf16-mixed, ratio"), (False, "no instructions for it")])
def test_a_few_lines_with_ratios(
    command: Command, counts: Counter[str], monkeypatch: pytest.MonkeyPatch, bf16: bool, last: str
) -> None:
    def run_once(works: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
        for work in works:
            work()
        return [0.3] * len(works)

    monkeypatch.setattr(machine, "has_bf16", lambda: bf16)
    monkeypatch.setattr(machine, "in_turns", run_once)
    result = command("bench")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert re.search(
        r"^loading its proved file of [\d.]+ MB: 300 ms, its hash is checked$", result.out, re.MULTILINE
    )
    assert (counts["read a proved network"], counts["prove a model"]) == (2, 0)  # to use it, and to time it
    assert any(line.startswith("1 image: 300 ms proved certificate, 300 ms frozen") for line in lines)
    assert len(re.findall(r"ratio 1\.00", result.out)) == 2 + bf16
    assert last in lines[-1]


def test_works_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, done = [0.0], []

    def work(name: str, seconds: float) -> None:
        done.append(name)
        clock[0] += 100 if done.count(name) == 1 else seconds

    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    found = machine.in_turns([lambda: work("a", 2.0), lambda: work("b", 3.0)], 3)
    assert found == [2.0, 3.0]
    assert done == ["a", "b"] * 4
