"""Test images of a folder are certified before they are rounded, and their originals get radii as well."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lipcert as lc
from lipcert.certify.curve import shown
from lipcert.certify.records import Images, write_records
from lipcert.cli import main
from lipcert.data import image
from lipcert.data.folder import find_images
from lipcert.data.sources import load
from lipcert.files import CERTIFICATES
from lipcert.pictures import about
from lipcert.runs.naming import find_run

from .conftest import Command

SIZES = ((8, 8), (30, 20), (9, 40), (6, 5))
"""Width and height: of the network, larger, and smaller."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("net") / "tiny.proved.safetensors"
    model = lc.lipconvnet(5, num_classes=2, width=2, image_size=8)
    lc.prove(model, classes=("ant", "owl")).save(file)
    return file


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, numbers = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split in ("train", "test"):
        for kind in ("ant", "owl"):
            (root / split / kind).mkdir(parents=True)
            for number, (width, height) in enumerate(SIZES):
                levels = numbers.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(levels).save(root / split / kind / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def written(network: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines of the records of the test images."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sys.argv", ["lipcert", "certify", f"{network}", "--data", f"{photos}", "--out", f"{out}"]
        )
        assert main() == 0
    return (out / CERTIFICATES).read_text().splitlines()


@pytest.fixture
def out(written: list[str], network: Path, tmp_path: Path) -> Path:
    header = json.loads(written[0]) | {"network": str(network)}
    save(tmp_path, [header, *map(json.loads, written[1:])])
    return tmp_path


def save(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / CERTIFICATES).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_a_test_image_has_the_certificate_of_its_file(
    command: Command, network: Path, photos: Path, written: list[str]
) -> None:
    rows = [json.loads(line) for line in written[1:]]
    files = find_images(photos, split="test").files
    result = command("certify", network, "--images", *files, "--json")
    own = [json.loads(line) for line in result.out.splitlines()]
    assert [row["resized_from"] for row in rows] == [None, "30x20", "9x40", "6x5"] * 2
    for row, alone in zip(rows, own, strict=True):
        assert row["resized_from"] == alone["resized_from"]
        # To the last bits, which depend on the batch. Rounding to 8 bits would change the fourth digit.
        assert row["margin"] == pytest.approx(alone["margin"], rel=1e-9)
        assert row["radius"] == pytest.approx(alone["radius"], rel=1e-6)
        if row["resized_from"] is None:
            assert row["radius_original"] is alone["radius_original"] is None
        else:
            assert row["radius_original"] == pytest.approx(alone["radius_original"], rel=1e-6)


def test_the_report_has_the_median_of_the_originals(command: Command, out: Path) -> None:
    lines = [json.loads(text) for text in (out / CERTIFICATES).read_text().splitlines()]
    for row in lines[1:]:
        row["label"] = row["prediction"]
    lines[2]["label"] = 1 - lines[2]["label"]  # a wrong prediction counts as 0
    save(out, lines)
    assert command("report", out).code == 0
    page = " ".join((out / "report.html").read_text().split())
    originals = [
        row["radius"] if row["resized_from"] is None else row["radius_original"] for row in lines[1:]
    ]
    fourth = sorted([0.0, originals[0], *originals[2:]])[3]
    assert "6 of 8 pictures were cut to their centre square and resized to 8x8 pixels" in page
    assert f"their median is {shown(fourth)}, and the records" in page


def test_every_picture_is_decoded_once(network: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    real = image.decode
    monkeypatch.setattr(image, "decode", lambda file, name: decoded.append(name) or real(file, name))
    find_run(network).test_images(str(photos))
    assert sorted(decoded) == sorted(map(str, find_images(photos, split="test").files))


def test_what_is_stated_about_originals_is_verified(command: Command, out: Path) -> None:
    result = command("verify", out, "--sample", 8)
    assert (result.code, result.err) == (0, "")
    assert "8 of 8 certificates derived again" in result.out


@pytest.mark.parametrize(
    ("line", "values", "message"),
    [
        (2, {"radius_original": 50.0}, "image 1: written radius in the original 50, but at most"),
        (2, {"resized_from": "300x200"}, "image 1: written resized_from 300x200, but it is 30x20"),
        (2, {"resized_from": None, "radius_original": None}, "written resized_from None, but it is 30x20"),
        (1, {"resized_from": "16x16", "radius_original": 0.0}, "written resized_from 16x16, but it is None"),
    ],
)
def test_false_originals_are_found(
    command: Command, out: Path, line: int, values: dict[str, Any], message: str
) -> None:
    lines = [json.loads(text) for text in (out / CERTIFICATES).read_text().splitlines()]
    lines[line] |= values
    save(out, lines)
    result = command("verify", out, "--sample", 1)
    assert (result.code, message in result.err) == (1, True), result.err


def test_images_of_one_size_have_no_originals(command: Command, tmp_path: Path) -> None:
    digits, file = load("digits", split="test"), tmp_path / "net.proved.safetensors"
    model = lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1)
    network = lc.prove(model, classes=digits.classes)
    network.save(file)
    found = network.certify(digits.pixels[:4])
    records = write_records(tmp_path, found, about(digits), network=network, file=file)
    lines = [json.loads(text) for text in records.read_text().splitlines()]
    assert "radius_original" not in lines[1]
    lines[1] |= {"resized_from": "9x9", "radius_original": 0.0}
    save(tmp_path, lines)
    result = command("verify", tmp_path, "--sample", 1)
    assert (result.code, "image 0: written resized_from 9x9, but it is None" in result.err) == (1, True)


def test_records_of_rounded_images_still_hold(
    command: Command, network: Path, photos: Path, tmp_path: Path
) -> None:
    images = load(photos, split="test", image_size=8)
    assert images.exact is not None
    proved = lc.load(network)
    rounded = Images(images.name, images.fingerprint, len(images), images.labels)
    found = proved.certify(lc.data.to_float(images.images))
    write_records(tmp_path, found, rounded, network=proved, file=network)
    assert command("verify", tmp_path, "--sample", 8).code == 0


def test_the_pixels_of_a_test_set_are_the_exact_ones(network: Path, photos: Path) -> None:
    images = find_run(network).test_images(str(photos))
    assert images.exact is not None
    assert images.pixels is images.exact
    assert 0 < float((images.exact * 255 - images.images).abs().max()) <= 0.5


def test_training_images_and_pictures_of_the_right_size_are_kept_once(photos: Path) -> None:
    assert load(photos, split="train", image_size=8).exact is None
    part = load(photos, split="test", image_size=8).subset([0, 4])
    assert part.sizes == ((8, 8), (8, 8))
    assert part.exact is not None
    np.testing.assert_array_equal(part.exact.numpy(), lc.data.to_float(part.images).double().numpy())
