"""Learned Householder activations: their angles layer by layer, and the regions of single ones."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge

from lipcert.kernels.plane import PlaneMap, linear_cones
from lipcert.report.learned import LearnedAngles
from lipcert.report.style import BLUE, FAINT, INK, ORANGE, SKY, VERMILLION, drawing

GOLDEN = (math.sqrt(5) - 1) / 2


def angles_figure(layers: Sequence[LearnedAngles]) -> Figure:
    """Every learned angle as a dot, one column per layer; all start at 90 degrees, which is MaxMin."""
    with drawing():
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.axhline(90, color=VERMILLION, linewidth=1.4, linestyle=(0, (5, 2)), label="start: 90°, MaxMin")
        for column, layer in enumerate(layers):
            degrees = np.degrees(layer.theta.reshape(-1).numpy())
            # Spread by the golden ratio: even, and the same in every drawing.
            spread = (np.arange(len(degrees)) * GOLDEN % 1 - 0.5) * 0.6
            axes.plot(
                column + spread, degrees,
                linestyle="", marker="o", markersize=3, color=BLUE, alpha=0.6, markeredgewidth=0,
            )  # fmt: skip
            low, middle, high = np.quantile(degrees, (0.25, 0.5, 0.75))
            axes.plot([column - 0.38, column + 0.38], [middle, middle], color=INK, linewidth=2.2, zorder=4)
            axes.plot([column, column], [low, high], color=INK, linewidth=1.2, zorder=4)
        axes.set(
            xticks=range(len(layers)),
            xticklabels=[_short(layer.path) for layer in layers],
            xlim=(-0.6, len(layers) - 0.4),
            xlabel="activation layer (bars: median and middle half)",
            ylabel="θ, degrees",
        )
        if len(layers) > 8:
            axes.tick_params(axis="x", rotation=90, labelsize=8)
        axes.grid(visible=False, axis="x")
        axes.legend(loc="best")
        return figure


def regions_figure(chosen: Sequence[tuple[LearnedAngles, int]]) -> Figure:
    """What single activations do to the plane of their two channels, found by evaluating them.

    White cones stay where they are, hatched ones are reflected, dotted ones turned; thin lines lead from
    points of the circle to their images.
    """
    with drawing():
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        row = figure.subplots(1, len(chosen), squeeze=False)[0]
        for axes, (layer, pair) in zip(row, chosen, strict=True):
            _disc(axes, layer.function(pair))
            theta = math.degrees(float(layer.theta.reshape(-1, layer.theta.shape[-1])[0, pair]))
            axes.set_title(f"{_short(layer.path)}, pair {pair}: {theta:.0f}°", fontsize=9)
        return figure


_LOOKS = {"same": ("none", ""), "turned": (ORANGE, ".."), "reflected": (SKY, "///")}


def _disc(axes: Axes, function: PlaneMap) -> None:
    for cone in linear_cones(function):
        colour, hatch = _LOOKS[cone.kind]
        start, stop = math.degrees(cone.start), math.degrees(cone.stop)
        wedge = Wedge((0, 0), 1, start, stop, facecolor=colour, alpha=0.45)
        wedge.set(hatch=hatch, edgecolor=INK, linewidth=1.0)
        axes.add_patch(wedge)
    angles = torch.arange(24, dtype=torch.float64) * (2 * math.pi / 24) + 0.05
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    images = function(points)
    for (x, y), (u, v) in zip(points.tolist(), images.tolist(), strict=True):
        if math.dist((x, y), (u, v)) > 1e-9:
            axes.plot([x, u], [y, v], color=INK, linewidth=0.6, alpha=0.7)
    axes.plot(*points.T.tolist(), linestyle="", marker="o", markersize=3.5, color=INK, markerfacecolor="none")
    axes.plot(*images.T.tolist(), linestyle="", marker="o", markersize=3.5, color=BLUE)
    axes.axhline(0, color=FAINT, linewidth=0.7, zorder=0)
    axes.axvline(0, color=FAINT, linewidth=0.7, zorder=0)
    axes.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _short(path: str) -> str:
    """`body.stage2.activation1` as `2.1`.

    >>> _short("body.stage2.activation1"), _short("head")
    ('2.1', 'head')
    """
    numbers = ["".join(c for c in part if c.isdigit()) for part in path.split(".")]
    return ".".join(number for number in numbers if number) or path
