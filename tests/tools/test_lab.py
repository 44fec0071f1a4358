"""Short trials: what is run, recorded and shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools import lab

BASE = {"data": "digits", "depth": 5, "width": 2, "epochs": 1, "batch_size": 128, "precision": "fp32"}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    study = lab.Study(BASE, {"certificate, gamma 0": {"gamma": 0.0}, "certificate, gamma 1": {"gamma": 1.0}})
    monkeypatch.setattr(lab, "STUDIES", {"dial": study})
    monkeypatch.setattr(lab, "RECORD", tmp_path / "lab.jsonl")
    return tmp_path / "lab.jsonl"


def test_a_trial_trains_and_reads_only_held_out_images(record: Path) -> None:
    trial = lab.run_trial("dial", "certificate, gamma 1", 0, 1)
    assert trial["options"]["gamma"] == 1
    assert trial["held_out"]["label"] == "held-out, estimate"
    assert trial["core_minutes"] > 0


def trial(label: str, seed: int, share: float) -> dict[str, Any]:
    certified = {"36/255": share - 0.1, "72/255": share - 0.2, "108/255": share - 0.3}
    found = {"standard": share, "certified": certified}
    return {"study": "dial", "trial": label, "seed": seed, "held_out": found, "machine": "a processor"}


def test_a_table_shows_means_and_spread_in_the_order_of_the_study(record: Path) -> None:
    trials = [
        trial("certificate, gamma 1", 0, 0.5),
        trial("certificate, gamma 0", 0, 0.6),
        trial("certificate, gamma 0", 1, 0.64),
    ]
    record.write_text("".join(json.dumps(one) + "\n" for one in trials))
    rows = [line for line in lab.table("dial").splitlines() if line.startswith("| certificate")]
    assert rows == [
        "| certificate, gamma 0 | 62.0 | 52.0 | 42.0 | 32.0 | 47.0 ± 2.8 | 2 |",
        "| certificate, gamma 1 | 50.0 | 40.0 | 30.0 | 20.0 | 35.0 | 1 |",
    ]
    (axes,) = lab.dial_figure().axes
    (line,) = axes.get_lines()
    assert list(line.get_ydata()) == pytest.approx([62.0, 50.0])


def test_what_was_run_is_not_run_again(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lab, "run_trial", lambda study, label, seed, threads: trial(label, seed, 0.5) | {"core_minutes": 1}
    )
    monkeypatch.setattr("sys.argv", ["lab", "dial", "--only", "gamma 1"])
    lab.main()
    lab.main()
    assert [one["trial"] for one in lab.read_trials()] == ["certificate, gamma 1"]
