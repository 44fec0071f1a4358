"""lipcert certify --images with names that are no ordinary pictures, and what it says of radii."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from .conftest import Command

ODD = os.fsdecode(b"\xff\xfe.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pictures, of which one has a name that is not UTF-8."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("good.png", ODD):
        try:
            Image.new("L", (8, 8), 90).save(folder / name)
        except OSError:
            pytest.skip("this file system has names in UTF-8 only")
    return folder


@pytest.mark.parametrize("named", [(".",), ("good.png", ODD)], ids=["folder", "files"])
def test_a_name_that_is_not_utf8_is_one_line(
    command: Command, run: Path, folder: Path, tmp_path: Path, named: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    result = command("certify", run, "--images", *(folder / name for name in named), "--out", out)
    assert result.code == 2
    assert r"\udcff\udcfe.png: expected a file name in UTF-8, which records can hold; rename it" in result.err
    assert "the other picture is certified" in result.err
    _, *rows = map(json.loads, (out / "certificates.jsonl").read_text(encoding="utf-8").splitlines())
    assert sorted("error" in row for row in rows) == [False, True]
    for arguments in (("verify", out), ("report", out)):
        again = command(*arguments)
        assert "damaged" not in again.err
    assert command("verify", out).code == 0


def test_a_name_that_is_not_utf8_as_json(command: Command, run: Path, folder: Path) -> None:
    result = command("certify", run, "--images", folder, "--json")
    found = {Path(row["file"]).name: row for row in map(json.loads, result.out.splitlines())}
    assert result.code == 2
    assert found[r"\udcff\udcfe.png"]["error"].endswith("rename it")
    assert found["good.png"]["radius"] >= 0


def test_the_home_of_nobody(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = command("certify", run, "--images", "~nosuchuser/x.png")
    assert (result.code, result.err) == (
        2,
        "~nosuchuser/x.png: expected a picture or a folder: no such file or folder\n",
    )
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8)).save("~mine.png")
    assert command("certify", run, "--images", "~mine.png").code == 0
    assert command("certify", run, "--images", "~*.png").code == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(command: Command, run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    result = command("certify", run, "--images", tmp_path / "pipe.png")
    assert result.code == 2
    assert "pipe.png: expected a picture, got a pipe or a device; save it to a file first" in result.err


def test_the_original_is_the_decoded_picture(command: Command, run: Path, tmp_path: Path) -> None:
    """A grey file has one channel and its original three: nothing is claimed in the levels of the file."""
    Image.new("L", (20, 30), 90).save(tmp_path / "grey.png")
    said = " ".join(command("certify", run, "--images", tmp_path / "grey.png").out.split())
    assert "'In the original' about the decoded 8-bit RGB picture." in said
    assert "own pixels" not in said
