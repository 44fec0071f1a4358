"""lipcert export: from a run to a file that certifies."""

import json
import sys
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.certify.prove import prove
from lipcert.cli import main
from lipcert.models.lipconvnet import lipconvnet
from lipcert.models.storage import load, save


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What is left of a run when only its network is looked at."""
    torch.manual_seed(0)
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    save(lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1), folder / "best.safetensors")
    (folder / "config.toml").write_text('data = "digits"\n')
    return folder


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["lipcert", *map(str, arguments)])
    return main()


def test_a_run_becomes_a_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.onnx"
    assert command(monkeypatch, "export", run, "--onnx", file) == 0
    said = capsys.readouterr().out
    assert "Proved Lipschitz bound" in said
    assert "measured and not proved" in said
    exported = lc.export.load(file)
    assert exported.metadata.classes == tuple("0123456789")
    images = lc.data.to_float(lc.data.load("digits", split="test").images[:20])
    expected = prove(load(run / "best.safetensors")).certify(images)
    torch.testing.assert_close(exported.certify(images).radius, expected.radius, rtol=0, atol=1e-4)


def test_json(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "export", run, "--onnx", tmp_path / "b.onnx", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] == (tmp_path / "b.onnx").stat().st_size
    assert found["difference"] < 1e-4
    assert found["rounding"] >= 40 * found["difference"]
    assert (found["input_shape"], found["classes"]) == ([1, 8, 8], 10)


def test_a_proved_file_becomes_a_file_that_names_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = prove(load(run / "best.safetensors"), classes="abcdefghij")
    network.save(tmp_path / "net.proved.safetensors")
    file = tmp_path / "c.onnx"
    assert command(monkeypatch, "export", tmp_path / "net.proved.safetensors", "--onnx", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["network_sha256"] == network.hash
    assert lc.export.load(file).metadata.classes == tuple("abcdefghij")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "runs/a"], "Missing option '--onnx'"),
        (["export", "--onnx", "a.onnx"], "Missing argument 'NETWORK'; see lipcert export --help"),
        (["export", "runs/nothing", "--onnx", "a.onnx"], "runs/nothing: no such file or folder"),
        (["export", "runs/a", "--onnx", "nowhere/a.onnx"], "nowhere/a.onnx: cannot write there"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run.parents[1])
    assert command(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1
