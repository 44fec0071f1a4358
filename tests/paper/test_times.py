"""The time tables, with a clock that returns chosen seconds, and one real pass."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from lipcert.errors import ArgumentError, CheckpointError
from lipcert.paper.render import Sheet
from lipcert.paper.tables import tables
from lipcert.paper.times import random_network, seconds_per_pass, time_networks, time_sheet
from tools.results import timed_rows


def test_seconds_are_scaled_and_the_scaling_is_said(tmp_path: Path) -> None:
    table = tables()["cifar10-times"]
    rows = table.select(["5"])
    calls: list[int] = []

    def clock(model: nn.Module, images: int, batch_size: int) -> float:
        calls.append(images)
        return 0.5

    def sheet() -> Sheet:
        timings = time_networks(rows, tmp_path, width=2, images=256, say=lambda _: None, clock=clock)
        return time_sheet(table, rows, timings)

    first = sheet()
    assert calls == [256] * 4  # two networks, as they evaluate and frozen
    assert first.columns == ("Architecture", "Source", "MaxMin", "HH")
    assert first.lines[0] == ("LipConvnet-5", "paper (RTX 2080 Ti)", "3.7864", "3.86")
    assert first.lines[1] == ("LipConvnet-5", "this machine", "19.53", "19.53")  # 0.5 s * 10,000 / 256
    assert "timed on 256 images and scaled to 10,000" in first.notes[0]
    assert "width 2 (the paper's is 32)" in first.notes[0]
    assert sheet() == first
    assert len(calls) == 4  # nothing is timed twice


@pytest.mark.parametrize(
    "change", [lambda text: text[:20], lambda text: "{}", lambda text: text.replace("256", "0")]
)
def test_a_damaged_timing_is_named_with_a_remedy(tmp_path: Path, change: Callable[[str], str]) -> None:
    rows = tables()["cifar10-times"].select(["5"])
    measure = partial(time_networks, rows, tmp_path, width=2, images=256, say=lambda _: None)
    measure(clock=lambda *_: 1.0)
    for file in tmp_path.iterdir():
        file.write_text(change(file.read_text()))
    with pytest.raises(CheckpointError, match=r"json is damaged .*; remove it to measure again"):
        measure()


def test_the_papers_width_counts_before_more_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(random_network, width=2)  # nothing is timed
    monkeypatch.setattr("lipcert.paper.times.random_network", lambda network, width: small(network))
    rows = tables()["cifar10-times"].select(["5"])
    for width, images in ((2, 512), (32, 128), (32, 256)):
        time_networks(rows, tmp_path, width=width, images=images, say=lambda _: None, clock=lambda *_: 1.0)
    complete, found = timed_rows(rows, tmp_path)
    assert complete == list(rows)
    assert {(t.width, t.images) for forms in found.values() for t in forms.values()} == {(32, 256)}


@pytest.mark.slow
def test_a_real_pass_takes_time(tmp_path: Path) -> None:
    rows = tables()["cifar100-times"].select(["5"])
    timings = time_networks(rows, tmp_path, width=2, images=4, batch_size=2, say=lambda _: None)
    assert all(timing.seconds > 0 for forms in timings.values() for timing in forms.values())


def test_every_image_passes_once() -> None:
    class Count(nn.Module):
        seen = 0

        def forward(self, x: object) -> object:
            self.seen += len(x)  # type: ignore[arg-type]
            return x

    model = Count()
    seconds_per_pass(model, images=7, batch_size=3)
    assert model.seen == 3 + 3 * 7  # one warm batch, three passes


def test_fewer_images_than_a_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="count: expected at least one batch of 128 images, got 5"):
        time_networks((), tmp_path, images=5)
