"""Files that anybody may have written: whatever they hold, no command ends with a fault of its own."""

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lipcert import files
from lipcert.attacks.audit import audit
from lipcert.data import to_float
from lipcert.paper.budget import Budget
from lipcert.paper.run import folder_name
from lipcert.paper.tables import tables
from lipcert.runs.naming import find_run
from lipcert.runs.run import Run

from .conftest import Command

QUICK, ALL = 200, 2000
ODD: list[Any] = [
    None, True, -1, 0, 3, 10**30, 1e308, -0.5, "", "x", "\ud800", "../x", "0" * 64, [], {}, [[]], [1, "a"],
    {"a": 1}, "DEEP", "NAN",
]  # fmt: skip
"""Values in the place of others; the last two become what no library writes: deep lists, and NaN."""
DEEP = "[" * 3000 + "]" * 3000
ZEROS = "0" * 64


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def change_value(text: str, draw: random.Random) -> str:
    """JSON with one value replaced, removed or doubled."""
    content = json.loads(text)
    path = draw.choice(list(places(content)) or [()])
    if not path:
        return json.dumps(draw.choice(ODD))
    *way, last = path
    parent = content
    for key in way:
        parent = parent[key]
    if draw.random() < 0.2:
        del parent[last]
    else:
        parent[last] = draw.choice(ODD)
    return json.dumps(content).replace('"DEEP"', DEEP).replace('"NAN"', "NaN")


