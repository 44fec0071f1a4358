"""The paper's tables as data: what was reported, and which network makes each row."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from lipcert.errors import choose
from lipcert.schema import build

COLUMNS = ("standard", "36/255", "72/255", "108/255")
Kind = Literal["accuracy", "revised", "times"]


@dataclass(frozen=True, order=True)
class Network:
    """A network, such as those of the paper; equal ones are trained once, whatever tables they stand in."""

    dataset: str
    depth: int
    conv: str
    activation: str
    head: str
    gamma: float
    architecture: str = "lipconvnet"

    @property
    def key(self) -> str:
        """Name of the network, and of the folder of its run.

        >>> Network("cifar10", 5, "soc", "hh1", "orthogonal", 0.5).key
        'cifar10-lipconvnet5-soc-hh1-orthogonal-cr0.5'
        """
        parts = [self.dataset, f"{self.architecture}{self.depth}", self.conv, self.activation, self.head]
        return "-".join([*parts, f"cr{self.gamma:g}"] if self.gamma else parts)


@dataclass(frozen=True)
class Row:
    """One printed row: `reported` holds the values as printed (no % sign) by column.

    An accuracy row has one network; a row of a time table has one per column.
    """

    depth: int
    method: str
    reported: Mapping[str, str]
    increase: str
    networks: Mapping[str, Network]

    @property
    def network(self) -> Network:
        """The network of an accuracy row."""
        return self.networks[""]

    @property
    def name(self) -> str:
        """Short name for the command line: depth and method, as in `5-cr`, or the depth alone."""
        return f"{self.depth}-{slug(self.method)}" if self.method else str(self.depth)


@dataclass(frozen=True)
class Table:
    """One table of the paper, with the order, the numbers and the column names of the print."""

    name: str
    number: int
    title: str
    dataset: str
    kind: Kind
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    split: str
    increase_of: str
    baseline: str
    baseline_tables: tuple[str, ...]
    revises: str
    reduced: frozenset[tuple[int, str, str]]
    lipschitz_deviation: str

    def handles(self) -> frozenset[str]:
        """All names by which `select` finds rows."""
        return frozenset(name for row in self.rows for name in _handles(row))

    def select(self, wanted: Sequence[str]) -> tuple[Row, ...]:
        """Rows by depth (`5`), method (`cr`) or both (`5-cr`), in the order of the print; all if none named.

        >>> [row.name for row in tables()["cifar10-main"].select(["10", "5-cr"])]
        ['5-cr', '10-soc-maxmin', '10-hh', '10-cr']
        """
        for token in wanted:
            choose(f"rows of {self.name}", token, self.handles())
        return tuple(row for row in self.rows if not wanted or not _handles(row).isdisjoint(wanted))


@dataclass(frozen=True)
class Contradiction:
    """Something the paper prints that its own numbers contradict; `follows` is what the numbers give.

    `kind` is "increase" (then `table` and `row` say where), "value" or "text".
    """

    kind: str
    printed: tuple[str, ...]
    where: str = ""
    follows: str = ""
    note: str = ""
    table: str = ""
    row: tuple[int, str] | None = None
    network: str = ""
    tables: tuple[str, ...] = ()

    def concerns(self, table: Table, row: Row) -> bool:
        """Whether it is about a number that this row prints."""
        if self.kind == "increase":
            return (self.table, self.row) == (table.name, (row.depth, row.method))
        return self.kind == "value" and table.split == "test" and self.network == row.network.key

    def sentence(self) -> str:
        """For a reader of the table."""
        where = self.where
        if self.row is not None:
            where = f"increase of {self.table}, LipConvnet-{self.row[0]} {self.row[1]}"
            claim = f"printed as {self.printed[0]}, but the printed accuracies give {self.follows}"
        else:
            pairs = zip(self.printed, self.tables, strict=True)
            claim = "printed as " + " and ".join(f"{value} in {table}" for value, table in pairs)
        return f"The paper contradicts itself: {where}, {claim}{f' ({self.note})' if self.note else ''}."


def slug(text: str) -> str:
    """Lower-case name without signs: `SOC (no LLN)` becomes `soc-no-lln`, `0.10` stays."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


@cache
def tables() -> Mapping[str, Table]:
    """All tables of the paper by name, in the order of the print."""
    return MappingProxyType({entry["name"]: _table(entry) for entry in _specification()["table"]})


@cache
def contradictions() -> tuple[Contradiction, ...]:
    """Where the paper contradicts itself, as the specification lists it."""
    return tuple(build(Contradiction, entry) for entry in _specification()["contradiction"])


def networks(*names: str) -> tuple[Network, ...]:
    """The distinct networks that the named tables (all if none is named) train, in the order of the print."""
    chosen = [tables()[choose("table", name, tables())] for name in names] or list(tables().values())
    rows = (row for table in chosen if table.kind != "times" for row in table.rows)
    return tuple(dict.fromkeys(row.network for row in rows))


def reported_rows() -> dict[Network, tuple[Table, Row]]:
    """Where the paper prints each network on the test set: the first table that has it."""
    found: dict[Network, tuple[Table, Row]] = {}
    for table in tables().values():
        if table.kind == "accuracy" and table.split == "test":
            for row in table.rows:
                found.setdefault(row.network, (table, row))
    return found


def _handles(row: Row) -> set[str]:
    return {str(row.depth), row.name, slug(row.method)} - {""}


def _specification() -> dict[str, Any]:
    text = resources.files("lipcert.paper").joinpath("tables.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _table(entry: dict[str, Any]) -> Table:
    methods: dict[str, dict[str, Any]] = entry["methods"]
    times = entry["kind"] == "times"
    columns = tuple(methods) if times else COLUMNS

    def network(depth: int, method: str) -> Network:
        return Network(dataset=entry["dataset"], depth=depth, **methods[method])

    def row(cells: list[Any]) -> Row:
        depth, method = cells[0], "" if times else cells[1]
        made_by = {name: network(depth, name) for name in columns} if times else {"": network(depth, method)}
        values = cells[1:] if times else cells[2:-1]
        reported = dict(zip(columns, values, strict=True))
        return Row(depth, method, reported, "" if times else cells[-1], made_by)

    return Table(
        name=entry["name"],
        number=entry["number"],
        title=entry["title"],
        dataset=entry["dataset"],
        kind=entry["kind"],
        columns=columns,
        rows=tuple(row(cells) for cells in entry["rows"]),
        split=entry.get("split", "test"),
        increase_of=entry.get("increase_of", ""),
        baseline=entry.get("baseline", ""),
        baseline_tables=tuple(entry.get("baseline_tables", ())),
        revises=entry.get("revises", ""),
        reduced=frozenset((depth, method, column) for depth, method, column in entry.get("reduced", ())),
        lipschitz_deviation=entry.get("lipschitz_deviation", ""),
    )
