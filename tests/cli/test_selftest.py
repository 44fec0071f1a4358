"""`lipcert selftest`: what it prints, and its exit code."""

import pytest

from lipcert.cli.app import main
from lipcert.nn import checks
from lipcert.nn import selftest as module
from lipcert.nn.activations import MaxMin
from lipcert.nn.shape import Flatten


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["lipcert", "selftest", *arguments])
    return main()


def test_a_report_to_paste(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "examples", lambda: [(MaxMin(), (4, 2, 2))])
    assert run(monkeypatch, "--device", "cpu") == 0
    printed = capsys.readouterr().out
    for line in ("torch ", "Python ", "device cpu", "MaxMin() on (4, 2, 2), cpu", "9 checks passed on cpu"):
        assert line in printed
    assert "  pass  Evaluation computes the operator that freeze returns: difference 0" in printed


def test_every_layer_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = list(module.examples())
    monkeypatch.setattr(checks, "CHECKS", ())
    assert run(monkeypatch, "--device", "cpu") == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.endswith("), cpu")]
    assert len(heads) == len(set(heads)) == len(layers)
    assert "OrthogonalHead(6, 4 (linear): OrthogonalLinear(6, 4, method='bjorck')) on (6,), cpu" in heads


def test_a_failure_is_told_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Double(Flatten):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return 2 * super().forward(x)

    monkeypatch.setattr(module, "examples", lambda: [(Double(), (4, 2, 2))])
    assert run(monkeypatch, "--device", "cpu") == 1
    printed = capsys.readouterr()
    assert "  FAIL  Evaluation computes the operator that freeze returns: difference" in printed.out
    assert "checks failed on cpu; please report it" in printed.err


def test_devices_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--device", "nowhere") == 2
    assert "device: expected auto, cpu, cuda" in capsys.readouterr().err
