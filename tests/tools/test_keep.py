"""Runs taken over into results: small, complete, without a word of the machine's folders."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from lipcert.certify.records import read_records
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.paper.measure import finished_runs
from lipcert.runs.config import TrainConfig
from lipcert.training.loop import train
from tests.paper.conftest import verdict
from tools.keep import keep_runs, read_certificates
from tools.results import runs_sheet


def test_a_trained_run_is_kept_whole_but_for_weights_and_paths(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    config = TrainConfig(data="digits", width=2, epochs=1, batch_size=256, threads=1)
    summary = train(config, runs / "a")
    command = f"lipcert train --data digits --config={runs}/b/ --out {runs}/a/"
    environment = json.loads((runs / "a" / "environment.json").read_text()) | {"command": command}
    (runs / "a" / "environment.json").write_text(json.dumps(environment))
    (kept,) = keep_runs(runs, tmp_path / "results")
    assert sorted(path.name for path in kept.iterdir()) == [
        "certificates.csv.gz", "config.toml", "environment.json", "metrics.jsonl", "summary.json",
    ]  # fmt: skip
    (run,) = finished_runs(tmp_path / "results")
    assert (run.config, run.summary.test, run.summary.out) == (config, summary.test, "a")
    assert run.environment["command"] == "lipcert train --data digits --config=b --out a"
    assert not any(str(tmp_path) in path.read_text() for path in kept.iterdir() if path.suffix != ".gz")
    assert [line[0] for line in runs_sheet([run]).lines] == ["`a`"]
    keep_runs(runs, tmp_path / "results", weights=True)
    start = replace(config, start_from=str(kept), epochs=1)
    assert train(start, tmp_path / "more").steps == summary.steps
    with pytest.raises(ArgumentError, match="results: expected another folder than that of the runs"):
        keep_runs(runs, tmp_path / "runs" / ".." / "runs")


def test_what_a_run_started_from_is_kept_without_its_place(tmp_path: Path) -> None:
    config = TrainConfig(data="digits", width=2, epochs=1, batch_size=256, threads=1)
    train(config, tmp_path / "first")
    train(replace(config, start_from=str(tmp_path / "first")), tmp_path / "runs" / "later")
    for _ in range(2):  # the second time it is found to be the same run
        (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    (run,) = finished_runs(tmp_path / "results")
    assert (run.config.start_from, run.environment["started_from"]["network"]) == ("first", "first")
    assert run.epochs_before == 1
    assert not any(str(tmp_path) in path.read_text() for path in kept.iterdir() if path.suffix != ".gz")


def test_a_record_is_not_replaced_by_another_run_of_the_same_name(tmp_path: Path) -> None:
    config = TrainConfig(data="digits", width=2, epochs=1, batch_size=256, lr=0.3, threads=1)
    for folder, lr in (("one", 0.3), ("two", 0.1)):
        train(replace(config, lr=lr), tmp_path / folder / "a")
    keep_runs(tmp_path / "one", tmp_path / "results")
    keep_runs(tmp_path / "one", tmp_path / "results")
    with pytest.raises(ArgumentError, match=r"results: .*a keeps another run than .*lr: 0.3 -> 0.1"):
        keep_runs(tmp_path / "two", tmp_path / "results")


def test_certificates_of_another_network_are_not_kept(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    train(TrainConfig(data="digits", width=2, epochs=1, batch_size=256, lr=0.3, threads=1), run)
    header, *rows = (run / "certificates.jsonl").read_text().splitlines()
    other = json.dumps(json.loads(header) | {"network": "model.proved.safetensors"})
    (run / "certificates.jsonl").write_text("\n".join([other, *rows]))
    with pytest.raises(
        CheckpointError, match=r"expected the certificates of best\.proved\.safetensors, got those of model"
    ):
        keep_runs(tmp_path / "runs", tmp_path / "results")


def test_kept_certificates_give_the_accuracies_of_the_summary(tmp_path: Path) -> None:
    config = TrainConfig(data="digits", width=2, epochs=2, batch_size=256, lr=0.3, threads=1)
    summary = train(config, tmp_path / "runs" / "a")
    (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    again = (kept / "certificates.csv.gz").read_bytes()
    outcomes = read_certificates(kept)
    right, radius = outcomes.right, outcomes.radius
    best = summary.test["best"]
    assert right.double().mean().item() == best["standard"]
    for name, share in best["certified"].items():
        limit = float(Fraction(name))
        # Rounded down by at most a millionth, so an image may fall below a radius that it just reached.
        assert share - 0.003 <= (right & (radius > limit)).double().mean().item() <= share
    original = read_records(tmp_path / "runs" / "a").outcomes
    for column in ("index", "label", "prediction", "runner_up"):
        assert torch.equal(getattr(outcomes, column), getattr(original, column))
    exact = original.radius
    assert bool((radius <= exact).all())
    assert bool((exact - radius < 1.0001e-6).all())
    keep_runs(tmp_path / "runs", tmp_path / "results")
    assert (kept / "certificates.csv.gz").read_bytes() == again


def test_what_speaks_of_other_weights_does_not_stay(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    train(TrainConfig(data="digits", width=2, epochs=1, batch_size=256, lr=0.3, threads=1), run)
    (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    for name in ("audit.json", "revised.json"):
        (kept / name).write_text("{}")
    keep_runs(tmp_path / "runs", tmp_path / "results")
    assert (kept / "audit.json").exists()
    assert (kept / "revised.json").exists()
    header, first, *rows = (run / "certificates.jsonl").read_text().splitlines()
    other = json.loads(first) | {"radius": json.loads(first)["radius"] + 0.5}
    (run / "certificates.jsonl").write_text("\n".join([header, json.dumps(other), *rows]) + "\n")
    keep_runs(tmp_path / "runs", tmp_path / "results")
    assert not (kept / "audit.json").exists()
    assert not (kept / "revised.json").exists()
    (run / "audit.json").write_text(verdict(network_sha256="of another network"))
    with pytest.raises(CheckpointError, match=r"audit.json: audits another network than that of"):
        keep_runs(tmp_path / "runs", tmp_path / "results")
