"""How the radii are distributed, among right and among wrong predictions."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lipcert.certify.curve import RADII
from lipcert.certify.outcomes import Outcomes
from lipcert.report.plots.curve import mark_radii
from lipcert.report.style import BLUE, VERMILLION, drawing

BINS = 40


def histogram_figure(outcomes: Outcomes, *, narrow: bool = False, labelled: bool = True) -> Figure:
    """Images by radius; a wrong prediction can be certified too, which makes it certainly wrong nearby.

    Args:
        outcomes: what was certified.
        narrow: half as wide, to stand beside another one.
        labelled: whether labels are known, and with them which predictions are right.
    """
    with drawing():
        figure = Figure(figsize=(4.4 if narrow else 7.2, 3.0 if narrow else 3.4), layout="constrained")
        axes = figure.subplots()
        radius = outcomes.radius.double().numpy()
        right = outcomes.right.numpy() if labelled else np.ones(len(radius), dtype=bool)
        finite = radius[np.isfinite(radius)]
        end = max(1.15 * max(RADII.values()), float(np.quantile(finite, 0.995)) if len(finite) else 0.0)
        edges = np.linspace(0, end, BINS + 1)
        # The few beyond the end stand in the last bin, so that no image is left out.
        shown = np.minimum(radius, np.nextafter(end, 0))
        mark_radii(axes, end, figure.get_figwidth())
        axes.hist(
            shown[right], bins=edges.tolist(), color=BLUE, alpha=0.75, zorder=2,
            label=f"right ({int(right.sum()):,})",
        )  # fmt: skip
        if labelled:
            axes.hist(
                shown[~right], bins=edges.tolist(), histtype="step", color=VERMILLION, linewidth=1.6,
                hatch="/////", zorder=3, label=f"wrong ({int((~right).sum()):,})",
            )  # fmt: skip
            axes.legend(loc="upper right")
        axes.set(xlim=(0, end), xlabel="certified radius (pixel units)", ylabel="images")
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return figure
