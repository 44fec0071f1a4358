"""lipcert compare: the same network with several convolutions."""

import json
from pathlib import Path

import pytest

import lipcert as lc
from lipcert.nn.contract import CONVOLUTIONS
from lipcert.runs.summary import RunSummary

from .conftest import Command

SMALL = ("--data", "digits", "--epochs", 1, "--width", 2, "--threads", 1)


def test_every_convolution_is_trained_and_the_best_comes_first(command: Command, tmp_path: Path) -> None:
    found = command("compare", "aol", "soc", *SMALL, "--series", "wide", "--out", tmp_path)
    assert found.code == 0, found.err
    rows = json.loads((tmp_path / "comparison.json").read_text())
    assert {row["conv"] for row in rows} == {"aol", "soc"}
    assert rows[0]["certified"]["36/255"] >= rows[1]["certified"]["36/255"]
    for row in rows:
        model = lc.load(tmp_path / row["conv"] / "best.safetensors")
        assert row["parameters"] == sum(p.numel() for p in model.parameters())
        assert row["memory"] > 3 * 4 * row["parameters"], "weights, gradients and momentum"
        test = RunSummary.read(tmp_path / row["conv"]).test["best"]
        assert (row["standard"], row["certified"]) == (test["standard"], test["certified"])
        assert row["conv"] in found.out
    assert "</html>" in (tmp_path / "comparison.html").read_text()
    again = command("compare", "aol", "soc", *SMALL, "--series", "wide", "--out", tmp_path, "--json")
    assert [row["conv"] for row in json.loads(again.out)] == [row["conv"] for row in rows]


def test_a_convolution_that_fails_does_not_stop_the_others(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(lc.SOC):
        def forward(self, x):  # type: ignore[no-untyped-def]
            raise RuntimeError("no room")

    monkeypatch.setitem(CONVOLUTIONS.registered, "broken", Broken)
    found = command("compare", "broken", "bcop", *SMALL, "--out", tmp_path)
    assert found.code == 2
    assert "1 of 2 runs failed; the first is broken: RuntimeError: no room" in " ".join(found.err.split())
    assert [row["conv"] for row in json.loads((tmp_path / "comparison.json").read_text())] == ["bcop"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sok",), "soc, got 'sok'; did you mean 'soc'?"),
        (("soc", "soc"), "CONVOLUTION: expected different names, got soc soc"),
        (("--minutes", 1, "--epochs", 1), "minutes: replaces --epochs; give only one of the two"),
    ],
)
def test_wrong_arguments(
    command: Command, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    found = command("compare", *arguments, "--data", "digits", "--out", tmp_path / "out")
    assert found.code == 2
    assert message in " ".join(found.err.split())
    assert not (tmp_path / "out").exists()
