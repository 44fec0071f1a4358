"""Reported beside measured, on run folders with chosen numbers; every figure is worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipcert.errors import CheckpointError
from lipcert.paper.budget import Budget, budget_label
from lipcert.paper.compare import HELD_OUT, LAST, NOT_RUN, OTHER_BUDGET, SELECTED, by_network, compare
from lipcert.paper.measure import Revised, Run, finished_run, finished_runs
from lipcert.paper.render import Sheet
from lipcert.paper.reproduction import Reproduction, select
from lipcert.paper.tables import tables

from .conftest import SMALL, WriteRun, accuracies

BUDGET = "5 epochs, width 16, onecycle schedule, lr 0.3"


def sheet_of(table: str, rows: list[str], root: Path) -> Sheet:
    entry = tables()[table]
    return compare(entry, entry.select(rows), by_network(finished_runs(root)))


def test_a_measured_row_stands_below_the_reported_one(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-cr", (63.1, 44.7, 29.2, 17.1), last=(63.0, 44.8, 29.0, 17.0)).parent
    write_run("cifar10-main", "5-soc-maxmin", (62.0, 42.0, 24.0, 12.0))
    sheet = sheet_of("cifar10-main", ["5-cr", "5-hh"], root)
    label = ("LipConvnet-5", "+ CR")
    assert sheet.lines == (
        ("LipConvnet-5", "+ HH", "paper", "76.30", "60.12", "43.20", "27.39", "+0.30", "", ""),
        (*label, "paper", "75.31", "60.37", "45.62", "32.38", "+5.29", "", ""),
        (*label, "measured", "63.10", "44.70", "29.20", "17.10", "+5.10", "0", BUDGET),
        (*label, "difference", "-12.21", "-15.67", "-16.42", "-15.28", "", "0", BUDGET),
        (*label, "last epoch", "63.00", "44.80", "29.00", "17.00", "", "0", BUDGET),
    )
    increase = "Increase: of 108/255 over 'SOC + MaxMin'; empty where that was not run at the same budget."
    assert sheet.notes == (increase, SELECTED, LAST, OTHER_BUDGET, NOT_RUN)


def test_seeds_are_averaged_with_their_spread(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (60.0, 40.0, 20.0, 10.0), seed=0).parent
    write_run("cifar10-main", "5-hh", (62.0, 40.0, 20.0, 10.0), seed=1)
    measured = sheet_of("cifar10-main", ["5-hh"], root).lines[1]
    assert measured[3:5] == (
        "61.00 ± 1.41",
        "40.00 ± 0.00",
    )  # deviation of two points: their distance / sqrt(2)
    assert measured[-2] == "0, 1"


def test_budgets_are_kept_apart(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (60.0, 40.0, 20.0, 10.0)).parent
    write_run("cifar10-main", "5-hh", (76.0, 60.0, 43.0, 27.0), budget=Budget())
    lines = [line for line in sheet_of("cifar10-main", ["5-hh"], root).lines if line[2] == "measured"]
    assert [line[-1] for line in lines] == [BUDGET, "the paper's (200 epochs, width 32)"]


def test_small_budgets_stand_first(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (70.0, 50.0, 30.0, 20.0), budget=Budget(epochs=40)).parent
    write_run("cifar10-main", "5-hh", (69.0, 49.0, 29.0, 19.0), budget=Budget(epochs=5))
    write_run("cifar10-main", "5-hh", (71.0, 51.0, 31.0, 21.0), budget=Budget(epochs=90, width=16))
    lines = [line for line in sheet_of("cifar10-main", ["5-hh"], root).lines if line[2] == "measured"]
    assert [line[3] for line in lines] == ["71.00", "69.00", "70.00"]


def test_at_the_papers_own_budget_nothing_is_excused(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (76.0, 60.0, 43.0, 27.0), budget=Budget()).parent
    assert sheet_of("cifar10-main", ["5-hh"], root).notes[1:] == (SELECTED,)


@pytest.mark.parametrize(
    ("table", "row", "sentence"),
    [
        (
            "gamma-selection",
            "0.10",
            "LipConvnet-5 0.10, printed as +0.94, but the printed accuracies give +1.12.",
        ),
        ("cifar10-lln", "20-soc-no-lln", "printed as 76.90 in cifar10-main and 77.05 in cifar10-lln ("),
        ("cifar10-main", "20-soc-maxmin", "printed as 76.90 in cifar10-main and 77.05 in cifar10-lln ("),
    ],
)
def test_a_row_that_the_paper_contradicts_says_so_and_no_other_does(
    table: str, row: str, sentence: str, tmp_path: Path
) -> None:
    notes = sheet_of(table, [row], tmp_path).notes
    (found,) = (note for note in notes if note.startswith("The paper contradicts itself"))
    assert sentence in found
    other = sheet_of("cifar10-main", ["5"], tmp_path)
    assert not any("contradicts" in note for note in other.notes)


def test_gamma_selection_is_measured_on_held_out_images(write_run: WriteRun) -> None:
    root = write_run(
        "gamma-selection", "0.25", (1.0, 1.0, 1.0, 1.0), held_out=(70.0, 50.0, 40.0, 25.0)
    ).parent
    write_run("gamma-selection", "0", (1.0, 1.0, 1.0, 1.0), held_out=(71.0, 49.0, 38.0, 21.0))
    sheet = sheet_of("gamma-selection", ["0.25"], root)
    assert sheet.lines[1][:8] == (
        "LipConvnet-5",
        "gamma 0.25",
        "measured",
        "70.00",
        "50.00",
        "40.00",
        "25.00",
        "+4.00",
    )
    assert [line[2] for line in sheet.lines] == ["paper", "measured", "difference"]
    assert HELD_OUT in sheet.notes


def test_the_increase_of_a_bcop_row_is_to_the_soc_baseline(write_run: WriteRun) -> None:
    shared = {"epochs": 5, "width": 16, "schedule": "onecycle", "lr": 0.3, "crop": 0}
    isometric = Budget(series="isometric", **shared)
    root = write_run("cifar10-shallow", "5-bcop", (60.0, 40.0, 20.0, 9.0), budget=isometric).parent
    write_run("cifar10-shallow", "5-soc-baseline", (62.0, 42.0, 22.0, 11.0), budget=isometric)
    assert sheet_of("cifar10-shallow", ["5-bcop"], root).lines[1][7] == "-2.00 (isometric SOC)"
    # The paper's series goes before the others, however the names of the budgets are sorted.
    exponential = Budget(series="exponential", **shared)
    write_run("cifar10-shallow", "5-soc-baseline", (63.0, 43.0, 23.0, 12.0), budget=exponential)
    assert sheet_of("cifar10-shallow", ["5-bcop"], root).lines[1][7] == "-3.00"


def test_the_increase_of_order_two_is_to_a_row_of_another_table(write_run: WriteRun) -> None:
    root = write_run("cifar100-hh2", "5-cr", (40.0, 30.0, 20.0, 12.5)).parent
    write_run("cifar100-shallow", "5-soc-baseline", (39.0, 29.0, 19.0, 11.0))
    assert sheet_of("cifar100-hh2", ["5-cr"], root).lines[1][7] == "+1.50"


def test_revised_tables_show_estimate_and_proof(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (60.0, 40.0, 20.0, 10.0)).parent
    table = tables()["cifar10-revised"]

    def revise(run: Run) -> Revised:
        return Revised(accuracies((60.0, 40.01, 20.0, 10.0)), 2e-5, 3e-5)

    sheet = compare(table, table.select(["5-hh"]), by_network(finished_runs(root)), revise=revise)
    assert [line[2] for line in sheet.lines] == ["paper", "estimate", "proved", "difference"]
    assert [line[4] for line in sheet.lines] == ["60.12", "40.01", "40.00", "-20.11"]
    assert sheet.notes[-2:] == (
        "Largest deviation of a Lipschitz constant from 1: the paper's 2.2072e-5.",
        "Here: estimated +2.0000e-05 (from below), proved +3.0000e-05 (from above).",
    )


def test_another_gamma_is_shown_in_the_row_and_named(write_run: WriteRun, tmp_path: Path) -> None:
    budget = Budget(epochs=5, width=16, schedule="onecycle", lr=0.3, gamma=0.1)
    root = write_run("cifar10-main", "5-cr", (60.0, 40.0, 20.0, 10.0), budget=budget).parent
    reproduction = Reproduction(select(["cifar10-main"], ["5-cr"]), budget, (0,), root)
    (sheet,) = reproduction.sheets()
    assert sheet.lines[1][-1] == f"{BUDGET}, gamma 0.1"


def test_only_runs_of_the_same_budget_are_shown(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (60.0, 40.0, 20.0, 10.0)).parent
    write_run("cifar10-main", "5-hh", (76.0, 60.0, 43.0, 27.0), budget=Budget())
    (sheet,) = Reproduction(select(["cifar10-main"], ["5-hh"]), SMALL, (0,), root).sheets()
    assert [line[-1] for line in sheet.lines if line[2] == "measured"] == [BUDGET]


def test_the_plan_says_what_is_done(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (60.0, 40.0, 20.0, 10.0)).parent
    plan = Reproduction(select(["cifar10-main"], ["5"]), SMALL, (0,), root).plan_sheet()
    assert [line[1] for line in plan.lines] == ["new", "done", "new"]
    assert plan.title.endswith(": 3, of which 2 not done")


def test_rows_are_looked_up_in_all_named_tables() -> None:
    chosen = select(["cifar10-main", "cifar10-shallow", "cifar10-lln"], ["5-bcop", "5-hh"])
    assert [(table.name, [row.name for row in rows]) for table, rows in chosen] == [
        ("cifar10-main", ["5-hh"]),
        ("cifar10-shallow", ["5-bcop"]),
    ]


def test_a_damaged_summary_is_named(write_run: WriteRun) -> None:
    folder = write_run("cifar10-main", "5-hh", (60.0, 40.0, 20.0, 10.0))
    (folder / "summary.json").write_text(json.dumps({"steps": 3}))
    with pytest.raises(CheckpointError, match=r"summary\.json is damaged \(content: lacks best, elapsed"):
        finished_run(folder)


def test_a_time_budget_says_how_many_epochs_it_was(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (60.0, 40.0, 20.0, 10.0), budget=Budget(minutes=30)).parent
    label = sheet_of("cifar10-main", ["5-hh"], root).lines[1][-1]
    assert label == "30 minutes (5.0 epochs), width 32, step schedule"


def test_the_baseline_has_no_increase_over_itself(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-soc-maxmin", (60.0, 40.0, 20.0, 10.0)).parent
    sheet = sheet_of("cifar10-main", ["5-soc-maxmin"], root)
    assert [line[7] for line in sheet.lines if line[2] == "measured"] == [""]


@pytest.mark.parametrize(
    "change",
    [
        {"warmup": 0.3},
        {"held_out": 1000},
        {"eval_every": 3},
        {"image_size": 16},
        {"crop": 1},
        {"loss": "emma"},
        {"temperature": 0.5},
        {"optimizer": "muon"},
        {"weight_decay": 0.0},
        {"ema": 0.9},
    ],
)
def test_budgets_that_differ_have_different_names(change: dict[str, Any]) -> None:
    network = tables()["cifar10-main"].rows[0].network
    for budget in (Budget(), Budget(epochs=5)):
        config = budget.config(network, seed=0)
        assert budget_label(config) != budget_label(replace(config, **change))


def test_options_without_effect_do_not_make_another_budget() -> None:
    config = Budget(epochs=5).config(tables()["cifar10-shallow"].select(["5-bcop"])[0].network, seed=0)
    for change in ({"series": "wide"}, {"muon_step": 0.1}, {"beta": 1.0}, {"epsilon": 0.1}, {"threads": 3}):
        assert budget_label(replace(config, **change)) == budget_label(config)
    soc = replace(Budget().config(tables()["cifar10-main"].rows[0].network, seed=0), series="wide")
    assert budget_label(soc, series=False) == budget_label(replace(soc, conv="bcop"))
