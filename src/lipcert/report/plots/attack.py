"""How near attacks come to the certificates."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lipcert.report.style import BLUE, FAINT, INK, VERMILLION, drawing


def attack_figure(radius: Tensor, distance: Tensor) -> Figure:
    """Left: smallest adversarial distance over the certified radius, image by image. Right: their ratio.

    A point below the diagonal would be a broken certificate.

    Args:
        radius: (N,), certified radii.
        distance: (N,), distance of the nearest adversarial image that any attack found; infinite if none.
    """
    with drawing():
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1))
        certified, found = radius.double().numpy(), distance.double().numpy()
        seen = np.isfinite(found)
        certified, found = certified[seen], found[seen]
        end = 1.05 * max([0.1, *found.tolist(), *certified.tolist()])
        left.fill_between([0, end], [0, end], color=FAINT, zorder=1)
        left.plot([0, end], [0, end], color=INK, linewidth=1.2, zorder=2)
        left.text(0.96 * end, 0.06 * end, "impossible if the\ncertificates are true", ha="right", fontsize=8)
        broken = (found <= certified) & (certified > 0)  # radius 0 claims nothing
        for chosen, colour, marker, size in ((~broken, BLUE, "o", 3.5), (broken, VERMILLION, "X", 9)):
            left.plot(
                certified[chosen], found[chosen],
                linestyle="", marker=marker, markersize=size, color=colour, alpha=0.6, markeredgewidth=0,
                zorder=3,
            )  # fmt: skip
        left.set(
            xlim=(0, end), ylim=(0, end), aspect="equal",
            xlabel="certified radius", ylabel="nearest attack",
        )  # fmt: skip
        held = certified > 0
        ratio = found[held] / certified[held]
        if len(ratio):
            last = max(1.25, float(np.quantile(ratio, 0.98)))
            edges = np.linspace(min(1.0, float(ratio.min())), last, 31)
            right.hist(np.minimum(ratio, last), bins=edges.tolist(), color=BLUE, alpha=0.75)
        right.axvline(1, color=INK, linewidth=1.2)
        right.set(xlabel="nearest attack / certified radius", ylabel="images")
        right.yaxis.set_major_locator(MaxNLocator(integer=True))
        right.grid(visible=False, axis="x")
        return figure
