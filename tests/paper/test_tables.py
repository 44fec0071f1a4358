"""The specification of the paper's tables against itself: counts, increases, repeated networks."""

from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from lipcert.errors import ArgumentError
from lipcert.paper.tables import COLUMNS, Row, Table, contradictions, networks, slug, tables

ROWS = {
    "cifar100-main": 32,
    "cifar10-main": 24,
    "gamma-selection": 6,
    "cifar100-revised": 32,
    "cifar10-revised": 24,
    "cifar10-times": 8,
    "cifar10-shallow": 20,
    "cifar10-deep": 20,
    "cifar10-hh2": 16,
    "cifar10-lln": 16,
    "cifar100-extract": 8,
    "cifar100-times": 8,
    "cifar100-shallow": 20,
    "cifar100-deep": 20,
    "cifar100-hh2": 16,
    "cifar100-lln": 16,
}
ACCURACY = [table for table in tables().values() if table.kind != "times"]
INCREASES = [pytest.param(t, r, id=f"{t.name}-{r.name}") for t in ACCURACY for r in t.rows]
REVISED = [t for t in ACCURACY if t.kind == "revised"]


def test_all_sixteen_tables_in_the_order_of_the_print() -> None:
    assert {name: len(table.rows) for name, table in tables().items()} == ROWS
    assert [table.number for table in tables().values()] == list(range(1, 17))
    assert sum(ROWS.values()) == 286


@pytest.mark.parametrize("table", tables().values(), ids=lambda table: table.name)
def test_rows_are_complete_and_distinct(table: Table) -> None:
    names = [row.name for row in table.rows]
    assert len(set(names)) == len(names)
    assert all(tuple(row.reported) == table.columns for row in table.rows)
    assert all(Decimal(value) > 0 for row in table.rows for value in row.reported.values())


@pytest.mark.parametrize("table", ACCURACY, ids=lambda table: table.name)
def test_a_larger_radius_never_certifies_more(table: Table) -> None:
    assert all(
        Decimal(row.reported[wide]) < Decimal(row.reported[narrow])
        for row in table.rows
        for narrow, wide in pairwise(COLUMNS)
    )


def baseline_of(table: Table, row: Row) -> Row:
    sources = [tables()[name] for name in table.baseline_tables] or [table]
    (found,) = (r for t in sources for r in t.rows if r.depth == row.depth and r.method == table.baseline)
    return found


@pytest.mark.parametrize(("table", "row"), INCREASES)
def test_every_increase_follows_or_is_a_listed_contradiction(table: Table, row: Row) -> None:
    column = table.increase_of
    follows = Decimal(row.reported[column]) - Decimal(baseline_of(table, row).reported[column])
    assert row.increase != "_" or row.method == table.baseline
    printed = Decimal(0) if row.increase == "_" else Decimal(row.increase.strip("()"))
    listed = [c for c in contradictions() if (c.table, c.row) == (table.name, (row.depth, row.method))]
    if printed == follows:
        assert listed == []
    else:
        (entry,) = listed
        assert (Decimal(entry.printed[0]), Decimal(entry.follows)) == (printed, follows)


def test_one_network_has_one_value_unless_the_file_says_otherwise() -> None:
    values: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for table in ACCURACY:
        if table.kind == "accuracy" and table.split == "test":
            for row in table.rows:
                for column, value in row.reported.items():
                    values[row.network.key, column][value].append(table.name)
    different = {where: found for where, found in values.items() if len(found) > 1}
    (entry,) = (c for c in contradictions() if c.kind == "value")
    ((where, found),) = different.items()
    assert where == ("cifar10-lipconvnet20-soc-maxmin-orthogonal", "standard")
    assert found == {"76.90": ["cifar10-main", "cifar10-shallow"], "77.05": ["cifar10-lln"]}
    assert set(entry.printed) == set(found)
    assert all(table in found[value] for table, value in zip(entry.tables, entry.printed, strict=True))


