"""RESULTS.md: everything that was run, set beside the paper, written from the records alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lipcert.certify.curve import shown_bound
from lipcert.errors import DataError
from lipcert.files import write_atomically
from lipcert.paper.budget import budget_label
from lipcert.paper.claims import claims_sheet
from lipcert.paper.compare import by_network, compare
from lipcert.paper.curves import best_runs, curve_file
from lipcert.paper.measure import REVISED, Run, epochs_of, finished_runs, revise
from lipcert.paper.render import Sheet, markdown
from lipcert.paper.tables import COLUMNS, networks, reported_rows, tables
from lipcert.paper.times import TIMES, time_sheet, timed_rows
from lipcert.training.config import TrainConfig
from lipcert.training.metrics import read_metrics
from lipcert.training.run_folder import CONFIG
from lipcert.training.summary import SUMMARY

HEAD = """# Results

Generated from the records under `{folder}/` by `lipcert reproduce results`; not edited by hand. Accuracies
are percentages. Certified means proved: for that share of the test images the prediction is right and cannot
change within the l2 radius (pixels in [0, 1]). The model is the one that was best on held-out training
images, never one chosen on the test set.
"""


def write_results(folder: Path, destination: Path | None = None) -> Path:
    """Write RESULTS.md beside `folder` (or to `destination`) from the runs in it; returns its path.

    Raises:
        DataError: there is no such folder, or no run in it.
    """
    destination = folder.parent / "RESULTS.md" if destination is None else destination
    write_atomically(destination, results(folder).encode())
    return destination


def results(folder: Path) -> str:
    """The text of RESULTS.md; equal records give equal text."""
    runs, unfinished = finished_runs(folder), _unfinished(folder)
    if not runs and not unfinished:
        raise DataError(
            f"results: {folder} holds no run; train with --out {folder}/NAME, or name another folder"
        )
    return "\n".join([HEAD.format(folder=folder.name), *_sections(runs, unfinished, folder)])


def _sections(runs: Sequence[Run], unfinished: Sequence[Path], folder: Path) -> Iterator[str]:
    if best := best_runs(runs):
        yield "## The best of each dataset\n\n" + "\n".join(
            _picture(dataset, run, folder) for dataset, run in best.items()
        )
    if runs:
        yield f"## All runs\n\n{markdown(runs_sheet(runs))}"
        claims = claims_sheet(runs)
        if claims.lines:
            yield f"## Do the paper's claims show?\n\n{markdown(claims)}"
        compared = [markdown(sheet) for sheet in _compared(runs, folder)]
        if compared:
            yield "## Beside the paper\n\n" + "\n".join(compared)
    if unfinished:
        yield f"## Not finished\n\n{markdown(unfinished_sheet(unfinished))}"
    yield f"## What was not run\n\n{not_run(runs, folder)}"
    if runs:
        yield f"## Machines\n\n{_machines(runs)}"


def _picture(dataset: str, run: Run, folder: Path) -> str:
    link = f"{folder.name}/{curve_file(folder, dataset).name}"
    return (
        f"![Certified accuracy against the radius, {dataset}]({link})\n\n"
        f"`{run.folder.name}`: {run.budget}. Chosen on held-out training images, shown on the "
        "test set.\n"
    )


def runs_sheet(runs: Sequence[Run]) -> Sheet:
    """Every finished run with its accuracies, what the paper reports for that network, and its cost."""
    reported = reported_rows()
    lines = []
    for run in runs:
        values, paper = run.test("best"), reported.get(run.network)
        summary = run.summary
        lines.append(
            (
                run.folder.name,
                *(f"{values[column]:.2f}" for column in COLUMNS),
                " / ".join(paper[1].reported.values()) if paper else "",
                run.budget,
                str(run.config.seed),
                epochs_of(run, 1),
                f"{run.hours:.2f} x {run.environment.get('threads', '?')}",
                f"{run.images_per_second:.0f}",
                shown_bound(summary.test["best"]["lipschitz"], 6),
                run.audit,
            )
        )
    return Sheet(
        name="runs",
        title="Finished runs",
        columns=(
            "Run",
            "Standard",
            *COLUMNS[1:],
            "Paper, at its budget",
            "Budget",
            "Seed",
            "Epochs",
            "Hours x threads",
            "Images/s",
            "Proved constant",
            "Audit",
        ),
        lines=tuple(lines),
        notes=(
            "The proved constant is that from pixels to the features in front of the head; the normalisation "
            "alone has 1/0.2507, at most 3.98884.",
            "Hours: of training and held-out evaluation, all epochs at the pace of the median one, so that "
            "pauses do not count. On a shared machine the same work may take twice as long at one time as at "
            "another.",
            "Epochs: those of the network that a run started from, and its own; the hours are its own.",
            "Audit: how many certificates the attacks broke, of those they were tried on.",
        ),
        labels=1,
        folded=("Seed", "Budget"),
    )


def unfinished_sheet(folders: Sequence[Path]) -> Sheet:
    """Runs without a summary: how far they are, on held-out images."""
    lines = []
    for folder in folders:
        config = TrainConfig.read(folder / CONFIG)
        records = [record for record in read_metrics(folder) if "held_out" in record]
        if records:
            last = records[-1]
            shares = [last["held_out"]["standard"], *last["held_out"]["certified"].values()]
            measured = [f"{last['epoch']:.1f}", *(f"{100 * share:.2f}" for share in shares)]
        else:
            measured = ["0"] + [""] * len(COLUMNS)
        lines.append((folder.name, *measured, budget_label(config)))
    return Sheet(
        name="unfinished",
        title="Runs that have not reached their end",
        columns=("Run", "Epoch", "Standard", *COLUMNS[1:], "Budget"),
        lines=tuple(lines),
        notes=("On held-out training images; certified values are estimates.",),
        labels=1,
    )


def not_run(runs: Sequence[Run], folder: Path) -> str:
    """Which tables are incomplete, and by how much."""
    done = {run.network for run in runs}
    revised = {run.network for run in runs if (run.folder / REVISED).exists()}
    lines = []
    for table in tables().values():
        if table.kind == "times":
            missing = len(table.rows) - len(timed_rows(table.rows, folder / TIMES)[0])
        else:
            found = revised if table.kind == "revised" else done
            missing = sum(row.network not in found for row in table.rows)
        if missing:
            lines.append(f"- `{table.name}`: {missing} of its {len(table.rows)} rows were not run.")
    trained = len(done.intersection(networks()))
    summary = (
        f"{trained} of the paper's {len(networks())} distinct networks were trained, at the budgets above."
    )
    return "\n".join([summary, "", *lines, ""])


def _compared(runs: Sequence[Run], folder: Path) -> Iterator[Sheet]:
    known = by_network(runs)
    # Revised constants need the networks themselves, which are not kept: only what was computed beside them.
    revised = by_network(run for run in runs if (run.folder / REVISED).exists())
    for table in tables().values():
        if table.kind == "times":
            timed, timings = timed_rows(table.rows, folder / TIMES)
            if timed:
                yield time_sheet(table, timed, timings)
            continue
        trained = revised if table.kind == "revised" else known
        if rows := [row for row in table.rows if row.network in trained]:
            yield compare(table, rows, trained, revise=revise)


def _unfinished(folder: Path) -> list[Path]:
    return [
        path.parent for path in sorted(folder.glob(f"*/{CONFIG}")) if not (path.parent / SUMMARY).exists()
    ]


def _machines(runs: Sequence[Run]) -> str:
    described: dict[str, int] = {}
    for run in runs:
        about = run.environment
        parts = [
            str(about.get("cpu", "not recorded")),
            _counted(about.get("threads", "?"), "thread"),
            ", ".join(about.get("gpus", ())) or "no GPU",
            f"torch {about.get('torch', '?')}",
            f"lipcert {about.get('lipcert', '?')}",
        ]
        text = "; ".join(parts)
        described[text] = described.get(text, 0) + 1
    return (
        "\n".join(f"- {text}: {_counted(count, 'run')}" for text, count in sorted(described.items())) + "\n"
    )


def _counted(number: object, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
