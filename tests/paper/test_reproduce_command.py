"""lipcert reproduce, from the command line's side; training is a stand-in that writes chosen numbers."""

import csv
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lipcert.cli.reproduce import reproduce
from lipcert.errors import ArgumentError, LipcertError, TrainingError
from lipcert.files import CONFIG
from lipcert.runs.config import TrainConfig
from lipcert.runs.summary import RunSummary
from lipcert.training.progress import Progress

from .conftest import accuracies


def run(*arguments: str) -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(reproduce)
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, list(arguments))
    if isinstance(result.exception, LipcertError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """Configurations that the command trained; seed 7 diverges."""
    configs: list[TrainConfig] = []

    def train(
        config: TrainConfig, out: Path, *, resume: bool = False, progress: Progress | None = None
    ) -> None:
        configs.append(config)
        out.mkdir(parents=True)
        (out / CONFIG).write_text(config.to_toml())
        if config.seed == 7:
            raise TrainingError("the loss is not finite")
        values = accuracies((60.0, 40.0, 20.0, 10.0), lipschitz=3.99)
        RunSummary(str(out), 10, 1.0, 1.0, 10.0, 1.0, values, values, {"best": values, "last": values}).write(
            out
        )

    monkeypatch.setattr("lipcert.training.loop.train", train)
    return configs


def test_list_names_every_table() -> None:
    text = run("list")
    assert "cifar100-extract" in text
    assert "286 rows in all, 132 distinct networks" in text


def test_a_table_is_trained_printed_and_written(trained: list[TrainConfig], tmp_path: Path) -> None:
    options = ("--rows", "5-cr,5-hh", "--epochs", "1", "--width", "4", "--out", str(tmp_path))
    text = run("cifar10-main", *options)
    assert [(config.gamma, config.epochs, config.width) for config in trained] == [(0.0, 1, 4), (0.5, 1, 4)]
    assert "another budget than the paper's" in " ".join(text.split())
    with (tmp_path / "tables" / "cifar10-main.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["Standard"] for row in rows if row["Source"] == "measured"] == ["60.00", "60.00"]
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".md", ".tex", ".csv", ".html"}
    run("cifar10-main", *options)
    assert len(trained) == 2  # the second time everything is done


def test_tables_that_share_a_network_train_it_once(trained: list[TrainConfig], tmp_path: Path) -> None:
    run(
        "cifar10-main,cifar10-shallow,gamma-selection",
        "--rows",
        "5-cr,5-0.50",
        "--epochs",
        "1",
        "--out",
        str(tmp_path),
    )
    assert len(trained) == 1
    assert len(list((tmp_path / "tables").glob("*.md"))) == 3


def test_dry_run_trains_nothing(trained: list[TrainConfig], tmp_path: Path) -> None:
    text = run("all", "--dry-run", "--out", str(tmp_path / "new"))
    assert ": 132, of which 132 not done" in " ".join(text.split())
    assert "cifar100-times: times 8 rows on 10000 images" in text
    assert trained == []
    assert not (tmp_path / "new").exists()


def test_a_failed_row_is_an_error_after_the_others_ran(trained: list[TrainConfig], tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"1 of 2 runs failed; the first is .*-seed7: the loss is not finite"
    ):
        run("cifar10-main", "--rows", "5-cr", "--epochs", "1", "--seed", "7,8", "--out", str(tmp_path))
    assert [config.seed for config in trained] == [7, 8]
    assert (tmp_path / "tables" / "cifar10-main.md").exists()


def test_figures_are_written(tmp_path: Path) -> None:
    run("figure1", "--out", str(tmp_path))
    assert (tmp_path / "figures" / "figure1.png").exists()


def test_the_data_root_reaches_the_training(
    trained: list[TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIPCERT_DATA", "before")
    run(
        "cifar10-main",
        "--rows",
        "5-cr",
        "--epochs",
        "1",
        "--data-root",
        str(tmp_path),
        "--out",
        str(tmp_path),
    )
    assert os.environ["LIPCERT_DATA"] == str(tmp_path.resolve())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cifar10-mian",), r"NAME: .* got 'cifar10-mian'; did you mean 'cifar10-main'\?"),
        (("cifar10-main,all",), "NAME: 'all' cannot be combined"),
        (("cifar10-main", "--rows", "5-rc"), r"rows of cifar10-main: .* did you mean '5-cr'\?"),
        (("cifar10-main", "--seed", "one"), "seed: expected numbers such as '0' or '0,1,2', got 'one'"),
        (("gamma-selection", "--gamma", "0.1"), "gamma: gamma-selection has its own values"),
        (("cifar10-main", "--schedule", "papr"), "schedule: expected one of"),
        (("cifar10-main", "--cluster", "slurm"), "cluster: expected 'ray' or an address"),
        (("cifar10-main", "--epochs", "5", "--minutes", "3"), "minutes: replaces --epochs"),
        (("cifar10-shallow", "--rows", "5-bcop", "--gamma", "0.1"), "gamma: none of the chosen rows has CR"),
        (("cifar10-times", "--gamma", "0.1"), "gamma: none of the chosen rows has CR"),
        (("figure1", "--width", "7"), "width: figure1 trains nothing and does not take it"),
        (("list",), "out: list trains nothing"),
        (("cifar10-main,cifar10-times", "--count", "100"), "count: expected at least one batch of 128"),
        (("cifar10-times", "--dry-run", "--count", "100"), "count: expected at least one batch of 128"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[str, ...], message: str, trained: list[TrainConfig], tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=message):
        run(*arguments, "--out", str(tmp_path))
    assert trained == []


def test_trained_tables_are_written_before_anything_is_timed(
    trained: list[TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lipcert.paper.times.time_networks", stop)
    with pytest.raises(AssertionError):
        run("cifar10-main,cifar10-times", "--rows", "5", "--epochs", "1", "--out", str(tmp_path))
    assert len(trained) == 3
    assert (tmp_path / "tables" / "cifar10-main.md").exists()
