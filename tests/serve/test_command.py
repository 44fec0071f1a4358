"""lipcert serve before it serves: one sentence and exit code 2 for every bad input."""

import socket
import sys
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.cli import main


def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["lipcert", "serve", *map(str, arguments)])
    assert main() == 2
    return capsys.readouterr().err.strip()


def test_a_port_in_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], network_file: Path
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = fail(monkeypatch, capsys, network_file, "--port", port)
    assert said.startswith(f"port: {port} is in use on 127.0.0.1; stop what uses it, or choose another")


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "fastapi_offline"])
def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], network_file: Path, package: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("lipcert.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    said = fail(monkeypatch, capsys, network_file, "--port", 0)
    assert said == (
        f"serve: the package {package} is not installed; run pip install {package} (lipcert's extra serve)"
    )


def test_a_network_that_takes_no_pictures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "flat.proved.safetensors"
    lc.prove(torch.nn.Sequential(lc.Flatten(), torch.nn.Linear(4, 2)), input_shape=(4, 1, 1)).save(file)
    said = fail(monkeypatch, capsys, file, "--port", 0)
    assert said.startswith("images: the network takes 4x1x1, but pictures are square, with 1 or 3 channels")


def test_no_such_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(monkeypatch, capsys, "runs/none").startswith("runs/none: no such file or folder")
