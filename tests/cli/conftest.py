"""The command line in this process and in one of its own, and a tiny run to use it on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lipcert.cli import main


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["lipcert", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code = main()
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def in_its_own_process(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code apart from this process."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the digits, far too short to be good. Copy it before writing into it."""
    from lipcert.training.config import TrainConfig
    from lipcert.training.loop import train

    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(TrainConfig(data="digits", width=2, epochs=1, batch_size=256, lr=0.5), out)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may write into."""
    import shutil

    return Path(shutil.copytree(trained, tmp_path / "runs" / "tiny"))
