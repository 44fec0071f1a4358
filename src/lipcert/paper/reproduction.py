"""One reproduction: chosen rows of chosen tables under one budget, compared with the paper."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lipcert.errors import ArgumentError, choose
from lipcert.paper.budget import Budget, budget_label
from lipcert.paper.compare import by_network, compare
from lipcert.paper.measure import Revised, finished_runs, revise
from lipcert.paper.render import Sheet
from lipcert.paper.run import plan
from lipcert.paper.tables import Network, Row, Table, tables
from lipcert.runs.run import Run, State
from lipcert.training.jobs import Job


@dataclass(frozen=True)
class Reproduction:
    """Rows to reproduce, and how.

    Args:
        selection: tables with the rows to run, in order.
        budget: what a row may cost.
        seeds: every row runs once per seed.
        out: folder of all runs.
    """

    selection: tuple[tuple[Table, tuple[Row, ...]], ...]
    budget: Budget
    seeds: tuple[int, ...]
    out: Path

    @property
    def trained(self) -> tuple[tuple[Table, tuple[Row, ...]], ...]:
        """The part that needs trained networks: all but the time tables."""
        return tuple((table, rows) for table, rows in self.selection if table.kind != "times")

    @property
    def timed(self) -> tuple[tuple[Table, tuple[Row, ...]], ...]:
        """The time tables."""
        return tuple((table, rows) for table, rows in self.selection if table.kind == "times")

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The training runs, each distinct network once per seed."""
        networks = (row.network for _, rows in self.trained for row in rows)
        return plan(networks, self.budget, self.seeds, self.out)

    def trained_as(self, network: Network) -> Network:
        """The network that stands in for a row's own: another gamma, if the budget says so."""
        return replace(network, gamma=self.budget.config(network, seed=0).gamma)

    def sheets(self, revise: Callable[[Run], Revised] = revise) -> Iterator[Sheet]:
        """The tables beside all finished runs of the same budget, also those of earlier reproductions."""
        jobs = self.jobs
        labels = {budget_label(job.config) for job in jobs}
        # A row's baseline may be a network of another convolution, whose label differs.
        labels |= {
            budget_label(self.budget.config(row.network, 0)) for row in tables()["cifar10-shallow"].rows
        }
        runs = by_network(run for run in finished_runs(self.out) if budget_label(run.config) in labels)
        for table, rows in self.trained:
            yield compare(table, rows, runs, trained_as=self.trained_as, revise=revise)

    def plan_sheet(self) -> Sheet:
        """The jobs and their states."""
        jobs = self.jobs
        lines = tuple((job.out.name, job.state.value, budget_label(job.config)) for job in jobs)
        left = sum(job.state is not State.DONE for job in jobs)
        return Sheet(
            name="plan",
            title=f"Runs in {self.out}: {len(jobs)}, of which {left} not done",
            columns=("Run", "State", "Budget"),
            lines=lines,
            labels=0,
            folded=("Budget",),
        )


def select(names: Sequence[str], wanted: Sequence[str]) -> tuple[tuple[Table, tuple[Row, ...]], ...]:
    """Tables by name, each with the rows that `wanted` names in it; a table without any is left out.

    Raises:
        ArgumentError: no such table, or a row that none of them has.
    """
    chosen = [tables()[choose("table", name, tables())] for name in names]
    handles = {table.name: table.handles() for table in chosen}
    for token in wanted:
        choose(f"rows of {', '.join(names)}", token, set().union(*handles.values()))
    found = []
    for table in chosen:
        here = [token for token in wanted if token in handles[table.name]]
        if here or not wanted:
            found.append((table, table.select(here)))
    return tuple(found)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from "0" or "0,1,2".

    >>> parse_seeds("0,2")
    (0, 2)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ArgumentError(f"seed: expected numbers such as '0' or '0,1,2', got {text!r}")
    return tuple(dict.fromkeys(int(part) for part in parts))
