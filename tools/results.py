"""The tables of RESULTS.md and docs/results.md: what was run, set beside the paper, from the records alone.

A table of the paper is shown at one budget, the one under which most of its rows were trained; runs that
differ in nothing but the seed are one line.
"""

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lipcert.certify.curve import shown_bound
from lipcert.files import REVISED
from lipcert.paper.budget import PAPER, budget_label, network_of
from lipcert.paper.compare import LAST, NOT_RUN, OTHER_BUDGET, SELECTED, by_network, compare, means
from lipcert.paper.measure import budget_of, on_test_images, revise, start_of
from lipcert.paper.render import Sheet
from lipcert.paper.tables import COLUMNS, Network, Row, Table, networks, reported_rows, tables
from lipcert.paper.times import FORMS, Timing, time_sheet
from lipcert.runs.run import Run
from lipcert.training.evaluation import selection_score

BEST, WITHIN = 5, 0.03
"""Lines of a dataset in the table of the best runs, and how far in score they may be from the first."""


def at_one_budget(runs: Iterable[Run], count: Callable[[Sequence[Run]], int]) -> list[Run]:
    """The runs of one budget and one start: those of which `count` is the largest.

    Networks without SOC layers have no series, so they go with the runs of any series. Of equal counts, the
    paper's own series comes first, then the runs that are better on held-out images.
    """
    found: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        series = run.config.series if run.config.conv == "soc" else ""
        found[budget_label(run.config, series=False), start_of(run)][series].append(run)
    groups = [
        (series, part if not series else part + by_series.get("", []))
        for by_series in found.values()
        for series, part in by_series.items()
    ]
    _, chosen = max(
        groups,
        key=lambda group: (count(group[1]), group[0] == PAPER.series, mean_score(group[1])),
        default=("", []),
    )
    return chosen


def for_table(table: Table, runs: Iterable[Run]) -> dict[Network, list[Run]]:
    """The runs that a table shows, by network."""
    wanted = {row.network for row in table.rows}
    known = (run for run in runs if network_of(run.config) in wanted)
    if table.kind == "revised":
        # Revised constants need the network itself, which is not kept: only what was computed beside it.
        known = (run for run in known if (run.root / REVISED).exists())
    return by_network(at_one_budget(known, lambda group: len(by_network(group))))


def table_sheets(runs: Sequence[Run], times: Path) -> Iterator[tuple[Table, Sheet | None, int]]:
    """Every table of the paper: what was run of it, if anything, and how many rows were not."""
    for table in tables().values():
        sheet = None
        if table.kind == "times":
            rows, timings = timed_rows(table.rows, times)
            sheet = time_sheet(table, rows, timings) if rows else None
        else:
            known = for_table(table, runs)
            rows = [row for row in table.rows if row.network in known]
            sheet = compare(table, rows, known, revise=revise) if rows else None
        yield table, sheet, len(table.rows) - len(rows)


def short(sheet: Sheet) -> Sheet:
    """The comparison with one line for each row: the measured values, and the paper's beside them."""
    paper = {line[:2]: line for line in sheet.lines if line[2] == "paper"}
    measured = [line for line in sheet.lines if line[2] == "measured"]
    budgets = dict.fromkeys(line[9] for line in measured)
    notes = [note for note in sheet.notes if note not in (SELECTED, LAST, OTHER_BUDGET, NOT_RUN)]
    return Sheet(
        name=sheet.name,
        title=sheet.title,
        columns=(*sheet.columns[:2], *sheet.columns[3:8], "Paper", "Paper's increase", "Seeds"),
        lines=tuple(
            (*line[:2], *line[3:8], " / ".join(printed[3:7]), printed[7], str(line[8].count(",") + 1))
            for line, printed in ((line, paper[line[:2]]) for line in measured)
        ),
        notes=(" ".join([f"Budget: {'; '.join(budgets)}.", *notes]),),
        labels=1,
    )


