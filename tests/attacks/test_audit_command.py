"""lipcert audit: what it prints, writes and exits with."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

import lipcert as lc
from lipcert.attacks import audit as audit_module
from lipcert.cli.audit import audit
from lipcert.errors import ArgumentError, BrokenCertificateError, CheckpointError, LipcertError

app = typer.Typer()
app.command()(audit)
QUICK = ("--count", "5", "--steps", "10", "--restarts", "1", "--attacks", "noise,pgd")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a finished run."""
    folder = tmp_path / "run"
    folder.mkdir()
    torch.manual_seed(0)
    lc.save(
        lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1), folder / "best.safetensors"
    )
    (folder / "config.toml").write_text('data = "digits"\n')
    return folder


def call(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, LipcertError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_is_audited_on_its_own_data(run: Path) -> None:
    output = call(run, *QUICK)
    assert "broken certificates" in output
    assert "proved, rounding included" in output
    assert "0/2 noise" in output
    assert "2/2 done" in output
    summary = json.loads((run / "audit.json").read_text())
    assert summary["images"] == 5
    assert summary["broken"] == 0
    assert summary["settings"]["steps"] == 10
    assert summary["attacks"] == ["noise", "pgd"]
    assert len((run / "audit.jsonl").read_text().splitlines()) == 5


def test_a_refused_audit_leaves_nothing_behind(run: Path) -> None:
    call(run, *QUICK)
    before = sorted(run.rglob("*"))
    with pytest.raises(ArgumentError, match="did you mean 'pgd'"):
        call(run, "--count", "3", "--attacks", "pgdd")
    assert sorted(run.rglob("*")) == before


def test_a_smaller_audit_does_not_hide_a_larger_one(run: Path) -> None:
    call(run, *QUICK)
    larger = (run / "audit.json").read_bytes()
    fewer = ("--count", "3", *QUICK[2:])
    assert "audit-first3" in call(run, *fewer)
    assert "audit-first5" in call(run, *QUICK[:-1], "noise")
    assert json.loads((run / "audit-first3" / "audit.json").read_text())["images"] == 3
    assert (run / "audit.json").read_bytes() == larger
    torch.manual_seed(1)  # another network: what was known is of no use any more
    lc.save(lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1), run / "best.safetensors")
    call(run, *fewer)
    assert json.loads((run / "audit.json").read_text())["images"] == 3


def test_a_damaged_audit_is_replaced(run: Path) -> None:
    (run / "audit.json").write_text('{"images": 9')
    call(run, *QUICK)
    assert json.loads((run / "audit.json").read_text())["images"] == 5


def test_an_audit_of_something_else_has_its_own_folder(run: Path) -> None:
    lc.save(lc.load(run / "best.safetensors"), run / "model.safetensors")
    call(run, "--weights", "last", *QUICK)
    assert not (run / "audit.json").exists()
    assert (run / "audit-last" / "audit.json").exists()


def test_json_alone(run: Path) -> None:
    assert json.loads(call(run, "--json", *QUICK))["broken"] == 0


def test_a_saved_network_needs_its_data(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"data: .* does not say which images it is for; pass --data"):
        call(run / "best.safetensors", *QUICK)
    call(run / "best.safetensors", "--data", "digits", "--out", tmp_path / "out", *QUICK)
    assert (tmp_path / "out" / "audit.json").exists()


def test_a_broken_certificate_fails_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = lc.ProvedNetwork.certify

    def too_much(network: lc.ProvedNetwork, images: torch.Tensor) -> SimpleNamespace:
        cert = true(network, images)
        return SimpleNamespace(prediction=cert.prediction, radius=10 * cert.radius + 1)

    monkeypatch.setattr(lc.ProvedNetwork, "certify", too_much)
    with pytest.raises(
        BrokenCertificateError, match=r"5 of 5 certificates are broken.*counter-examples are in"
    ):
        call(run, *QUICK)
    assert len(list(run.glob("broken-*.safetensors"))) == 5
    assert json.loads((run / "audit.json").read_text())["broken"] == 5


def test_which_weights(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors"):
        call(run, "--weights", "last", *QUICK)
    with pytest.raises(
        ArgumentError, match="weights: expected one of best, last, got 'lost'; did you mean 'last'"
    ):
        call(run, "--weights", "lost", *QUICK)


def test_help_lists_every_attack() -> None:
    output = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    assert all(name in output for name in audit_module.ATTACKS)


def test_every_option_reaches_the_attacks(run: Path) -> None:
    options = {"steps": 7, "restarts": 3, "targets": 2, "seed": 5}
    flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    summary = json.loads(call(run, "--json", "--count", "2", "--attacks", "noise", "--box", *flags))
    assert summary["settings"] == {**options, "box": True, "inside": 0.999}
