"""Which lines of the speed table a machine gets."""

from typing import Any

import pytest

from tools.bench import run, work


def test_without_bf16_every_line_is_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def training_step(model: Any, *, bf16: bool = False, **_: Any) -> Any:
        asked.append(bf16)
        return lambda: None

    for name in ("ours", "literal"):
        monkeypatch.setattr(work, name, lambda *_, **__: None)
    monkeypatch.setattr(run, "training_step", training_step)
    monkeypatch.setattr(run, "peak_memory", lambda prepare: len([prepare()]))
    monkeypatch.setattr(run.peers, "available", dict)
    titles = [title for title, _ in run.lines(1, (5, 20), bf16=False)]
    done = [measure() for title, measure in run.lines(1, (5, 20), bf16=False) if "inference" not in title]
    assert [line.key for line in done] == [
        "train-5-fp32", "train-20-fp32", "memory-20", "householder", "convolutions"
    ]  # fmt: skip
    assert not any(asked)
    assert {line.precision for line in done} == {"fp32"}
    assert not any("bf16" in text for text in (*titles, *(line.title + line.note for line in done)))


def test_with_bf16_the_paper_is_met_in_both_precisions() -> None:
    titles = [title for title, _ in run.lines(1, (5, 20)) if title.startswith("training")]
    assert titles == [
        "training, LipConvnet-5, bf16", "training, LipConvnet-20, bf16", "training, LipConvnet-5, fp32"
    ]  # fmt: skip
