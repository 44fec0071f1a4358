"""report.html: one self-contained page about one run, or several side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from lipcert.certify.curve import RADII, shown, shown_bound
from lipcert.errors import ArgumentError
from lipcert.report.figures import Picture, comparison_pictures, run_pictures
from lipcert.report.gallery import gallery
from lipcert.report.own_pictures import LISTED, by_prediction, one_by_one, summarise
from lipcert.report.per_class import class_rows
from lipcert.report.plots.curve import Reported
from lipcert.report.style import to_svg
from lipcert.report.words import PROOF, command, facts, resized, sentence
from lipcert.runs.run import Run


@dataclass(frozen=True)
class Line:
    """One line of the table of accuracies, in percent by column; `note` says where it comes from."""

    name: str
    note: str
    values: Mapping[str, float]
    measured: bool = True


@dataclass(frozen=True)
class Comparison:
    """Published numbers to compare a run with.

    Attributes:
        reported: numbers of a publication for the same network, if there are any.
        note: how far the run's budget is from that publication's.
    """

    reported: Reported | None = None
    note: str = ""


COLUMNS = ("standard", *RADII)


def render(runs: Sequence[Run], comparisons: Mapping[str, Comparison] | None = None) -> str:
    """One page: a report on a single run, or a comparison of several.

    Args:
        runs: with distinct names.
        comparisons: by name of the run, numbers to stand beside its own.

    Raises:
        ArgumentError: no run, two of the same name, or pictures without labels beside another run.
    """
    names = [run.name for run in runs]
    if not runs or len(set(names)) < len(names):
        raise ArgumentError(
            f"runs: expected one or more with distinct names, got {', '.join(names) or 'none'}"
        )
    against = comparisons or {}
    unlabelled = [run.name for run in runs if run.records.has_own_pictures]
    if unlabelled and len(runs) > 1:
        raise ArgumentError(
            f"runs: {unlabelled[0]} holds pictures without labels, so that there is no accuracy to compare; "
            "report it alone"
        )
    template = "report.html" if len(runs) == 1 else "comparison.html"
    shared: dict[str, Any] = {"style": Markup(_template("style.css")), "columns": COLUMNS, "radii": RADII}
    if unlabelled:
        template, context = "pictures.html", _own_pictures(runs[0])
    elif len(runs) == 1:
        context = _one(runs[0], against.get(names[0], Comparison()))
    else:
        context = _several(runs, against)
    return _environment().get_template(template).render(**shared, **context)


def _lines(run: Run, comparison: Comparison) -> list[Line]:
    """The accuracies of a run, from its records, and the reported ones below."""
    accuracy = run.records.outcomes.accuracy()
    values = {"standard": 100 * accuracy.standard} | {k: 100 * accuracy[r] for k, r in RADII.items()}
    lines = [Line(run.name, f"{accuracy.count:,} images, {PROOF}", values)]
    if comparison.reported is not None:
        note = "as reported" + (f"; this run: {comparison.note}" if comparison.note else "")
        lines.append(Line(comparison.reported.name, note, comparison.reported.values, measured=False))
    return lines


def _one(run: Run, comparison: Comparison) -> dict[str, Any]:
    images = run.certified_images
    shelves = [] if images is None else gallery(run.records.outcomes, images, run.records.header.classes)
    return {
        "run": run,
        "lines": _lines(run, comparison),
        "pictures": _svgs(run_pictures(run, comparison.reported)),
        "shelves": shelves,
        "class_rows": class_rows(run.records.outcomes, run.records.header.classes),
    }


def _own_pictures(run: Run) -> dict[str, Any]:
    """Predictions and radii; without labels there are no accuracies."""
    return {
        "run": run,
        "found": summarise(run.records),
        "pictures": _svgs(run_pictures(run, None)),
        "predictions": by_prediction(run.records),
        "rows": one_by_one(run.records),
        "unread": run.records.unread[:LISTED],
    }


def _several(runs: Sequence[Run], comparisons: Mapping[str, Comparison]) -> dict[str, Any]:
    pictures = _svgs(comparison_pictures(runs))
    lines = [line for run in runs for line in _lines(run, comparisons.get(run.name, Comparison()))]
    best = {
        column: max(line.values[column] for line in lines if line.measured and column in line.values)
        for column in COLUMNS
    }
    return {
        "runs": runs,
        "lines": lines,
        "best": best,
        "pictures": pictures,
        "histograms": [(run.name, pictures[f"histogram{i}"]) for i, run in enumerate(runs)],
        "differences": option_differences(runs),
        "same_images": len({(run.records.header.data_sha256, len(run.records.outcomes)) for run in runs})
        == 1,
    }


def option_differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Options in which the runs differ: name, and each run's value ("-" where it has none)."""
    names = list(dict.fromkeys(name for run in runs for name in run.options))
    table = [(name, [str(run.options.get(name, "-")) for run in runs]) for name in names]
    return [(name, values) for name, values in table if len(set(values)) > 1]


def near_one(bound: float) -> str:
    """A Lipschitz constant in print, rounded up; what is close to 1 as its distance to it.

    >>> near_one(1.0), near_one(1 + 2e-7), near_one(1 - 3e-5), near_one(3.98883)
    ('exactly 1', '1 + 2.0e-07', '1 − 2.9e-05', '3.98884')
    """
    excess = bound - 1  # exact near 1
    if excess == 0:
        return "exactly 1"
    if abs(excess) > 0.01:
        return shown_bound(bound, 6)
    return f"1 {'+' if excess > 0 else '−'} {abs(float(shown_bound(excess, 2))):.1e}"


def _svgs(pictures: Mapping[str, Picture]) -> dict[str, Markup]:
    # All text inside is escaped by matplotlib and by `to_svg`.
    return {name: Markup(to_svg(p.figure, name, p.description)) for name, p in pictures.items()}


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "shown_bound": shown_bound, "near_one": near_one}
    environment.filters |= {"sentence": sentence, "command": command, "facts": facts, "resized": resized}
    environment.filters["percent"] = lambda share: f"{100 * share:.1f}%"
    return environment


def _template(name: str) -> str:
    return resources.files("lipcert.report").joinpath("templates", name).read_text(encoding="utf-8")
