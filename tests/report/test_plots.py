"""Pictures: drawn from what they should be, also at the edges, and safe inside a page."""

import math
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from lipcert.certify.curve import RADII
from lipcert.certify.outcomes import Outcomes
from lipcert.operators import Householder
from lipcert.report.learned import LearnedAngles, learned_angles, unusual_pairs
from lipcert.report.plots.activations import angles_figure, regions_figure
from lipcert.report.plots.attack import attack_figure
from lipcert.report.plots.curve import Reported, curve_figure
from lipcert.report.plots.histogram import histogram_figure
from lipcert.report.plots.training import training_figure
from lipcert.report.style import stroke, to_svg, write_png

from .conftest import epoch


def some(radii: list[float], right: list[bool], classes: int = 2) -> Outcomes:
    count = torch.arange(len(radii))
    label = count % classes
    other = (label + 1) % classes if classes > 1 else label - 1
    prediction = torch.where(torch.tensor(right), label, other.clamp(min=0) if classes > 1 else label)
    return Outcomes(count, label, prediction, other, torch.tensor(radii, dtype=torch.float64))


EDGES = {
    "one image": some([0.3], [True]),
    "one wrong image": some([0.3], [False]),
    "nothing certified": some([0.0, 0.0, 0.0], [True, True, False]),
    "all wrong": some([0.1, 0.0], [False, False]),
    "one class, no limit": some([math.inf, math.inf], [True, True], classes=1),
    "far beyond": some([1e6, 0.1, 0.2], [True, True, True]),
}


@pytest.mark.parametrize("outcomes", EDGES.values(), ids=EDGES.keys())
def test_pictures_of_edge_cases(outcomes: Outcomes) -> None:
    for number, figure in enumerate((curve_figure({"run": outcomes}), histogram_figure(outcomes))):
        ElementTree.fromstring(to_svg(figure, f"p{number}", "edge").replace("xlink:href", "href"))


@pytest.mark.parametrize("largest", [0.4, 1.2, 2.0, 4.0, 9.0])
def test_names_of_radii_do_not_overlap(largest: float) -> None:
    outcomes = some([0.1, 0.2, *[largest] * 8], [True] * 10)
    for figure in (
        curve_figure({"run": outcomes}),
        histogram_figure(outcomes),
        histogram_figure(outcomes, narrow=True),
    ):
        figure.draw_without_rendering()
        names = [text for text in figure.axes[0].texts if text.get_text() in RADII]
        assert len(names) == len(RADII)
        is_level = {text.get_rotation() for text in names} == {0.0}
        boxes = [text.get_window_extent() for text in names]
        assert is_level or largest > 0.5
        assert not is_level or not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_curve_passes_through_the_numbers_of_the_table(outcomes: Outcomes) -> None:
    axes = curve_figure({"run": outcomes}).axes[0]
    line, dots = axes.get_lines()[3:5]  # behind the three marked radii
    accuracy = outcomes.accuracy()
    assert list(dots.get_ydata()) == [100 * accuracy.standard, *(100 * accuracy[r] for r in RADII.values())]
    x, y = line.get_xdata(), line.get_ydata()
    assert list(x)[:2] == [0, 0]
    assert (y[0], y[-1]) == (75, 0)
    # A step with "pre": the height at r is that of the next point at or beyond it.
    for radius in RADII.values():
        assert (
            next(height for place, height in zip(x, y, strict=True) if place > radius)
            == 100 * accuracy[radius]
        )


def test_many_runs_differ_in_more_than_colour(outcomes: Outcomes) -> None:
    axes = curve_figure({str(i): outcomes for i in range(6)}).axes[0]
    looks = {str(line.get_linestyle()) + str(line._dash_pattern) for line in axes.get_lines()[3::2]}
    assert len(looks) == 6
    looks = [stroke(position) for position in range(36)]
    assert len({look.marker for look in looks[:6]}) == len({look.colour for look in looks[:6]}) == 6
    assert len(set(looks)) == 36


def test_reported_numbers_are_marked(outcomes: Outcomes) -> None:
    figure = curve_figure({"run": outcomes}, Reported("paper", {"standard": 70.0, "72/255": 20.0}))
    crosses = figure.axes[0].get_lines()[-1]
    assert list(crosses.get_xdata()) == [0.0, 72 / 255]
    assert list(crosses.get_ydata()) == [70.0, 20.0]


def test_histogram_counts_every_image(outcomes: Outcomes) -> None:
    axes = histogram_figure(outcomes).axes[0]
    bars = [patch for patch in axes.patches if hasattr(patch, "get_height")]
    assert sum(bar.get_height() for bar in bars) == 6
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["right (6)", "wrong (2)"]


