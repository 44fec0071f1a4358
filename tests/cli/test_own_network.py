"""A residual network of plain modules under every command, from its file alone."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import lipcert as lc

from .conftest import Command


class Block(nn.Module):
    """Of a class that no command can import."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm, self.act = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x + 0.5 * self.act(self.norm(self.conv(x)))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), lc.Center(4), Block(4), nn.MaxPool2d(2))
    model = nn.Sequential(lc.Normalize(0.5, 0.25), features, nn.Flatten(), nn.Tanh(), nn.Linear(16, 10))
    path = tmp_path / "own.safetensors"
    lc.save(lc.mirrored(model), path, input_shape=(1, 8, 8), classes="0123456789")
    return path


def test_every_command_takes_the_file(command: Command, own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("certify", own, "--data", "digits", "--count", 40, "--out", out).code == 0
    found = command("verify", out, "--sample", 8)
    assert (found.code, found.err) == (0, "")
    assert "8 of 40 certificates derived again" in found.out
    assert command("audit", own, "--data", "digits", "--count", 4, "--out", out).code == 0
    assert json.loads((out / "audit.json").read_text())["broken"] == 0
    assert command("report", out).code == 0
    assert "Mirrored" in (out / "report.html").read_text()
    assert command("export", own, "--onnx", tmp_path / "own.onnx").code == 0
    images = torch.rand(3, 1, 8, 8)
    exported, network = lc.export.load(tmp_path / "own.onnx"), lc.load(own)
    assert isinstance(network, lc.ProvedNetwork)
    torch.testing.assert_close(
        torch.from_numpy(exported.logits(images)).double(), network.logits(images), rtol=0, atol=1e-5
    )