def best_groups(runs: Iterable[Run]) -> Iterator[list[Run]]:
    """The best runs of each dataset on held-out images; those that differ in the seed alone are a group."""
    found: dict[str, dict[tuple[Network, str, str], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        network = network_of(run.config)
        found[dataset_of(run)][network, budget_of(run), start_of(run)].append(run)
    for _, groups in sorted(found.items()):
        scored = sorted(((mean_score(group), group) for group in groups.values()), key=lambda pair: -pair[0])
        yield from (group for value, group in scored[:BEST] if value > scored[0][0] - WITHIN)


def best_sheet(runs: Iterable[Run]) -> Sheet:
    """The best runs of each dataset, each at its own budget."""
    reported = reported_rows()
    lines = []
    for group in best_groups(runs):
        network = network_of(group[0].config)
        lines.append(
            (
                dataset_of(group[0]),
                network.key.removeprefix(f"{network.dataset}-"),
                *means([on_test_images(run) for run in group]),
                " / ".join(reported[network][1].reported.values()) if network in reported else "",
                epochs_of(group[0], 0),
                f"{statistics.fmean(map(core_hours, group)):.1f}",
                str(len(group)),
                budget_of(group[0]),
            )
        )
    return Sheet(
        name="best",
        title="The best runs on held-out images",
        columns=(
            "Data",
            "Network",
            "Standard",
            *COLUMNS[1:],
            "Paper",
            "Epochs",
            "Core hours",
            "Seeds",
            "Budget",
        ),
        lines=tuple(lines),
        notes=("Epochs: those of the network that a run started from, and its own; the hours are its own.",),
        labels=1,
        folded=("Budget",),
    )


def runs_sheet(runs: Iterable[Run]) -> Sheet:
    """Every record with its accuracies and its cost."""
    lines = []
    for run in runs:
        values, summary = on_test_images(run), run.summary
        lines.append(
            (
                f"`{run.name}`",
                *(f"{values[column]:.2f}" for column in COLUMNS),
                epochs_of(run, 1),
                f"{run.hours:.2f} x {run.environment.get('threads', '?')}",
                f"{summary.steps * run.config.batch_size / (3600 * run.hours):.0f}",
                shown_bound(summary.test["best"]["lipschitz"], 6),
                "" if run.audit is None else "{broken} of {certified}".format(**run.audit.summary),
                budget_of(run),
            )
        )
    return Sheet(
        name="runs",
        title="Every record",
        columns=(
            "Run",
            "Standard",
            *COLUMNS[1:],
            "Epochs",
            "Hours x threads",
            "Images/s",
            "Constant",
            "Broken",
            "Budget",
        ),
        lines=tuple(lines),
        notes=(
            "Hours: of training and held-out evaluation, all epochs at the pace of the median one, so that "
            "pauses do not count. Constant: proved, from pixels to the features in front of the head; the "
            "normalisation alone has 1/0.2507, at most 3.98884. Broken: certificates that attacks broke, of "
            "those they were tried on.",
        ),
        labels=1,
        folded=("Budget",),
    )


def not_run(runs: Iterable[Run], missing: Mapping[str, int]) -> str:
    """How many networks were trained, and how many rows of each table were not run at its budget."""
    trained = len({network_of(run.config) for run in runs}.intersection(networks()))
    lines = [
        f"- `{name}`: {count} of its {len(tables()[name].rows)} rows were not run."
        for name, count in missing.items()
        if count
    ]
    return "\n".join([f"{trained} of the paper's {len(networks())} networks were trained.", "", *lines])


def machines(runs: Iterable[Run]) -> str:
    """Where the runs were made, and how many of them."""
    counts: Counter[str] = Counter()
    for about in (run.environment for run in runs):
        threads, gpus = about.get("threads", "?"), ", ".join(about.get("gpus", ())) or "no GPU"
        counts[
            f"{about.get('cpu', 'not recorded')}; {threads} thread{'s' * (threads != 1)}; {gpus}; torch "
            f"{about.get('torch', '?')}; lipcert {about.get('lipcert', '?')}"
        ] += 1
    return "\n".join(f"- {text}: {count} run{'s' * (count != 1)}" for text, count in sorted(counts.items()))


def timed_rows(rows: Sequence[Row], folder: Path) -> tuple[list[Row], dict[Network, dict[str, Timing]]]:
    """The rows of which every network has been timed, and their timings, from the files in `folder`.

    Of several timings of one network one at the paper's width counts before others, then the one over most
    images.
    """
    found: dict[Network, dict[str, Timing]] = defaultdict(dict)
    for network in dict.fromkeys(network for row in rows for network in row.networks.values()):
        for form in FORMS:
            files = folder.glob(f"{network.key}-w*-{form}-*images-*threads.json")
            timings = [Timing(**json.loads(file.read_text("utf-8"))) for file in sorted(files)]
            if timings:
                found[network][form] = max(timings, key=lambda t: (t.width == PAPER.width, t.images))
    complete = [row for row in rows if all(len(found[n]) == len(FORMS) for n in row.networks.values())]
    return complete, found


def epochs_of(run: Run, decimals: int) -> str:
    """The epochs of a run for people: those of the network that it started from, if any, and its own."""
    own, before = f"{run.summary.epochs:.{decimals}f}", run.epochs_before
    if before is None:
        return f"? + {own}"
    return f"{before:.{decimals}f} + {own}" if before else own


def core_hours(run: Run) -> float:
    """Hours of training, times threads."""
    return run.hours * float(run.environment.get("threads", 1))


def dataset_of(run: Run) -> str:
    """What a run was trained on, without the folder that it is in."""
    return Path(run.config.data).name


def mean_score(runs: Iterable[Run]) -> float:
    """How good the selected models of runs are on held-out images."""
    return statistics.fmean(selection_score(run.summary.best) for run in runs)
