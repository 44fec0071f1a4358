"""Which plots a page has, depending on the files of the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from lipcert.report.learned import learned_angles, unusual_pairs
from lipcert.report.plots.activations import angles_figure, regions_figure
from lipcert.report.plots.attack import attack_figure
from lipcert.report.plots.curve import Reported, curve_figure
from lipcert.report.plots.histogram import histogram_figure
from lipcert.report.plots.training import training_figure
from lipcert.runs.run import Run


@dataclass(frozen=True)
class Picture:
    """A figure and what it shows, in words."""

    figure: Figure
    description: str


def run_pictures(run: Run, reported: Reported | None = None) -> dict[str, Picture]:
    """All pictures about one run, by name; pictures without labels have a histogram of their radii."""
    if run.records.has_own_pictures:
        radii = histogram_figure(run.records.outcomes, labelled=False)
        return {"histogram": Picture(radii, "Pictures by certified radius.")}
    curve = curve_figure({run.name: run.records.outcomes}, reported)
    found = {
        "curve": Picture(curve, "Certified accuracy falls as the radius grows."),
        "histogram": Picture(
            histogram_figure(run.records.outcomes), "Images by certified radius, right and wrong ones."
        ),
    }
    if run.audit is not None:
        found["attack"] = Picture(
            attack_figure(*run.audit.attacked),
            "Distance of the nearest attack over the certified radius.",
        )
    angles = () if run.certified_network is None else learned_angles(run.certified_network)
    if angles:
        found["angles"] = Picture(angles_figure(angles), "Learned angles of the activations, layer by layer.")
        found["regions"] = Picture(
            regions_figure(unusual_pairs(angles)), "Regions of three learned activations."
        )
    if run.metrics:
        found["training"] = Picture(
            training_figure({run.name: run.metrics}), "Held-out accuracy and loss over the epochs."
        )
    return found


def comparison_pictures(runs: Sequence[Run]) -> dict[str, Picture]:
    """All pictures about several runs, by name; the histograms are numbered."""
    found = {
        "curve": Picture(
            curve_figure({run.name: run.records.outcomes for run in runs}),
            "Certified accuracy of every run against the radius.",
        )
    }
    trained = {run.name: run.metrics for run in runs if run.metrics}
    if trained:
        found["training"] = Picture(
            training_figure(trained), "Held-out accuracy and loss of every run over the epochs."
        )
    for number, run in enumerate(runs):
        found[f"histogram{number}"] = Picture(
            histogram_figure(run.records.outcomes, narrow=True), f"Images of {run.name} by radius."
        )
    return found
