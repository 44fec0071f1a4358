"""lipcert demo: quickly here, in full among the slow tests."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from lipcert.cli import demo as module
from lipcert.runs.config import TrainConfig

from .conftest import Command
from .test_nothing_twice import TRAIN


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(data="digits", width=2, epochs=1, batch_size=256, lr=0.5)
    monkeypatch.setattr(module, "demo_config", lambda threads: config)


@pytest.mark.usefixtures("_quick")
def test_demo_tells_the_whole_story_and_can_be_run_again(
    command: Command, tmp_path: Path, counts: Counter[str]
) -> None:
    result = command("demo", "--out", tmp_path / "demo")
    assert (result.code, result.err) == (0, "")
    assert counts == dict.fromkeys(TRAIN, 1)  # nothing is done twice
    for text in ("1/3", "2/3", "3/3", "360 certificates attacked, 0 broken", "Open "):
        assert text in result.out
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "No certificate broke." in page
    again = json.loads(command("demo", "--out", tmp_path / "demo", "--json").out)
    share = re.search(r"classifies ([\d.]+)% of 360", result.out)
    assert share is not None
    assert f"{100 * again['standard']:.1f}" == share[1]


@pytest.mark.usefixtures("_quick")
def test_demo_leaves_other_runs_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('data = "digits"\nlr = 0.25\n')
    result = command("demo", "--out", tmp_path)
    assert (result.code, "holds another run" in result.err) == (2, True)


@pytest.mark.slow
def test_demo_is_as_good_as_it_says(command: Command, tmp_path: Path) -> None:
    result = command("demo", "--out", tmp_path / "demo", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["standard"] >= 0.95
    assert found["certified"]["36/255"] >= 0.90
