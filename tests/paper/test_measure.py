"""What a finished run says of itself: its hours, and its accuracies under revised constants."""

import dataclasses
from pathlib import Path

import pytest

import lipcert as lc
from lipcert.certify.curve import RADII
from lipcert.errors import CheckpointError
from lipcert.paper.measure import finished_run, revise
from lipcert.runs.config import TrainConfig
from lipcert.runs.summary import RunSummary
from lipcert.training.loop import train

from .conftest import WriteRun, evaluation


def test_a_short_rest_after_the_last_evaluation_sets_no_pace(write_run: WriteRun) -> None:
    folder = write_run("cifar10-main", "5-hh", (62.0, 42.0, 24.0, 12.0))
    (folder / "metrics.jsonl").write_text(evaluation(1.0, 100.0) + evaluation(1.1, 200.0))
    dataclasses.replace(RunSummary.read(folder), epochs=1.1).write(folder)
    assert finished_run(folder).hours * 3600 == pytest.approx(110)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    train(TrainConfig(data="digits", width=2, epochs=2, batch_size=256, lr=0.3, threads=1), out)
    return out


def test_revised_constants_divide_the_radii(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = lc.data.load("digits", split="test")
    proved = lc.certify(lc.load(trained / "best.safetensors"), lc.data.to_float(images.images))
    half = [proved.lipschitz / 2 / 1.25, 1.25, 7.0]  # normalisation, a convolution, head
    monkeypatch.setattr("lipcert.certify.estimate.layer_estimates", lambda model, iterations: half)
    found = revise(finished_run(trained))
    (trained / "revised.json").unlink()
    right = proved.prediction == images.labels
    expected = {name: float((right & (2 * proved.radius > r)).double().mean()) for name, r in RADII.items()}
    assert found.accuracies == {
        "standard": float(right.double().mean()),
        "certified": pytest.approx(expected),
    }
    assert found.estimated_deviation == pytest.approx(0.25)
    assert found.proved_deviation == pytest.approx(proved.lipschitz * 0.25 - 1)


def test_weights_that_are_not_those_of_the_summary_are_not_revised(trained: Path) -> None:
    run = finished_run(trained)
    best = run.summary.test["best"] | {"standard": run.summary.test["best"]["standard"] + 0.01}
    summary = dataclasses.replace(run.summary, test=run.summary.test | {"best": best})
    with pytest.raises(CheckpointError, match="the file or the data is not that of the run"):
        revise(run.knowing(summary=summary))
