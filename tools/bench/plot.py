"""Pictures of speed.json: ratios to the paper's formulation, and time per image against depth and batch."""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#5f5f5f"


def plot(path: Path) -> Path:
    """Draw what `speed.json` holds and save it beside the file, as speed.png."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    curves = data["scaling"]
    figure = Figure(figsize=(11, 3.6) if curves else (6, 3.6), layout="constrained")
    axes = figure.subplots(
        1, 3 if curves else 1, squeeze=False, width_ratios=[1.6, 1, 1] if curves else None
    )[0]
    _ratios(axes[0], data)
    if curves:
        _curve(axes[1], curves["depth"], "depth", "batch 128")
        _curve(axes[2], curves["batch"], "batch", "LipConvnet-5", logarithmic=True)
    target = path.with_suffix(".png")
    figure.savefig(target, dpi=150)
    return target


def _ratios(axes: Axes, data: dict[str, Any]) -> None:
    chosen = [line for line in data["lines"] if line["key"].startswith(("train-", "certify-"))][::-1]
    names = [line["title"].split(", width")[0] + f", {line['precision']}" for line in chosen]
    bars = axes.barh(names, [line["ratio"] for line in chosen], color=BLUE)
    axes.bar_label(bars, fmt="%.1fx", padding=3, fontsize=8)
    for index, line in enumerate(chosen):
        if line["reach"]:
            axes.plot([float(line["reach"].split()[-1])] * 2, [index - 0.4, index + 0.4], color=ORANGE, lw=2)
    axes.set_title(f"times faster than the paper's formulation\n{data['machine']['cpu']}", fontsize=9)
    goal = Line2D([], [], color=ORANGE, lw=2, label="the goal")
    axes.legend(handles=[goal], fontsize=7, frameon=False, loc="lower right")
    axes.tick_params(labelsize=7)
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def _curve(axes: Axes, points: dict[str, float], name: str, note: str, logarithmic: bool = False) -> None:
    x = [int(key) for key in points]
    axes.plot(x, list(points.values()), "o-", color=BLUE, ms=4)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for axis, ticks in ((axes.xaxis, x[::2]), (axes.yaxis, [1, 2, 5, 10, 20, 50, 100])):
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(ScalarFormatter())
    else:
        axes.plot(
            [0, x[-1]], [0, points[str(x[0])] * x[-1] / x[0]], "--", color=GREY, lw=1, label="linear in depth"
        )
        axes.legend(fontsize=7, frameon=False)
        axes.set_ylim(bottom=0)
    axes.set_xlabel(name, fontsize=8)
    axes.set_title(f"inference, ms per image\nfrozen, {note}", fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
