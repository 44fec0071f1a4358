"""The panel and its drawing: what they say, where the marks stand, and that names stay names."""

import base64
import json
import re
from dataclasses import replace
from html import unescape
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.data import Dataset
from lipcert.explore.panel import amplified, asset, render_panel
from lipcert.explore.plot import BOTTOM, LEFT, RIGHT, TOP, _ticks, margin_plot
from lipcert.explore.state import FLIP_STEP, LAST_STEP, Attack, Explorer, Finding, Way


@pytest.fixture
def made_up() -> Finding:
    """Two pixels; the second falls by 0.3, the label flips there; certified up to 0.2."""
    share = torch.arange(LAST_STEP + 1, dtype=torch.float64) / FLIP_STEP
    way = Way(0.3 * share, 1 - share, (share >= 1).long())
    image = torch.tensor([[[51, 204]]], dtype=torch.uint8)
    return Finding(image, 0, 1, 0.2, Attack(torch.tensor([[[0.2, 0.5]]]).double(), 1, 0.3, way))


def way_of(html: str) -> dict[str, Any]:
    found = re.search(r'data-way="([^"]+)"', html)
    assert found is not None
    content: dict[str, Any] = json.loads(unescape(found.group(1)))
    return content


def test_marks_stand_at_their_distances(made_up: Finding) -> None:
    assert made_up.attack is not None
    plot = margin_plot(made_up.attack, made_up.radius)
    # The frame ends at 0.45, half as far again as the flip.
    assert plot.certificate is not None
    assert plot.certificate.x == pytest.approx(LEFT + (RIGHT - LEFT) * 0.2 / 0.45)
    assert plot.flip.x == pytest.approx(LEFT + (RIGHT - LEFT) * 2 / 3)
    assert (plot.xs[0], plot.xs[-1]) == (LEFT, RIGHT)
    # The words stand outside the gap between the marks, which may be narrow.
    assert (plot.certificate.anchor, plot.flip.anchor) == ("end", "start")
    assert plot.ys[FLIP_STEP] == plot.zero
    assert plot.floor is not None
    assert plot.floor[1] == pytest.approx((plot.certificate.x, plot.zero), abs=0.01)
    assert all(TOP <= y <= BOTTOM for y in plot.ys)


def test_words_of_a_small_certificate_stay_inside(made_up: Finding) -> None:
    assert made_up.attack is not None
    certificate = margin_plot(made_up.attack, 0.01).certificate
    assert certificate is not None
    assert certificate.anchor == "start"
    assert certificate.text_x > certificate.x


def test_without_a_certificate_there_is_no_mark_for_it(made_up: Finding) -> None:
    assert made_up.attack is not None
    plot = margin_plot(made_up.attack, 0.0)
    assert plot.certificate is None
    assert plot.floor is None
    html = render_panel(replace(made_up, radius=0.0), ("cat", "dog"), title="T")
    assert "nothing is certified" in html
    assert "certificate ends" not in html


@given(st.floats(1e-6, 1e6))
def test_ticks_are_few_and_round(end: float) -> None:
    ticks = _ticks(end)
    assert 5 <= len(ticks) <= 11
    assert ticks[0] == 0
    assert ticks[-1] <= end * (1 + 1e-9)
    assert len(f"{ticks[1]:g}".replace(".", "").replace("0", "").partition("e")[0]) == 1


def test_panel_says_everything(made_up: Finding) -> None:
    html = render_panel(made_up, ("cat", "dog"), title="Test image 5", label=0)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    for words in (
        "Test image 5: cat", "prediction cat right", "certified radius 0.2000 51.0/255", "runner-up dog",
        "nearest attack 0.3000 76.5/255 · 1.50 × the radius", "nearest attack: dog",
        "certificate ends at 0.2000", "label flips at 0.3000",
    ):  # fmt: skip
        assert words in text


@pytest.mark.parametrize(
    ("label", "words"), [(0, ">right<"), (1, "wrong: it is dog"), (None, "true class unknown")]
)
def test_panel_knows_right_from_wrong(made_up: Finding, label: int | None, words: str) -> None:
    assert words in render_panel(made_up, ("cat", "dog"), title="T", label=label)


def test_the_slider_has_the_whole_way(made_up: Finding) -> None:
    way = way_of(render_panel(made_up, ("cat", "dog"), title="T"))
    assert way["shape"] == [1, 1, 2]
    assert list(base64.b64decode(way["image"])) == [51, 204]
    change = np.frombuffer(base64.b64decode(way["change"]), dtype="<f4")
    assert change == pytest.approx([0.0, -0.3], abs=1e-7)
    assert way["label"][FLIP_STEP - 1 : FLIP_STEP + 1] == ["cat", "dog"]
    assert way["flipped"][FLIP_STEP - 1 : FLIP_STEP + 1] == [False, True]
    assert len(way["xs"]) == len(way["ys"]) == len(way["distance"]) == LAST_STEP + 1


def test_without_an_attack_there_is_no_slider(made_up: Finding) -> None:
    html = render_panel(replace(made_up, attack=None, runner_up=-1), ("cat",), title="T")
    assert "found no picture of another class" in html
    assert "<input" not in html
    assert "onload" not in html


def test_names_are_not_markup(made_up: Finding) -> None:
    html = render_panel(made_up, ('<img src=x onerror="a()">', "'\"&"), title="<b>.png", label=1)
    assert "<img src=x" not in html
    assert "<b>.png" not in html
    assert way_of(html)["label"][0] == '<img src=x onerror="a()">'


@pytest.mark.parametrize(
    ("change", "gain"), [([0.0, 0.1], 5), ([-0.03, 0.0], 16), ([0.9, 0.0], 1), ([0.0, 0.0], 1000)]
)
def test_difference_fills_the_range_and_no_more(change: list[float], gain: int) -> None:
    image = torch.tensor([[[51, 0]]], dtype=torch.uint8)
    difference, found = amplified(image, torch.tensor([[[0.2 + change[0], change[1]]]], dtype=torch.float64))
    assert found == gain
    expected = [min(255, max(0, round(255 * (0.5 + gain * c)))) for c in change]
    # A half may be rounded up or down.
    assert difference.flatten().tolist() == pytest.approx(expected, abs=1)


def test_panel_of_a_real_image_asks_nobody(explorer: Explorer, digits: Dataset) -> None:
    html = render_panel(explorer.examine(digits.images[0]), digits.classes, title="T", label=0)
    # The SVG and HTML namespaces need no address inside a page.
    assert "http" not in html + asset("style.css") + asset("script.html")
