"""Certified accuracy against the radius."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lipcert.certify.curve import RADII, certified_curve
from lipcert.certify.outcomes import Outcomes
from lipcert.report.style import FAINT, INK, Stroke, drawing, stroke

FULL_VIEW = 1.15 * max(RADII.values())
WIDTH_OF_AXES, WIDTH_OF_NAME = 0.85, 0.5
"""Share of a figure, and inches."""


@dataclass(frozen=True)
class Reported:
    """Numbers of a publication, to be marked beside the curve: percentages by radius name, or "standard"."""

    name: str
    values: Mapping[str, float]


def curve_figure(runs: Mapping[str, Outcomes], reported: Reported | None = None) -> Figure:
    """One falling line per run: the share of images that are right and certified beyond each radius.

    Args:
        runs: name of each run and its certificates.
        reported: marked with crosses at 0 (standard) and at the paper's radii.
    """
    with drawing():
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        view = max([FULL_VIEW, *(_reach(outcomes) for outcomes in runs.values())])
        mark_radii(axes, view, figure.get_figwidth())
        for position, (name, outcomes) in enumerate(runs.items()):
            _line(axes, name, outcomes, stroke(position), view)
        if reported is not None:
            places = {"standard": 0.0, **RADII}
            axes.plot(
                [places[key] for key in reported.values],
                list(reported.values.values()),
                linestyle="", marker="x", markersize=8, markeredgewidth=1.8, color=INK,
                label=reported.name, clip_on=False, zorder=4,
            )  # fmt: skip
        axes.set(
            xlim=(0, view),
            ylim=(0, 100),
            xlabel="radius (l2, pixel units: a pixel goes from 0 to 1)",
            ylabel="right and certified, % of images",
        )
        if len(runs) > 1 or reported is not None:
            axes.legend(loc="upper right")
        return figure


def _reach(outcomes: Outcomes) -> float:
    """Where the curve is almost at zero: a few very safe images would squeeze the rest."""
    held = outcomes.radius[outcomes.right]
    held = held[held.isfinite()].double()
    return float(held.quantile(0.99)) if len(held) else 0.0


def mark_radii(axes: Axes, view: float, width: float) -> None:
    """Vertical lines at the paper's radii, with their names above the frame.

    Args:
        axes: to draw in.
        view: the largest radius that they show. Where much is shown the lines are close to each other, and
            the names are tilted.
        width: of the figure, in inches.
    """
    apart = min(RADII.values()) / view * width * WIDTH_OF_AXES
    tilted = {"rotation": 40, "rotation_mode": "anchor", "ha": "left"}
    level = {"ha": "center"}
    for name, radius in RADII.items():
        axes.axvline(radius, color=FAINT, linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(
            name, (radius, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", va="bottom", fontsize=8,
            **(tilted if apart < WIDTH_OF_NAME else level),
        )  # fmt: skip


def _line(axes: Axes, name: str, outcomes: Outcomes, look: Stroke, view: float) -> None:
    radii, shares = certified_curve(outcomes, outcomes.label)
    accuracy = outcomes.accuracy()
    # At r = 0 the curve starts from the images with a radius above 0; right ones that are ties fall at once.
    x = torch.cat([radii.new_zeros(1), radii]).clamp(max=2 * view)
    y = 100 * torch.cat([shares[:1] if len(shares) else shares.new_zeros(1), shares])
    (line,) = axes.step([*x.tolist(), float(x[-1])], [*y.tolist(), 0.0], where="pre", label=name)
    line.set(color=look.colour, linestyle=look.line, marker="", zorder=3)
    places = [0.0, *RADII.values()]
    heights = [accuracy.standard, *(accuracy[radius] for radius in RADII.values())]
    axes.plot(
        places, [100 * height for height in heights],
        linestyle="", marker=look.marker, markersize=6, color=look.colour, clip_on=False, zorder=5,
    )  # fmt: skip