def test_histogram_without_labels_calls_nothing_wrong(outcomes: Outcomes) -> None:
    axes = histogram_figure(outcomes, labelled=False).axes[0]
    assert sum(patch.get_height() for patch in axes.patches) == 8  # type: ignore[attr-defined]
    assert axes.get_legend() is None


@pytest.mark.parametrize("runs", [1, 3])
def test_training_curves(runs: int) -> None:
    metrics = [epoch(i) for i in range(1, 4)]
    above, below = training_figure({f"$run{i}_": metrics for i in range(runs)}).axes
    assert list(below.get_lines()[0].get_ydata()) == [1, 1 / 2, 1 / 3]
    lines = [line for line in above.get_lines() if len(line.get_xdata()) == 3]
    assert len(lines) == (4 if runs == 1 else runs)
    wanted = [10, 20, 30] if runs == 1 else [40, 40, 40]
    assert list(lines[-1].get_ydata()) == pytest.approx(wanted)


def test_the_better_of_weights_and_average_is_drawn() -> None:
    record = {"kind": "epoch", "epoch": 1, "loss": 1.0, "best": True}
    low, high = ({"standard": share, "certified": dict.fromkeys(RADII, share)} for share in (0.2, 0.6))
    for better, expected in (("average", 60), ("raw", 20)):
        metrics = [record | {"held_out": low, "held_out_average": high, "better": better}]
        above, _ = training_figure({"run": metrics}).axes
        assert {y for line in above.get_lines() for y in line.get_ydata()} == {expected}


def layer(theta: list[float]) -> LearnedAngles:
    angles = torch.tensor(theta, dtype=torch.float64)
    return LearnedAngles("body.stage1.activation1", (Householder(angles),))


@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_unusual_pairs_are_smallest_median_largest(pairs: int) -> None:
    layers = (layer([0.5 * i for i in range(pairs)]),)
    assert [pair for _, pair in unusual_pairs(layers)] == sorted({0, pairs // 2, pairs - 1})
    regions_figure(unusual_pairs(layers))


@pytest.mark.parametrize("activation", ["hh1", "hh2", "chain2", "maxmin", "nd4"])
def test_angles_come_from_the_proved_network(activation: str) -> None:
    from lipcert.certify import prove
    from lipcert.models.lipconvnet import lipconvnet

    model = lipconvnet(depth=10, activation=activation, num_classes=2, width=4, image_size=4, in_channels=1)
    layers = learned_angles(prove(model))
    if activation in ("maxmin", "nd4"):
        assert layers == ()
        return
    assert [found.path for found in layers] == [
        f"body.stage{s}.activation{b}" for s in (1, 2) for b in (1, 2)
    ]
    points = torch.randn(5, 2, dtype=torch.float64)
    own = model.double().body.stage1.activation1
    # The layer acts on (k, k + C/2): put the points into the pair 0 and zeros into the others.
    whole = torch.zeros(5, own.channels, dtype=torch.float64)
    whole[:, 0], whole[:, own.channels // 2] = points.T
    expected = own(whole).detach()[:, [0, own.channels // 2]]
    assert torch.allclose(layers[0].function(0)(points), expected, atol=1e-12)
    angles_figure(layers)
    regions_figure(unusual_pairs(layers))


@pytest.mark.parametrize(
    "distance",
    [[0.2, math.inf], [math.inf, math.inf], [0.05, 0.2], [0.2, 0.0]],
    ids=["some", "none", "broken", "tie"],
)
def test_attack_picture(distance: list[float]) -> None:
    figure = attack_figure(torch.tensor([0.1, 0.0]), torch.tensor(distance))
    crosses = figure.axes[0].get_lines()[2]
    assert len(crosses.get_xdata()) == (distance[0] < 0.1)


def test_svg_is_safe_inside_a_page(outcomes: Outcomes) -> None:
    figure = curve_figure({"<script>alert(1)</script>": outcomes, "$broken_{math": outcomes})
    svg = to_svg(figure, "one", 'a "title" <b>')
    assert svg.startswith('<svg class="picture" role="img" viewBox="')
    assert "<script" not in svg
    assert "<title>a &quot;title&quot; &lt;b&gt;</title>" in svg
    assert "http" not in svg
    assert "$broken_{math" in svg
    identifiers = re.findall(r'\bid="([^"]+)"', svg)
    assert identifiers
    assert all(name.startswith("one-") for name in identifiers)
    for target in re.findall(r'(?:href="|url\()#([^")]+)', svg):
        assert target in identifiers
    assert "var(--ink)" in svg
    assert to_svg(curve_figure({"run": outcomes}), "x", "") == to_svg(
        curve_figure({"run": outcomes}), "x", ""
    )


def test_png_for_slides(tmp_path: Path, outcomes: Outcomes) -> None:
    write_png(curve_figure({"run": outcomes}), tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as image:
        assert image.size == (1440, 840)
