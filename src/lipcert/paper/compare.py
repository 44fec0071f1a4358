"""Compares a table of the paper with the runs of its networks, as one sheet."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lipcert.paper.budget import PAPER, budget_label, is_paper_budget, network_of
from lipcert.paper.measure import Revised, Values, budget_of, on_test_images, percentages, start_of
from lipcert.paper.render import Line, Sheet
from lipcert.paper.tables import COLUMNS, Network, Row, Table, contradictions, tables
from lipcert.runs.run import Run

OTHER_BUDGET = (
    "Measured at another budget than the paper's (200 epochs, width 32, lr 0.1 with two drops): "
    "the differences show the budget first."
)
SELECTED = (
    "Measured: certified with proved bounds on the test set, by the model that was best on held-out training "
    "images. The authors chose their epoch on the test set."
)
LAST = '"last epoch" is the model after the last step.'
HELD_OUT = (
    "Measured on the held-out training images, by the model after the last step; its certified values are "
    "estimates."
)
REVISED_NOTE = (
    '"estimate" divides by Lipschitz constants from 50 steps of power iteration, as the paper\'s table does; '
    'they come from below. "proved" divides by the bound that every certificate of lipcert rests on.'
)
NOT_RUN = "Rows without a measured line were not run."

Runs = Mapping[Network, Sequence[Run]]


def by_network(runs: Iterable[Run]) -> dict[Network, list[Run]]:
    """Runs by what they trained."""
    found: dict[Network, list[Run]] = defaultdict(list)
    for run in runs:
        found[network_of(run.config)].append(run)
    return dict(found)


def compare(
    table: Table,
    rows: Sequence[Row],
    runs: Runs,
    *,
    trained_as: Callable[[Network], Network] = lambda network: network,
    revise: Callable[[Run], Revised] | None = None,
) -> Sheet:
    """The chosen rows of an accuracy table with everything that was measured for them.

    Args:
        table: any but a time table.
        rows: of that table.
        runs: finished runs by network; those with equal options but another seed are averaged.
        trained_as: the network that stands in for a row's own (another gamma).
        revise: computes revised constants; needed by tables of the kind "revised".
    """
    lines: list[Line] = []
    seen: list[Run] = []
    for row in rows:
        label = (
            f"LipConvnet-{row.depth}",
            f"gamma {row.method}" if table.split == "validation" else row.method,
        )
        lines.append((*label, "paper", *row.reported.values(), row.increase, "", ""))
        for group in _groups(runs.get(trained_as(row.network), ())):
            seen.extend(group)
            budget = _budget(row, group[0])
            seeds = ", ".join(str(run.config.seed) for run in group)
            for source, values, increase in _measured(table, row, group, runs, trained_as, revise):
                lines.append((*label, source, *values, increase, seeds, budget))
    return Sheet(
        name=table.name,
        title=f"Table {table.number} of the paper ({table.name}). {table.title}",
        columns=(
            "Architecture",
            "Method",
            "Source",
            "Standard",
            *COLUMNS[1:],
            "Increase",
            "Seed",
            "Budget",
        ),
        lines=tuple(lines),
        notes=(
            *_notes(table, seen, lines),
            *_deviations(table, seen, revise),
            *(found.sentence() for found in contradictions() if any(found.concerns(table, r) for r in rows)),
        ),
        folded=("Seed", "Budget"),
    )


def _measured(
    table: Table,
    row: Row,
    group: Sequence[Run],
    runs: Runs,
    trained_as: Callable[[Network], Network],
    revise: Callable[[Run], Revised] | None,
) -> Iterator[tuple[str, Line, str]]:
    """Lines of one group of seeds: source, values, increase."""
    if table.kind == "revised" and revise is not None:
        revised = [percentages(revise(run).accuracies) for run in group]
        yield "estimate", means(revised), ""
        yield "proved", means([on_test_images(run) for run in group]), ""
        yield "difference", _differences(row, revised), ""
        return
    values = [_values(table, run) for run in group]
    baseline = _baseline_group(table, row, group[0], runs, trained_as)
    column = table.increase_of
    increase = ""
    if baseline and row.method != table.baseline:
        gain = _mean(values, column) - _mean([_values(table, run) for run in baseline], column)
        increase = f"{gain:+.2f}"
        first = baseline[0].config
        if row.network.conv != "soc" and first.series != PAPER.series:
            increase += f" ({first.series} SOC)"
    yield "measured", means(values), increase
    yield "difference", _differences(row, values), ""
    last = [on_test_images(run, "last") for run in group]
    if table.split == "test" and last != values:
        yield "last epoch", means(last), ""


def _values(table: Table, run: Run) -> Values:
    return percentages(run.summary.held_out) if table.split == "validation" else on_test_images(run)


def _baseline_group(
    table: Table, row: Row, like: Run, runs: Runs, trained_as: Callable[[Network], Network]
) -> Sequence[Run]:
    """Runs of the row's baseline with the options of `like`, as far as a baseline shares them.

    A network without SOC layers shares no series: its baseline is the one with the paper's, if that was run.
    """
    sources = [tables()[name] for name in table.baseline_tables] or [table]
    network = next(
        other.network
        for source in sources
        for other in source.rows
        if other.depth == row.depth and other.method == table.baseline
    )
    series = like.config.conv == "soc"
    groups = [
        group
        for group in _groups(runs.get(trained_as(network), ()))
        if budget_label(group[0].config, series=series) == budget_label(like.config, series=series)
    ]
    return min(groups, key=lambda group: group[0].config.series != PAPER.series, default=())


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in nothing but the seed (and the machine), small budgets first."""

    def order(run: Run) -> tuple[int, float, str, int, str]:
        config = run.config
        return config.width, run.summary.epochs, budget_label(config), config.seed, run.name

    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=order):
        found[budget_label(run.config), start_of(run)].append(run)
    return list(found.values())


