"""Records of pictures without labels: what verify refuses, and a report without accuracies."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lipcert import operators as op
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.records import read_records
from lipcert.data import load
from lipcert.report.own_pictures import by_prediction

from ..certify.test_independent import proved_tree, randn, rewrite
from ..report.test_page import check, words
from .conftest import Command

Line = dict[str, Any]
DIGIT, LARGE, SMALL, BROKEN = range(4)


@pytest.fixture
def own(command: Command, trained: Path, tmp_path: Path) -> Path:
    """Certificates of a digit of the network's size, a larger and a smaller picture; a fourth is damaged."""
    digits, photos = load("digits", split="test").images[:2, 0].numpy(), tmp_path / "photos"
    photos.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    pictures = [Image.fromarray(p) for p in (digits[0], noise, digits[1])]
    for number, picture in enumerate(pictures):
        (picture.resize((5, 5)) if number == SMALL else picture).save(photos / f"{number}.png")
    (photos / "3.png").write_bytes(b"no picture")
    assert command("certify", trained, "--images", photos, "--out", tmp_path / "own").code == 2
    return tmp_path / "own"


def change(folder: Path, edit: Callable[[list[Line]], None]) -> None:
    """Edit the lines of records; the first one is the header."""
    path = folder / "certificates.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_honest_pictures_are_verified(command: Command, own: Path) -> None:
    result = command("verify", own, "--sample", 1)
    assert (result.code, result.err) == (0, "")
    assert "1 of 3 certificates derived again" in result.out
    assert "The records are of 3 of the 4 pictures." in result.out
    told = " ".join(result.out.split())
    assert (
        "the other 2 certificates: only their files, sizes and radii in the originals were compared" in told
    )
    assert "label" not in told


def test_only_sampled_pictures_are_in_memory(command: Command, own: Path) -> None:
    change(own, lambda lines: lines[0].update(images=10**15))
    result = command("verify", own)
    assert (result.code, "3 of the 1,000,000,000,000,000 pictures" in result.out) == (0, True)


def labels(lines: list[Line]) -> None:
    for line in lines[1:4]:
        line["label"] = line["prediction"]


def hidden(error: object, **more: object) -> Callable[[list[Line]], None]:
    return lambda lines: lines.append(lines[1] | {"radius": 999.0, "error": error} | more)


DIGIT_LINE, LARGE_LINE, BROKEN_LINE = 1 + DIGIT, 1 + LARGE, 1 + BROKEN


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (labels, "line 2.label: expected null for a picture without a data set"),
        (hidden(None), "line 6.error: expected str, got None"),
        (hidden("unreadable"), "line 6: expected index, file and a reason under error"),
        (hidden("unreadable", index=3), "line 6: expected index, file and a reason under error"),
        (
            lambda lines: lines[BROKEN_LINE].update(error=""),
            "line 5: expected index, file and a reason",
        ),
        (lambda lines: lines[BROKEN_LINE].update(index=4), "index: expected a place among 4 pictures, got 4"),
        (lambda lines: lines[BROKEN_LINE].update(index=-1), "expected a place among 4 pictures, got -1"),
        (lambda lines: lines[BROKEN_LINE].update(index=1), "one line for each picture, got several for 1"),
        (lambda lines: lines.append(lines[1]), "one line for each picture, got several for 0"),
        (lambda lines: lines[0].pop("images"), "index: expected a place among -1 pictures, got 0"),
        (
            lambda lines: lines[LARGE_LINE].update(radius_original=None),
            "null is infinite, but the radius is",
        ),
        (
            lambda lines: lines[LARGE_LINE].update(radius_original=-1.0),
            "expected a number that is not negative",
        ),
        (
            lambda lines: lines[DIGIT_LINE].update(radius_original=0.1),
            "null, for resized_from is null",
        ),
        (lambda lines: lines[DIGIT_LINE].pop("sha256"), "line 2: lacks sha256"),
    ],
)
def test_false_lines_are_refused(
    command: Command, own: Path, edit: Callable[[list[Line]], None], message: str
) -> None:
    change(own, edit)
    for name in ("verify", "report"):
        result = command(name, own)
        assert (result.code, message in result.err) == (2, True), result.err
        assert len(result.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "values", "message"),
    [
        (LARGE_LINE, {"resized_from": "4000x4000"}, "written resized_from 4000x4000, but it is 30x20"),
        (LARGE_LINE, {"resized_from": None, "radius_original": None}, "resized_from None, but it is 30x20"),
        (DIGIT_LINE, {"resized_from": "8x8", "radius_original": 0.0}, "resized_from 8x8, but it is None"),
        (LARGE_LINE, {"radius_original": 50.0}, "written radius in the original 50, but at most"),
        (0, {"name": "other"}, "call the network 'other'"),
        (0, {"input_shape": [3, 224, 224]}, "the records speak of inputs of shape (3, 224, 224)"),
    ],
)
def test_false_statements_are_exit_1(
    command: Command, own: Path, line: int, values: Line, message: str
) -> None:
    change(own, lambda lines: lines[line].update(values))
    result = command("verify", own)
    assert (result.code, message in result.err) == (1, True), result.err


