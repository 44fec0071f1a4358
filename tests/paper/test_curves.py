"""The pictures of RESULTS.md: one curve per dataset, of the run that held-out images choose."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lipcert.cli.app import app
from lipcert.paper.curves import best_runs, curve_file
from lipcert.paper.measure import finished_runs
from lipcert.paper.results import results

from .conftest import SMALL, WriteRun

RECORDS = "label,prediction,runner_up,radius\n0,0,1,0.500000\n1,0,1,0.200000\n2,2,0,inf\n"


@pytest.fixture
def folder(write_run: WriteRun) -> Path:
    """Two budgets of one network: the better one on the test set is the worse one on held-out images."""
    long = replace(SMALL, epochs=9)
    chosen = write_run("cifar10-main", "5-cr", (60.0, 40.0, 20.0, 10.0), held_out=(70.0, 50.0, 30.0, 20.0))
    other = write_run("cifar10-main", "5-cr", (61.0, 41.0, 21.0, 11.0), budget=long)
    without = write_run("cifar10-main", "5-hh", (61.0, 41.0, 21.0, 11.0), held_out=(90.0, 90.0, 90.0, 90.0))
    for run in (chosen, other):
        (run / "certificates.csv.gz").write_bytes(gzip.compress(RECORDS.encode()))
    assert not (without / "certificates.csv.gz").exists()
    return chosen.parent


def test_the_run_is_chosen_on_held_out_images_among_those_with_certificates(folder: Path) -> None:
    (chosen,) = best_runs(finished_runs(folder)).items()
    assert chosen[0] == "cifar10"
    assert chosen[1].config.epochs == SMALL.epochs
    assert chosen[1].network.gamma == 0.5


def test_the_picture_is_drawn_and_shown(folder: Path, tmp_path: Path) -> None:
    command = ["reproduce", "results", "--out", str(tmp_path / "none"), "--results", str(folder)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert "(results/curve-cifar10.png)" in (tmp_path / "RESULTS.md").read_text()
    picture = curve_file(folder, "cifar10").read_bytes()
    assert picture.startswith(b"\x89PNG")
    CliRunner().invoke(app, command)
    assert curve_file(folder, "cifar10").read_bytes() == picture


def test_without_certificates_there_is_no_picture(write_run: WriteRun) -> None:
    folder = write_run("cifar10-main", "5-hh", (61.0, 41.0, 21.0, 11.0)).parent
    assert "curve-" not in results(folder)
