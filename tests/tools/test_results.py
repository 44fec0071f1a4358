"""The tables of RESULTS.md from small records: one budget each, the best runs, what is missing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipcert.paper.budget import Budget
from lipcert.paper.compare import HELD_OUT
from lipcert.paper.measure import finished_runs
from lipcert.paper.render import Sheet, markdown
from lipcert.paper.tables import networks, tables
from lipcert.paper.times import TIMES, time_networks
from lipcert.runs.config import TrainConfig
from tests.paper.conftest import SMALL, WriteRun, accuracies, evaluation, verdict
from tests.tools.conftest import keep_certificates
from tools import fill_docs, results
from tools.claims import claims_sheet

LONG = Budget(epochs=9, width=16, schedule="onecycle", lr=0.3)


def sheets(root: Path) -> dict[str, tuple[Sheet | None, int]]:
    found = results.table_sheets(finished_runs(root), root / TIMES)
    return {table.name: (sheet, missing) for table, sheet, missing in found}


def measured(sheet: Sheet | None) -> list[tuple[str, ...]]:
    assert sheet is not None
    return [line[1:7] for line in sheet.lines if line[2] == "measured"]


@pytest.fixture
def folder(write_run: WriteRun) -> Path:
    """Two rows at one budget, a better one of them at another."""
    write_run("cifar10-main", "5-soc-maxmin", (62.0, 42.0, 24.0, 12.0))
    write_run(
        "cifar10-main", "5-cr", (75.0, 60.0, 45.0, 32.0), held_out=(74.0, 59.0, 44.0, 31.0), budget=LONG
    )
    return write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0)).parent


def test_a_table_shows_the_budget_with_most_rows_and_no_other(folder: Path) -> None:
    sheet, missing = sheets(folder)["cifar10-main"]
    assert [line[2] for line in measured(sheet)] == ["62.00", "61.00"]
    assert missing == 22
    assert sheets(folder)["cifar100-main"] == (None, 32)


def test_the_short_table_has_a_line_for_each_row(folder: Path, write_run: WriteRun) -> None:
    write_run("cifar10-main", "5-cr", (63.0, 44.0, 29.0, 19.0), seed=1)
    sheet, _ = sheets(folder)["cifar10-main"]
    assert sheet is not None
    first, second = results.short(sheet).lines
    assert first[1:7] == ("SOC + MaxMin", "62.00", "42.00", "24.00", "12.00", "")
    assert second == (
        "LipConvnet-5", "+ CR", "62.00 ± 1.41", "44.00 ± 0.00", "29.00 ± 0.00", "18.00 ± 1.41", "+6.00",
        "75.31 / 60.37 / 45.62 / 32.38", "+5.29", "2",
    )  # fmt: skip
    assert (
        results.short(sheet)
        .notes[0]
        .startswith(
            "Budget: 5 epochs, width 16, onecycle schedule, lr 0.3. Increase: of 108/255 over 'SOC + MaxMin';"
        )
    )


def test_what_is_measured_on_held_out_images_says_so(write_run: WriteRun) -> None:
    root = write_run("gamma-selection", "0.25", (1.0, 1.0, 1.0, 1.0)).parent
    sheet, _ = sheets(root)["gamma-selection"]
    assert sheet is not None
    assert HELD_OUT in results.short(sheet).notes[0]


def test_of_equal_budgets_the_papers_series_is_shown_then_the_better_one(write_run: WriteRun) -> None:
    root = write_run("cifar10-shallow", "5-soc-baseline", (60.0, 40.0, 20.0, 10.0)).parent
    better = (90.0, 80.0, 70.0, 60.0)
    write_run("cifar10-shallow", "5-soc-hh", better, held_out=better, budget=replace_series("isometric"))
    assert measured(sheets(root)["cifar10-shallow"][0])[0][2] == "60.00"
    write_run("cifar10-shallow", "5-soc-hh", better, held_out=better, budget=LONG)
    assert measured(sheets(root)["cifar10-shallow"][0])[0][2] == "90.00"


def test_networks_without_a_series_go_with_any(write_run: WriteRun) -> None:
    budget = replace_series("isometric")
    root = write_run("cifar10-shallow", "5-bcop", (60.0, 40.0, 20.0, 10.0), budget=budget).parent
    write_run("cifar10-shallow", "5-soc-baseline", (61.0, 41.0, 21.0, 11.0), budget=budget)
    sheet, missing = sheets(root)["cifar10-shallow"]
    assert [line[0] for line in measured(sheet)] == ["BCOP", "SOC (baseline)"]
    assert missing == 18


def replace_series(series: str) -> Budget:
    return Budget(epochs=5, width=16, schedule="onecycle", lr=0.3, series=series)


def test_the_best_runs_are_chosen_on_held_out_images(folder: Path, write_run: WriteRun) -> None:
    write_run(
        "cifar10-main", "5-cr", (77.0, 62.0, 47.0, 34.0), held_out=(72.0, 58.0, 43.0, 30.0),
        budget=Budget(epochs=90),
    )  # fmt: skip
    write_run(
        "cifar10-main", "5-cr", (77.0, 60.0, 45.0, 32.0), held_out=(74.0, 59.0, 44.0, 31.0),
        budget=LONG, seed=1,
    )  # fmt: skip
    first, second = results.best_sheet(finished_runs(folder)).lines  # the others are too far behind
    assert first[:3] == ("cifar10", "lipconvnet5-soc-hh1-orthogonal-cr0.5", "76.00 ± 1.41")
    assert first[6:] == (
        "75.31 / 60.37 / 45.62 / 32.38", "9", "3.0", "2", "9 epochs, width 16, onecycle schedule, lr 0.3",
    )  # fmt: skip
    assert (second[2], second[7]) == ("77.00", "90")


def test_networks_that_the_paper_does_not_have_are_taken_in(folder: Path, write_run: WriteRun) -> None:
    run = write_run("cifar10-main", "10-cr", (76.0, 63.0, 48.0, 35.0), held_out=(76.0, 63.0, 48.0, 35.0))
    config = replace(TrainConfig.read(run / "config.toml"), architecture="liresnet", loss="annealing")
    (run / "config.toml").write_text(config.to_toml())
    line = results.best_sheet(finished_runs(folder)).lines[0]
    assert line[1:3] == ("liresnet10-soc-hh1-orthogonal", "76.00")
    assert line[6] == ""
    assert line[-1].endswith("annealing loss")
    assert sheets(folder)["cifar10-main"][1] == 22
    assert run.name in markdown(results.runs_sheet(finished_runs(folder)))


def test_a_record_is_listed_with_its_cost(write_run: WriteRun) -> None:
    run = write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0))  # 5 epochs, 1755 steps
    (run / "audit.json").write_text(verdict())
    elapsed = (400.0, 760.0, 1120.0, 5120.0, 5400.0)  # the fourth epoch was stopped for an hour
    (run / "metrics.jsonl").write_text("".join(evaluation(n, time) for n, time in enumerate(elapsed, 1)))
    (line,) = results.runs_sheet(finished_runs(run.parent)).lines
    # 5 epochs of 360 s; 1755 * 128 / 1800 images a second.
    assert line[5:-1] == ("5.0", "0.50 x 2", "125", "3.98884", "0 of 1000")
    assert results.machines(finished_runs(run.parent)) == (
        "- A CPU; 2 threads; no GPU; torch 2.13.0; lipcert 0.1.0: 1 run"
    )


def test_what_was_not_run_is_counted(folder: Path) -> None:
    missing = {name: count for name, (_, count) in sheets(folder).items()}
    lines = results.not_run(finished_runs(folder), missing).splitlines()
    assert lines[0] == f"2 of the paper's {len(networks())} networks were trained."
    assert "- `cifar10-main`: 22 of its 24 rows were not run." in lines
    assert "- `cifar100-main`: 32 of its 32 rows were not run." in lines


def test_kept_timings_fill_the_time_tables(tmp_path: Path) -> None:
    rows = tables()["cifar10-times"].select(["5"])
    for images, seconds in ((128, 0.5), (256, 2.0)):
        time_networks(
            rows, tmp_path / TIMES, width=2, images=images, say=lambda _: None,
            clock=lambda *_, seconds=seconds: seconds,
        )  # fmt: skip
    sheet, missing = sheets(tmp_path)["cifar10-times"]
    assert sheet is not None
    assert sheet.lines[2][1:4] == ("this machine, frozen", "78.12", "78.12")  # the one over more images
    assert missing == 7
    assert sheets(tmp_path)["cifar100-times"] == (None, 8)


def test_revised_tables_show_the_runs_whose_constants_were_estimated(folder: Path) -> None:
    assert sheets(folder)["cifar10-revised"] == (None, 24)
    run = next(path for path in folder.iterdir() if "cr0.5-w16-5epochs" in path.name)
    values = {"accuracies": accuracies((61.0, 44.1, 29.1, 17.1)), "estimated_deviation": 1e-6}
    (run / "revised.json").write_text(json.dumps(values | {"proved_deviation": 2e-6}))
    sheet, missing = sheets(folder)["cifar10-revised"]
    assert sheet is not None
    assert sheet.lines[1][2:7] == ("estimate", "61.00", "44.10", "29.10", "17.10")
    assert missing == 23


@pytest.mark.parametrize(("known", "epochs", "budget"), [
    (104.0, "104 + 5", "after 104 epochs of a.safetensors"),
    (None, "? + 5", "started from a.safetensors"),
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
    (line,) = results.best_sheet(finished_runs(run.parent)).lines
    assert line[7] == epochs
    assert budget in line[-1]


def test_the_page_stays_short_when_every_network_is_run(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: set[Any] = set()
    for table in tables().values():
        for row in table.rows if table.kind == "accuracy" else ():
            if row.network not in done:
                done.add(row.network)
                run = write_run(table.name, row.name, (61.0, 44.0, 29.0, 17.0), budget=SMALL)
                keep_certificates(run, range(61))
    for epochs in range(6, 6 + results.BEST):  # and the best runs all at budgets of their own
        for name in ("cifar10-main", "cifar100-main"):
            values = (75.0, 60.0, 45.0, 32.0)
            write_run(name, "5-cr", values, held_out=values, budget=Budget(epochs=epochs))
    runs = finished_runs(run.parent)
    monkeypatch.setattr(fill_docs, "records", lambda: runs)
    monkeypatch.setattr(fill_docs, "paper_tables", lambda: list(results.table_sheets(runs, run.parent)))
    assert len(claims_sheet(runs).lines) > 70
    text = fill_docs.fill((fill_docs.ROOT / "RESULTS.md").read_text())
    assert "LipConvnet-40" in text
    assert "10 epochs, width 32, step schedule" in text
    assert text.count("\n") <= 250