@pytest.mark.parametrize("table", REVISED, ids=lambda table: table.name)
def test_revised_tables_differ_from_the_main_ones_where_they_say_and_by_a_hundredth(table: Table) -> None:
    main = {row.name: row for row in tables()[table.revises].rows}
    for row in table.rows:
        for column, value in row.reported.items():
            reduced = (row.depth, row.method, column) in table.reduced
            less = Decimal("0.01") if reduced else Decimal(0)
            assert Decimal(main[row.name].reported[column]) - Decimal(value) == less
            assert main[row.name].network == row.network


def test_the_text_contradictions_that_are_arithmetic() -> None:
    by_place = {c.where: c for c in contradictions() if c.kind == "text"}
    gamma = {row.method: row for row in tables()["gamma-selection"].rows}
    drop = Decimal(gamma["0."].reported["standard"]) - Decimal(gamma["0.50"].reported["standard"])
    assert by_place["decrease in standard accuracy at gamma 0.5"].follows == str(drop)
    implied = 4 / (32 * 3**0.5)
    assert by_place["l2 radius implied by the l1 radius 4"].follows == f"{implied:.5f}"
    assert by_place["gamma of the + CR rows"].printed == ("0.5", "0.1")


def test_rows_that_denote_one_network_share_a_key() -> None:
    main = {row.name: row.network for row in tables()["cifar10-main"].rows}
    shallow = {row.name: row.network for row in tables()["cifar10-shallow"].rows}
    assert main["5-cr"] == shallow["5-cr"]
    assert main["5-soc-maxmin"] == shallow["5-soc-baseline"]
    assert main["5-cr"] == tables()["gamma-selection"].select(["0.50"])[0].network


def test_the_whole_paper_is_132_networks() -> None:
    # Per dataset 8 depths of: SOC with MaxMin (both heads), HH, HH + CR, order 2, order 2 + CR, BCOP, Cayley;
    # gamma selection adds the four values that no other table has.
    keys = [network.key for network in networks()]
    assert len(keys) == len(set(keys)) == 2 * 8 * 8 + 4


@pytest.mark.parametrize(
    ("table", "row", "key"),
    [
        ("cifar100-main", "5-soc-maxmin", "cifar100-lipconvnet5-soc-maxmin-orthogonal"),
        ("cifar100-main", "5-hh", "cifar100-lipconvnet5-soc-hh1-lln"),
        ("cifar100-deep", "40-bcop", "cifar100-lipconvnet40-bcop-maxmin-lln"),
        ("cifar10-deep", "40-cayley", "cifar10-lipconvnet40-cayley-maxmin-orthogonal"),
        ("cifar100-hh2", "15-cr", "cifar100-lipconvnet15-soc-hh2-lln-cr0.5"),
        ("cifar10-lln", "10-soc-lln", "cifar10-lipconvnet10-soc-maxmin-lln"),
        ("gamma-selection", "5-0.25", "cifar10-lipconvnet5-soc-hh1-orthogonal-cr0.25"),
    ],
)
def test_configurations_read_off_the_paper(table: str, row: str, key: str) -> None:
    (found,) = tables()[table].select([row])
    assert found.network.key == key


def test_values_are_kept_as_printed() -> None:
    (six,) = tables()["cifar100-deep"].select(["30-bcop"])
    assert six.reported == {"standard": "29.73", "36/255": "18.69", "72/255": "10.80", "108/255": "6"}
    (time,) = tables()["cifar100-times"].select(["20"])
    assert time.reported == {"MaxMin (no LLN)": "9.005", "MaxMin (LLN)": "9.2043", "HH (LLN)": "9.308"}


def test_an_unknown_row_suggests_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"rows of cifar10-main: .* got '5-rc'; did you mean '5-cr'\?"):
        tables()["cifar10-main"].select(["5-rc"])


def test_slugs_are_what_one_would_type() -> None:
    assert [slug(name) for name in ("SOC + HH(2)", "+ CR", "SOC (no LLN)", "0.", "0.10")] == [
        "soc-hh-2",
        "cr",
        "soc-no-lln",
        "0",
        "0.10",
    ]


def test_the_documentation_names_every_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    missing = [name for name in tables() if f"`{name}`" not in text]
    assert missing == []
    assert f"trains {len(networks())} distinct networks" in text