def _budget(row: Row, run: Run) -> str:
    label = budget_of(run)
    if run.config.minutes is not None:
        label = label.replace(", ", f" ({run.summary.epochs:.1f} epochs), ", 1)
    return label if run.config.gamma == row.network.gamma else f"{label}, gamma {run.config.gamma:g}"


def _mean(values: Sequence[Values], column: str) -> float:
    return statistics.fmean(value[column] for value in values)


def means(values: Sequence[Values]) -> Line:
    """Mean per column, with the standard deviation if there are several seeds."""
    cells = []
    for column in COLUMNS:
        spread = statistics.stdev(value[column] for value in values) if len(values) > 1 else None
        cells.append(f"{_mean(values, column):.2f}" + ("" if spread is None else f" ± {spread:.2f}"))
    return tuple(cells)


def _differences(row: Row, values: Sequence[Values]) -> Line:
    return tuple(f"{_mean(values, column) - float(row.reported[column]):+.2f}" for column in COLUMNS)


def _notes(table: Table, seen: Sequence[Run], lines: Sequence[Line]) -> tuple[str, ...]:
    over = f" of {' and '.join(table.baseline_tables)}" if table.baseline_tables else ""
    notes = [
        f"Increase: of {table.increase_of} over {table.baseline!r}{over}; empty where that was not run at "
        "the same budget."
    ]
    if seen:
        notes.append(
            REVISED_NOTE if table.kind == "revised" else HELD_OUT if table.split == "validation" else SELECTED
        )
    if any(line[2] == "last epoch" for line in lines):
        notes.append(LAST)
    if any(not is_paper_budget(run.config) for run in seen):
        notes.append(OTHER_BUDGET)
    if sum(line[2] == "paper" for line in lines) > len({line[:2] for line in lines if line[2] != "paper"}):
        notes.append(NOT_RUN)
    return tuple(notes)


def _deviations(table: Table, seen: Sequence[Run], revise: Callable[[Run], Revised] | None) -> Iterator[str]:
    """How far the Lipschitz constants between normalisation and head are from 1."""
    if table.kind != "revised":
        return
    yield f"Largest deviation of a Lipschitz constant from 1: the paper's {table.lipschitz_deviation}."
    if seen and revise is not None:
        found = [revise(run) for run in seen]
        estimated = max((value.estimated_deviation for value in found), key=abs)
        proved = max((value.proved_deviation for value in found), key=abs)
        yield f"Here: estimated {estimated:+.4e} (from below), proved {proved:+.4e} (from above)."
