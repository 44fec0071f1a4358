"""The command line in this process and in one of its own, and a tiny run to use it on."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lipcert.certify import network_file
from lipcert.certify.independent import reading
from lipcert.certify.network import ProvedNetwork
from lipcert.cli import main
from lipcert.data import sources
from lipcert.data.dataset import Dataset
from lipcert.models import storage


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
    from lipcert.runs.config import TrainConfig
    from lipcert.training.loop import train

    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(TrainConfig(data="digits", width=2, epochs=1, batch_size=256, lr=0.5), out)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may write into."""
    import shutil

    return Path(shutil.copytree(trained, tmp_path / "runs" / "tiny"))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each costly thing was done since the last `clear`."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str, say: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            found[say(*arguments, **options)] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    count(sources, "load_digits", lambda **options: f"load {options['split']} images")
    count(network_file, "_header", lambda content: "read a proved network")
    count(reading, "_check_hash", lambda *_: "read a proved network independently")
    count(storage, "safe_open", lambda file, **_: f"read {Path(file).name}")
    count(import_module("lipcert.certify.prove"), "read_model", lambda *_: "prove a model")
    count(ProvedNetwork, "certify", lambda network, images, **_: f"certify {len(images)} images")
    hashed = cached_property(lambda self: found.update([f"hash {self.split} images"]) or original(self))
    original = Dataset.fingerprint.func  # type: ignore[attr-defined]
    hashed.__set_name__(Dataset, "fingerprint")
    monkeypatch.setattr(Dataset, "fingerprint", hashed)
    return found