@pytest.mark.parametrize("name", ["none.png", "a\0b", "x" * 5000, "~nosuchuser/x.png", "/dev/zero"])
def test_pictures_that_are_not_there(command: Command, own: Path, name: str) -> None:
    change(own, lambda lines: lines[1].update(file=name))
    result = command("verify", own)
    assert (result.code, "expected a picture" in result.err) == (2, True), result.err


def save_network(shape: tuple[int, ...], file: Path) -> None:
    """Save a linear network of ten classes; one that takes a number without an axis is made by hand."""
    tree = op.Sequence((op.Reshape(), op.Matrix(randn(10, math.prod(shape)), None)))
    classes, taken = tuple(map(str, range(10))), shape or (1,)
    ProvedNetwork(proved_tree(tree, taken), taken, classes).save(file)
    if not shape:
        rewrite(file, lambda d: (d.update(input_shape=[]), d["operator"]["parts"][0].update(input_shape=[])))


@pytest.mark.parametrize("shape", [(12,), (2, 8, 8), (3, 8, 16), ()])
def test_networks_that_take_no_pictures(command: Command, own: Path, shape: tuple[int, ...]) -> None:
    file = own / "net.proved.safetensors"
    save_network(shape, file)
    result = command("verify", own, "--network", file)
    assert (result.code, "but pictures are square" in result.err) == (2, True), result.err


def test_pictures_none_of_which_could_be_read(command: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    command("certify", trained, "--images", tmp_path / "a.png", "--out", tmp_path / "own")
    for name in ("verify", "report"):
        result = command(name, tmp_path / "own")
        assert (result.code, len(result.err.strip().splitlines())) == (2, 1)
        assert "certifies nothing, because none of its 1 pictures could be read" in result.err


def test_report_of_pictures_names_those_left_out(command: Command, own: Path) -> None:
    assert command("report", own).code == 0
    page = (own / "report.html").read_text()
    assert page.count("3.png") == 1
    assert "cannot be read" in page[page.index("3.png") :]


def test_report_of_pictures_has_no_accuracy(command: Command, own: Path, tmp_path: Path) -> None:
    result = command("report", own, "--png", tmp_path / "png")
    assert (result.code, result.err) == (0, "")
    rows = [json.loads(line) for line in (own / "certificates.jsonl").read_text().splitlines()][1:4]
    radii = sorted(row["radius"] for row in rows)
    originals = sorted(row["radius_original"] or row["radius"] for row in rows)
    told = " ".join(result.out.split())
    assert "classified 3 pictures without labels. Each prediction is proved" in told
    assert f"median radius {radii[1]:.3f}"[:-1] in told
    assert f"largest {radii[2]:.3f}"[:-1] in told
    assert f"originals (decoded 8-bit RGB): median {originals[1]:.3f}"[:-1] in told
    assert [path.name for path in (tmp_path / "png").iterdir()] == ["histogram.png"]
    page = (own / "report.html").read_text(encoding="utf-8")
    check(page)
    text = words(page)
    for part in ("3 pictures certified", "1 left out", "2 of 3 pictures were cut", "30x20", "1.png"):
        assert part in text, part
    for part in ("classified correctly", "accuracy", "Accuracy", "test images", "prove nothing", "wrong"):
        assert part not in text, part
        assert part not in told, part


def test_pictures_stand_beside_no_run(command: Command, own: Path, run: Path, tmp_path: Path) -> None:
    result = command("report", run, own, "--out", tmp_path / "both.html")
    assert (result.code, "own holds pictures without labels" in result.err) == (2, True)


def test_rows_of_predictions(own: Path) -> None:
    records = read_records(own)
    rows = by_prediction(records)
    assert sum(row.pictures for row in rows) == 3
    assert {row.name for row in rows} == {records.header.classes[row.prediction] for row in records.rows}
    digit = next(row for row in records.rows if row.index == DIGIT)
    assert digit.picture is not None
    assert digit.radius_original == digit.radius


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lipconvnet5-cifar10", "`lipcert certify lipconvnet5-cifar10 --out FOLDER` writes one"),
        ("{own}/certificates.jsonl", "in it; run `lipcert report {own}`"),
        (
            "{photos}/0.png",
            "the folder of records, with certificates.jsonl in it; `lipcert certify N",
        ),
    ],
)
def test_a_report_is_of_a_folder(command: Command, own: Path, name: str, message: str) -> None:
    places = {"own": own, "photos": own.parent / "photos"}
    result = command("report", name.format(**places))
    assert (result.code, message.format(**places) in result.err) == (2, True), result.err


def test_copies_are_found_beside_their_records(command: Command, own: Path) -> None:
    change(own, lambda lines: [line.update(file=Path(line["file"]).name) for line in lines[1:]])
    shutil.copytree(own.parent / "photos", own, dirs_exist_ok=True)
    assert command("verify", own).code == 0
