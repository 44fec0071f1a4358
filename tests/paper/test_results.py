"""RESULTS.md from a small fixture: deterministic, complete, honest about what is missing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lipcert.errors import DataError
from lipcert.paper.budget import Budget
from lipcert.paper.claims import claims_sheet
from lipcert.paper.measure import finished_runs
from lipcert.paper.results import results, write_results
from lipcert.paper.tables import tables
from lipcert.paper.times import TIMES, time_networks
from lipcert.training.config import TrainConfig

from .conftest import SMALL, WriteRun, accuracies


@pytest.fixture
def folder(write_run: WriteRun) -> Path:
    write_run("cifar10-main", "5-soc-maxmin", (62.0, 42.0, 24.0, 12.0))
    write_run("cifar10-main", "5-hh", (61.9, 42.0, 24.0, 12.5))
    write_run("cifar10-shallow", "5-bcop", (55.0, 35.0, 20.0, 13.9))
    return write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0)).parent


def test_equal_records_give_equal_text(folder: Path) -> None:
    first = write_results(folder)
    text = first.read_text()
    assert first == folder.parent / "RESULTS.md"
    assert write_results(folder).read_text() == text
    assert results(folder) == text


def test_every_run_is_listed_with_the_papers_numbers(folder: Path) -> None:
    text = results(folder)
    assert "| 61.00 | 44.00 | 29.00 | 17.00 | 75.31 / 60.37 / 45.62 / 32.38 | 5.0 | " in text
    assert "A: seed 0; 5 epochs, width 16" in text
    assert "- A CPU; 2 threads; no GPU; torch 2.13.0; lipcert 0.1.0: 4 runs" in text
    assert "- `cifar10-main`: 21 of its 24 rows were not run." in text
    assert "- `cifar100-main`: 32 of its 32 rows were not run." in text
    assert "4 of the paper's 132 distinct networks were trained" in text


def test_time_in_which_a_run_stood_still_is_not_its_cost(write_run: WriteRun) -> None:
    run = write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0))  # 5 epochs, 1755 steps
    elapsed = (400.0, 760.0, 1120.0, 5120.0, 5400.0)  # the fourth epoch was stopped for an hour
    with (run / "metrics.jsonl").open("w") as file:
        for epoch, seconds in enumerate(elapsed, 1):
            file.write(json.dumps({"kind": "epoch", "epoch": epoch, "elapsed": seconds}) + "\n")
    # 5 epochs of 360 s; 1755 * 128 / 1800 images a second.
    assert " | 5.0 | 0.50 x 2 | 125 | 3.98884 | " in results(run.parent)


def test_a_short_rest_after_the_last_evaluation_is_not_its_pace(write_run: WriteRun) -> None:
    run = write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0))
    with (run / "metrics.jsonl").open("w") as file:
        for epoch, seconds in ((2.5, 900.0), (5.0, 1800.0), (5.005, 1830.0)):
            file.write(json.dumps({"kind": "epoch", "epoch": epoch, "elapsed": seconds}) + "\n")
    assert " | 5.0 | 0.50 x 2 | 125 | 3.98884 | " in results(run.parent)


def test_without_epochs_the_clock_of_the_run_counts(folder: Path) -> None:
    assert results(folder).count(" | 5.0 | 1.50 x 2 | 42 | 3.98884 | ") == 4


def test_a_run_that_goes_on_is_listed_as_unfinished(folder: Path, write_run: WriteRun) -> None:
    run = write_run("cifar10-main", "10-cr", (0.0, 0.0, 0.0, 0.0), budget=Budget())
    (run / "summary.json").unlink()
    record = {"kind": "epoch", "step": 351, "epoch": 1.0, "held_out": accuracies((30.0, 20.0, 10.0, 5.0))}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    text = results(folder)
    assert f"| {run.name} | 1.0 | 30.00 | 20.00 | 10.00 | 5.00 | the paper's" in text
    assert "4 of the paper's 132" in text


def test_the_verdict_of_an_audit_is_shown(folder: Path) -> None:
    run = next(path for path in folder.iterdir() if "hh1-orthogonal-cr0.5" in path.name)
    (run / "audit.json").write_text(json.dumps({"broken": 0, "certified": 1000}))
    assert sum("0 of 1000 broken" in line for line in results(folder).splitlines()) == 1


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        write_results(tmp_path)


def test_claims_are_judged_by_the_numbers(folder: Path) -> None:
    lines = {line[0]: line for line in claims_sheet(finished_runs(folder)).lines}
    # Standard error of a difference at 12% and 17% of 10,000 images: 0.50 points; at 62%: 0.69 points.
    assert lines["CR lifts the certified accuracy at 108/255"][2:6] == ("108/255", "+4.99", "+4.50", "yes")
    assert lines["HH is no worse than MaxMin"][2:6] == ("standard", "+0.52", "-0.10", "yes")
    assert lines["SOC beats BCOP"][2:6] == ("108/255", "+1.88", "-1.90", "no")
    assert "SOC beats Cayley" not in lines


def test_pairs_of_different_budgets_or_seeds_prove_nothing(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (62.0, 42.0, 24.0, 12.0)).parent
    write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0), budget=Budget())
    write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0), budget=SMALL, seed=1)
    assert claims_sheet(finished_runs(root)).lines == ()


def test_pairs_of_different_series_prove_nothing_unless_only_one_has_a_series(write_run: WriteRun) -> None:
    isometric = replace(SMALL, series="isometric")
    root = write_run("cifar10-main", "5-soc-maxmin", (62.0, 42.0, 24.0, 12.0), budget=isometric).parent
    write_run("cifar10-main", "5-hh", (50.0, 40.0, 20.0, 10.0))
    assert claims_sheet(finished_runs(root)).lines == ()
    write_run("cifar10-shallow", "5-bcop", (62.0, 42.0, 24.0, 15.0))
    (line,) = claims_sheet(finished_runs(root)).lines
    assert (line[0], line[4]) == ("SOC beats BCOP", "-3.00")


def test_a_gain_within_chance_is_called_so(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (62.0, 42.0, 24.0, 12.0)).parent
    write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 12.5))
    (line,) = claims_sheet(finished_runs(root)).lines
    assert line[4:6] == ("+0.50", "within chance")


def test_kept_timings_fill_the_time_tables(folder: Path) -> None:
    table = tables()["cifar10-times"]
    rows = table.select(["5"])
    time_networks(rows, folder / TIMES, width=2, images=128, say=lambda _: None, clock=lambda *_: 0.5)
    time_networks(rows, folder / TIMES, width=2, images=256, say=lambda _: None, clock=lambda *_: 2.0)
    text = results(folder)
    assert "this machine, frozen | 78.12 | 78.12 |" in text  # the one over more images
    assert "- `cifar10-times`: 7 of its 8 rows were not run." in text
    assert "- `cifar100-times`: 8 of its 8 rows were not run." in text


def test_revised_tables_show_the_runs_whose_constants_were_estimated(folder: Path) -> None:
    assert "cifar10-revised)." not in results(folder)
    run = next(path for path in folder.iterdir() if "hh1-orthogonal-cr0.5" in path.name)
    revised = {
        "accuracies": accuracies((61.0, 44.1, 29.1, 17.1)),
        "estimated_deviation": 1e-6,
        "proved_deviation": 2e-6,
    }
    (run / "revised.json").write_text(json.dumps(revised))
    text = results(folder)
    assert " | estimate | 61.00 | 44.10 | 29.10 | 17.10 |" in text
    assert "Here: estimated +1.0000e-06 (from below), proved +2.0000e-06 (from above)." in text
    assert "- `cifar10-revised`: 23 of its 24 rows were not run." in text


def test_both_shares_have_an_error(write_run: WriteRun) -> None:
    # Two standard errors at 12.0% and 12.8% of 10,000 images: 0.93 points, of one share alone 0.67.
    root = write_run("cifar10-main", "5-hh", (62.0, 42.0, 24.0, 12.0)).parent
    write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 12.8))
    (line,) = claims_sheet(finished_runs(root)).lines
    assert line[4:6] == ("+0.80", "within chance")


@pytest.mark.parametrize(("known", "epochs", "budget"), [
    (104.0, "104.0 + 5.0", "after 104 epochs of a.safetensors"),
    (None, "? + 5.0", "started from a.safetensors"),
])  # fmt: skip
def test_a_run_that_went_on_with_a_network_says_so(
    write_run: WriteRun, known: float | None, epochs: str, budget: str
) -> None:
    run = write_run("cifar10-main", "5-cr", (60.0, 40.0, 20.0, 10.0))
    config = replace(TrainConfig.read(run / "config.toml"), start_from="/far/away/a.safetensors")
    (run / "config.toml").write_text(config.to_toml())
    environment = json.loads((run / "environment.json").read_text())
    environment["started_from"] = {"network": config.start_from, "weights_sha256": "0", "epochs": known}
    (run / "environment.json").write_text(json.dumps(environment))
    text = results(run.parent)
    assert f" | {epochs} | 1.50 x 2 | " in text
    assert text.count(budget) >= 2  # where its budget is told, and beside the paper
    assert "/far/away" not in text