def change_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bytes flipped, cut off, removed, doubled or inserted."""
    start = draw.randrange(len(content) + 1)
    stop = min(len(content), start + draw.choice([1, 2, 8, 100]))
    kind = draw.randrange(5)
    if kind == 0:
        noise = bytes(draw.randrange(256) for _ in range(stop - start))
        return content[:start] + noise + content[stop:]
    if kind == 1:
        return content[:start]
    if kind == 2:
        return content[:start] + content[stop:]
    if kind == 3:
        return content[:stop] + content[start:]
    return (
        content[:start]
        + draw.choice([b"\xff", b"\x00", b"\n", b"[" * 3000, b'"', b"1e999"])
        + content[start:]
    )


def change_json(content: bytes, draw: random.Random) -> bytes:
    return change_value(content.decode(), draw).encode("utf-8", "surrogatepass")


def change_line(content: bytes, draw: random.Random) -> bytes:
    """One line of JSON lines; the first one as often as all others together."""
    lines = content.decode().splitlines()
    place = 0 if draw.random() < 0.5 else draw.randrange(len(lines))
    lines[place] = change_value(lines[place], draw)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def change_toml(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode().splitlines()
    place = draw.randrange(len(lines))
    odd = [
        "-1",
        "0",
        "1" + "0" * 30,
        "1e308",
        "nan",
        "true",
        '"x"',
        '"/"',
        '""',
        "[]",
        "{a = 1}",
        DEEP,
        "1979-05-27",
    ]
    lines[place] = f"{lines[place].partition(' = ')[0]} = {draw.choice(odd)}"
    return ("\n".join(lines) + "\n").encode()


def change_tensors(content: bytes, draw: random.Random) -> bytes:
    """The header of a safetensors file, a description in it, or its numbers; hashes are made to fit."""
    length = int.from_bytes(content[:8], "little")
    header, numbers = json.loads(content[8 : 8 + length]), content[8 + length :]
    kind = draw.randrange(3)
    if kind == 0:
        spot = draw.randrange(max(1, len(numbers) - 8))
        odd = draw.choice(
            [b"\xff" * 8, b"\x00\x00\xf8\x7f\x00\x00\xf8\x7f", b"\x00" * 8, b"\xff\x7f\xff\x7f"]
        )
        numbers = numbers[:spot] + odd + numbers[spot + len(odd) :]
    elif kind == 1:
        metadata = header["__metadata__"]
        name = draw.choice(sorted(metadata))
        try:
            metadata[name] = change_value(metadata[name], draw)
        except ValueError:  # plain text
            metadata[name] = "x"
    else:
        return _with_header(change_value(json.dumps(header), draw).encode("utf-8", "surrogatepass"), numbers)
    return _with_header(json.dumps(header).encode(), numbers)


def _with_header(header: bytes, numbers: bytes) -> bytes:
    content = len(header).to_bytes(8, "little") + header + numbers
    stated = re.search(rb'sha256\\": \\"([0-9a-f]{64})', content)
    if stated is None:
        return content
    plain = content.replace(stated[1], ZEROS.encode(), 1)
    return plain.replace(ZEROS.encode(), hashlib.sha256(plain).hexdigest().encode(), 1)


Change = Callable[[bytes, random.Random], bytes]
CERTIFY = ("certify", "{run}", "--count", "3", "--out", "{tmp}/certified")
REPORT, VERIFY = ("report", "{run}"), ("verify", "{run}", "--sample", "1")
COMPARE = ("report", "{run}", "{whole}", "--out", "{tmp}/comparison.html")
PAPER = ("--rows", "5-cr", "--epochs", "1", "--width", "4", "--out", "{runs}")
"""A row that is done in `PAPER_RUN`; its table is set beside all finished runs of the folder."""
REPRODUCE = ("reproduce", "cifar10-main,cifar10-revised", *PAPER)
PLAN = ("reproduce", "cifar10-main", *PAPER, "--dry-run")
TRAIN = ("train", "--config", "{run}/config.toml", "--out", "{tmp}/new")
RESUME = ("train", "--out", "{run}", "--resume")
START = ("train", "--data", "digits", "--start-from", "{run}", "--out", "{tmp}/new")
RUN = "tiny"
PAPER_CONFIG = Budget(epochs=1, width=4).config(tables()["cifar10-main"].select(["5-cr"])[0].network, seed=0)
PAPER_RUN = folder_name(PAPER_CONFIG)
FORMATS: dict[str, tuple[Change, list[tuple[str, ...]]]] = {
    f"{RUN}/{files.CONFIG}": (change_toml, [REPORT, COMPARE, CERTIFY, REPRODUCE, START, TRAIN]),
    f"{RUN}/{files.ENVIRONMENT}": (change_json, [REPORT, REPRODUCE, START]),
    f"{RUN}/{files.SUMMARY}": (change_json, [REPRODUCE, START]),
    f"{RUN}/{files.METRICS}": (change_line, [REPORT, COMPARE]),
    f"{RUN}/{files.CERTIFICATES}": (change_line, [REPORT, COMPARE, VERIFY]),
    f"{RUN}/{files.AUDIT}": (change_json, [REPORT]),
    f"{RUN}/{files.ATTACKED}": (change_line, [REPORT]),
    f"{RUN}/{files.CHECKPOINT}": (change_tensors, [RESUME]),
    f"{RUN}/{files.LAST}": (change_tensors, [(*CERTIFY, "--weights", "last")]),
    f"{RUN}/{files.BEST}": (change_tensors, [START]),
    f"{RUN}/{files.PROVED}": (change_tensors, [CERTIFY, VERIFY]),
    f"{PAPER_RUN}/{files.CONFIG}": (change_toml, [REPRODUCE, PLAN]),
    f"{PAPER_RUN}/{files.ENVIRONMENT}": (change_json, [REPRODUCE]),
    f"{PAPER_RUN}/{files.SUMMARY}": (change_json, [REPRODUCE]),
    f"{PAPER_RUN}/{files.REVISED}": (change_json, [REPRODUCE]),
}
"""By file: how it is changed, and the commands that read it."""
PAIRS = [(name, command) for name, (_, commands) in FORMATS.items() for command in commands]


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with an audit, in a folder with a run of a row of the paper."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "runs" / RUN))
    found = find_run(run)
    images = found.test_images().images[:4]
    audit(found.network, to_float(images), attacks=["noise"], out=run)
    paper = run.parent / PAPER_RUN
    paper.mkdir()
    for name in (files.ENVIRONMENT, files.SUMMARY):
        shutil.copy(run / name, paper / name)
    (paper / files.CONFIG).write_text(PAPER_CONFIG.to_toml())
    accuracies = {"standard": 0.5, "certified": {"36/255": 0.25, "72/255": 0.125, "108/255": 0.0}}
    revised = {"accuracies": accuracies, "estimated_deviation": 1e-5, "proved_deviation": 1e-4}
    (paper / files.REVISED).write_text(json.dumps(revised))
    return run


def place(command: tuple[str, ...], whole: Path, tmp_path: Path) -> list[str]:
    """The command, with a fresh copy of all runs in place."""
    for used in ("runs", "new", "certified"):
        shutil.rmtree(tmp_path / used, ignore_errors=True)
    runs = tmp_path / "runs"
    shutil.copytree(whole.parent, runs)
    return [part.format(run=runs / RUN, runs=runs, whole=whole, tmp=tmp_path) for part in command]


def check(command: Command, whole: Path, tmp_path: Path, seed: int) -> None:
    """Change one file as `seed` says; every command that reads it must end in 0, 1 or 2."""
    draw = random.Random(seed)
    name = draw.choice(sorted(FORMATS))
    change, commands = FORMATS[name]
    arguments = place(draw.choice(commands), whole, tmp_path)
    file = tmp_path / "runs" / name
    content = file.read_bytes()
    content = (change_bytes if draw.random() < 0.25 else change)(content, draw)
    if draw.random() < 0.25:
        content = change_bytes(content, draw)
    file.write_bytes(content)
    result = command(*arguments)
    assert result.code in (0, 1, 2), f"seed {seed}: {name}, {arguments}: {result.err}"
    assert len(result.err.strip().splitlines()) <= 1, f"seed {seed}: {name}, {arguments}: {result.err}"
    assert not is_usage_error(result.err), f"seed {seed}: {name}, {arguments}: {result.err}"


def is_usage_error(said: str) -> bool:
    """Whether the command line was wrong, so that no file was read."""
    return "--help" in said or "No such" in said


def read_what_is_drawn(run: Run, _: object) -> dict[str, object]:
    """In the place of all pictures."""
    assert run.audit is None or run.audit.attacked
    assert run.metrics is not None
    assert run.certified_network
    return {}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained, and nothing drawn: a picture is the same slow code for all numbers."""
    monkeypatch.setattr("lipcert.training.trainer.Trainer.run", lambda self: None)
    monkeypatch.setattr("lipcert.training.trainer.Trainer.finish", lambda self: None)
    monkeypatch.setattr("lipcert.report.page.run_pictures", read_what_is_drawn)
    monkeypatch.setattr(
        "lipcert.report.page.comparison_pictures", lambda runs: [(run.records, run.metrics) for run in runs]
    )
    svgs = dict.fromkeys(["curve", "histogram", "histogram0", "histogram1"], "")
    monkeypatch.setattr("lipcert.report.page._svgs", lambda _: svgs)
    monkeypatch.setattr("lipcert.report.style.write_png", lambda *_: None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("arguments", sorted({arguments for _, arguments in PAIRS}), ids=" ".join)
def test_whole_files_are_read(
    command: Command, whole: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert command(*place(arguments, whole, tmp_path))[::2] == (0, "")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("name", "arguments"), PAIRS)
def test_every_command_reads_the_file_that_is_changed(
    command: Command, whole: Path, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    typed = place(arguments, whole, tmp_path)
    (tmp_path / "runs" / name).write_bytes(b"\xff")
    result = command(*typed)
    assert (result.code, Path(name).name in result.err) == (2, True), result.err
    assert not is_usage_error(result.err)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("part", range(10))
def test_no_damaged_file_is_a_fault(command: Command, whole: Path, tmp_path: Path, part: int) -> None:
    for seed in range(part * QUICK // 10, (part + 1) * QUICK // 10):
        check(command, whole, tmp_path, seed)


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("part", range(20))
def test_no_damaged_file_of_many_is_a_fault(command: Command, whole: Path, tmp_path: Path, part: int) -> None:
    for seed in range(QUICK + part * (ALL - QUICK) // 20, QUICK + (part + 1) * (ALL - QUICK) // 20):
        check(command, whole, tmp_path, seed)


@pytest.mark.parametrize("name", [b"\xff", b"a\nb", b"\xed\xa0\x80"], ids=ascii)
def test_class_folders_have_names_in_utf8(
    command: Command, trained: Path, tmp_path: Path, name: bytes
) -> None:
    photos = os.fsencode(tmp_path) + b"/photos"
    for place in (name, b"b"):
        os.makedirs(photos + b"/" + place)
        for number in range(3):
            Image.new("RGB", (8, 8)).save(os.fsdecode(photos + b"/" + place) + f"/{number}.png")
    result = command("certify", trained, "--data", os.fsdecode(photos), "--out", tmp_path / "out")
    assert (result.code, "is no name for a class" in result.err) == (2, True)
    os.rename(photos, photos + name)
    result = command("certify", trained, "--data", os.fsdecode(photos + name) + "/none")
    assert (result.code, "no such folder" in result.err) == (2, True)
