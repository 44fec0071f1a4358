"""lipcert report: one page about a run, or about several side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipcert import zoo
from lipcert.cli.console import make_folder, print_json, say
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.files import CERTIFICATES, COMPARISON_PAGE, REPORT
from lipcert.runs.run import Run

if TYPE_CHECKING:
    from lipcert.report.page import Comparison


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of records: runs that were certified, or your pictures."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="File to write; default: report.html in the run, for several runs comparison.html here.",
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Also write every picture as PNG into this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
) -> None:
    """Write report.html, one self-contained page. Several runs stand side by side on it.

    Pictures of your own have no labels: their page has predictions and radii, and no accuracies.

    Examples:

    lipcert report runs/a

    lipcert report runs/a runs/b runs/c --out compare.html

    lipcert report runs/a --png pictures/
    """
    from lipcert.report.words import sentence

    if absent := [folder for folder in folders if not folder.is_dir()]:
        raise CheckpointError(_not_a_folder(absent[0]))
    runs = [Run.at(folder, name) for folder, name in zip(folders, distinct_names(folders), strict=True)]
    page = out or (folders[0] / REPORT if len(runs) == 1 else Path(COMPARISON_PAGE))
    if page.is_dir():
        raise ArgumentError(f"out: expected a file, got the folder {page}; try {page / REPORT}")
    write_page(runs, page)
    pictures = [] if png is None else write_pictures(runs, png)
    if as_json:
        print_json({"report": str(page), "pictures": [str(path) for path in pictures]})
        return
    for run in runs:
        say(f"{run.name}: {sentence(run)}")
    say(f"Report: {page}")
    if pictures:
        say(f"Pictures: {', '.join(str(path) for path in pictures)}")


def _not_a_folder(named: Path) -> str:
    """Error message for an argument that is not a folder, with a remedy."""
    if str(named) in zoo.proved_networks():
        remedy = f"`lipcert certify {named} --out FOLDER` writes one"
    elif not named.exists():
        return f"{named}: no such folder; expected the folder of a run"
    elif (named.parent / CERTIFICATES).is_file():
        remedy = f"run `lipcert report {named.parent}`"
    else:
        remedy = "`lipcert certify NETWORK --out FOLDER` writes one"
    return f"{named}: expected the folder of records, with {CERTIFICATES} in it; {remedy}"


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Render and write one page; it appears complete or not at all."""
    from lipcert.files import write_or_explain
    from lipcert.report.page import render

    text = render(runs, {run.name: paper_row(run) for run in runs})
    make_folder(path.parent)
    write_or_explain(path, text.encode())


def write_pictures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write the pictures of the page as PNG files; returns their paths."""
    from lipcert.report.figures import comparison_pictures, run_pictures
    from lipcert.report.style import write_png

    make_folder(folder)
    if len(runs) == 1:
        pictures = run_pictures(runs[0], paper_row(runs[0]).reported)
    else:
        pictures = comparison_pictures(runs)
    paths = []
    for name, picture in pictures.items():
        write_png(picture.figure, folder / f"{name}.png")
        paths.append(folder / f"{name}.png")
    return paths


def paper_row(run: Run) -> "Comparison":
    """The paper's numbers for the network of a run, and how far the run's budget is from the paper's."""
    from lipcert.paper.budget import budget_label, network_of
    from lipcert.paper.tables import reported_rows
    from lipcert.report.page import Comparison
    from lipcert.report.plots.curve import Reported

    try:
        config = run.config
    except ArgumentError:
        return Comparison()  # options of another version; the numbers of the run are still its own
    if not run.options or run.records.data != config.data:
        return Comparison()
    printed = reported_rows().get(network_of(config))
    if printed is None:
        return Comparison()
    table, row = printed
    name = f"paper, table {table.number}: LipConvnet-{row.depth} {row.method}"
    values = {column: float(value) for column, value in row.reported.items()}
    return Comparison(Reported(name, values), budget_label(config))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path if that tells them apart, else as many parts as it takes."""
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise ArgumentError("RUN: expected different runs, got one of them twice")
    length = 1
    while len({part[-length:] for part in parts}) < len(parts):
        length += 1
    return ["/".join(part[-length:]) for part in parts]
