"""lipcert certify and report, on a tiny run and on pictures."""

import hashlib
import json
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lipcert as lc
from lipcert.certify.curve import RADII, shown
from lipcert.certify.records import read_records
from lipcert.data import load, to_float
from lipcert.errors import CheckpointError
from lipcert.runs.class_names import CIFAR100, class_names
from lipcert.runs.config import TrainConfig
from lipcert.runs.run import Run
from lipcert.training.loop import train

from .conftest import Command


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """A digit at the network's size, and a colour picture at another."""
    digit = Image.fromarray(load("digits", split="test").images[0, 0].numpy())
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    paths = [tmp_path / "digit.png", tmp_path / "wide [photo].png"]
    digit.save(paths[0])
    wide.save(paths[1])
    return paths


def test_certify_writes_records_and_report(command: Command, run: Path) -> None:
    result = command("certify", run)
    assert (result.code, result.err) == (0, "")
    digits = load("digits", split="test")
    expected = lc.certify(lc.load(run / "best.safetensors"), to_float(digits.images))
    records = read_records(run)
    assert torch.equal(records.outcomes.radius, expected.radius)
    assert torch.equal(records.outcomes.prediction, expected.prediction)
    accuracy = lc.certified_accuracy(expected, digits.labels)
    assert f"{accuracy.standard:.2%}" in result.out
    assert f"{accuracy[36 / 255]:.2%}" in result.out
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "<h1>tiny</h1>" in page


def test_json_is_for_scripts(command: Command, run: Path) -> None:
    result = command("certify", run, "--json", "--weights", "last", "--count", 10)
    found = json.loads(result.out)
    assert found["images"] == 10
    assert read_records(Path(found["records"]).parent).header.network_sha256 == found["network_sha256"]
    assert set(found["certified"]) == {"36/255", "72/255", "108/255"}
    # A part of the images does not replace the records of all of them.
    assert Path(found["records"]) == run / "certify-first10-last" / "certificates.jsonl"
    assert Path(found["report"]).is_file()


def test_the_numbers_of_the_result_are_those_of_the_certificates(command: Command, run: Path) -> None:
    digits = load("digits", split="test")
    cert = lc.certify(lc.load(run / "best.safetensors"), to_float(digits.images))
    accuracy = lc.certified_accuracy(cert, digits.labels)
    median = torch.where(cert.prediction == digits.labels, cert.radius, 0.0).median().item()
    found = json.loads(command("certify", run, "--json").out)
    assert found["standard"] == accuracy.standard
    assert found["certified"] == {name: accuracy[radius] for name, radius in RADII.items()}
    assert len({found["standard"], *found["certified"].values()}) > 1, "the test tells no columns apart"
    assert (found["median_radius"], found["lipschitz"]) == (median, cert.lipschitz)
    shares = [accuracy.standard, *accuracy.certified.values()]
    row = r"[^0-9]+".join(re.escape(f"{share:.2%}") for share in shares)
    assert re.search(rf"{row}[^0-9]+{re.escape(shown(median))}", command("certify", run).out)


def test_records_of_a_file_do_not_replace_those_of_a_run(
    command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parents[1])
    before = (run / "certificates.jsonl").read_bytes()
    (run / "best.safetensors").rename(f"{run.name}.safetensors")
    result = command("certify", f"{run.name}.safetensors", "--data", "digits", "--count", 3)
    assert (result.code, result.err.strip()) == (
        2,
        f"out: runs/{run.name}/digits is in the folder of a run; name another one with --out",
    )
    assert (run / "certificates.jsonl").read_bytes() == before


def test_records_of_files_do_not_replace_each_other(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    certify = ("certify", run / "best.safetensors", "--data", "digits", "--count", 3)
    assert command(*certify).code == 0
    records = tmp_path / "runs/best/digits/certify-first3/certificates.jsonl"
    before = records.read_bytes()
    assert command(*certify).code == 0  # the same network may
    lc.save(lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1), "best.safetensors")
    refused = command("certify", "best.safetensors", "--data", "digits", "--count", 3)
    assert (refused.code, refused.err.strip()) == (
        2,
        "out: runs/best/digits/certify-first3 is about another network; name another folder with --out",
    )
    assert records.read_bytes() == before


@pytest.mark.parametrize("kinds", [("ant", "owl"), ("ant", "test")])
def test_a_folder_with_other_files_than_at_training_is_refused(
    command: Command, tmp_path: Path, kinds: tuple[str, str]
) -> None:
    """Its test images would be drawn anew, from images that were trained on."""
    photos = tmp_path / "photos"
    numbers = np.random.default_rng(0)
    for kind in kinds:
        (photos / kind).mkdir(parents=True)
        for number in range(10):
            picture = numbers.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(picture).save(photos / kind / f"{number}.png")
    out = tmp_path / "runs/own"
    train(TrainConfig(data=str(photos), width=2, epochs=1, batch_size=8, threads=1), out)
    certified = command("certify", out)
    assert (certified.code, "resized" in certified.out) == (0, False)
    (photos / "ant" / "new.png").write_bytes((photos / "ant" / "0.png").read_bytes())
    for more in ([], ["--data", photos / ".." / "photos"]):
        refused = command("certify", out, *more)
        assert refused.code == 2
        assert "holds other files than when own was trained" in refused.err


def test_pictures_of_ones_own(command: Command, run: Path, pictures: list[Path], tmp_path: Path) -> None:
    result = command("certify", run, "--images", *pictures, "--json", "--out", tmp_path / "mine")
    assert (result.code, result.err) == (0, "")
    first, second = map(json.loads, result.out.splitlines())
    expected = lc.certify(
        lc.load(run / "best.safetensors"), to_float(load("digits", split="test").images[:1])
    )
    assert first["prediction"] == str(int(expected.prediction))
    assert first["runner_up"] == str(int(expected.runner_up))
    assert first["radius"] == pytest.approx(float(expected.radius), rel=1e-12)
    assert (first["resized_from"], first["radius_original"]) == (None, None)
    assert second["resized_from"] == "30x20"
    # From 20 to 8 pixels, an average over 2.5 x 2.5: a change spreads, and the original may change more.
    assert second["radius_original"] == pytest.approx(2.5 * second["radius"], rel=0.05)
    assert first["sha256"] == hashlib.sha256(pictures[0].read_bytes()).hexdigest()
    written = read_records(tmp_path / "mine")
    assert written.outcomes.radius.tolist() == [first["radius"], second["radius"]]
    assert written.header.network_sha256 == first["network_sha256"]
    assert written.network_file.is_file()
    verified = command("verify", tmp_path / "mine")
    assert (verified.code, "2 of 2 certificates derived again" in verified.out) == (0, True)
    file = tmp_path / "mine/certificates.jsonl"
    honest, false = f'"radius_original": {second["radius_original"]}', '"radius_original": 50.0'
    file.write_text(file.read_text().replace(honest, false))
    invented = command("verify", tmp_path / "mine")
    assert (invented.code, "written radius in the original 50, but" in invented.err) == (1, True)
    Image.new("L", (8, 8)).save(pictures[0])
    changed = command("verify", tmp_path / "mine")
    assert (changed.code, "digit.png: has changed since it was certified" in changed.err) == (2, True)


def test_python_certifies_the_same_picture(command: Command, run: Path, pictures: list[Path]) -> None:
    network = lc.load(run)
    assert isinstance(network, lc.ProvedNetwork)
    for file in pictures:  # one of the network's size, one of another
        found = json.loads(command("certify", run, "--images", file, "--json").out)
        expected = network.certify(lc.read_picture(file, network))
        assert found["radius"] == float(expected.radius)
        assert found["margin"] == float(expected.margin)
        assert found["prediction"] == network.classes[int(expected.prediction)]


def test_the_run_may_come_last(command: Command, run: Path, pictures: list[Path]) -> None:
    result = command("certify", "--images", *pictures, run, "--json")
    files = [json.loads(line)["file"] for line in result.out.splitlines()]
    assert files == [str(picture) for picture in pictures]


def test_table_of_pictures(command: Command, run: Path, pictures: list[Path]) -> None:
    result = command("certify", run, "--images", pictures[0], "--images", pictures[1])
    assert "wide [photo].png" in result.out
    assert "1 of 2 pictures were cut to their centre square and resized to 8x8" in result.out
    assert "In the original" in result.out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seventy digits in two folders, more than one batch; two are broken, one is hidden, one no picture."""
    digits = load("digits", split="test").images[:70, 0].numpy()
    for number, digit in enumerate(digits):
        place = tmp_path / "photos" / str(number % 2) / f"{number:03}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digit).save(place)
    broken = tmp_path / "photos/0/010.png", tmp_path / "photos/1/069.png"
    for place in broken:
        place.write_bytes(place.read_bytes()[:40])
    (tmp_path / "photos/notes.txt").write_text("no picture")
    (tmp_path / "photos/.hidden.png").write_bytes(b"")
    return tmp_path / "photos"


@pytest.mark.parametrize("pattern", ["", "**/*.png", "?"])
def test_a_folder_of_pictures(
    command: Command, run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Broken pictures are lines with a reason, the rest goes on, and what is written can be verified."""
    result = command("certify", run, "--images", folder / pattern)
    assert result.code == 2
    first, second, summary = result.err.strip().splitlines()
    assert "photos/0/010.png: cannot be read as a PNG, JPEG or WebP image" in first
    assert "photos/1/069.png: cannot be read as a PNG, JPEG or WebP image" in second
    assert summary == "images: 2 of 70 pictures were left out"
    assert "tiny: 68 pictures, with median radii" in result.out
    _, *lines = (run / "pictures/certificates.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["index"] for row in rows] == list(range(70))
    assert [row["index"] for row in rows if "error" in row] == [5, 69]
    found = read_records(run / "pictures")
    network = lc.load(run)
    assert isinstance(network, lc.ProvedNetwork)
    order = [number for parity in (0, 1) for number in range(parity, 70, 2) if number not in (10, 69)]
    expected = network.certify(to_float(load("digits", split="test").images[order]))
    assert torch.allclose(found.outcomes.radius, expected.radius, rtol=1e-9, atol=0)
    verified = command("verify", run / "pictures", "--sample", 3)
    assert (verified.code, "3 of 68 certificates derived again" in verified.out) == (0, True)


def test_damaged_camera_data_is_no_reason_to_warn(command: Command, run: Path, tmp_path: Path) -> None:
    cut_off = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 5)  # five entries follow, says the header
    Image.new("RGB", (20, 20)).save(tmp_path / "old.jpg", exif=cut_off)
    result = command("certify", run, "--images", tmp_path / "old.jpg")
    assert (result.code, result.err) == (0, "")


def test_records_of_other_pictures_are_kept(command: Command, run: Path, folder: Path) -> None:
    for name in ("010.png", "069.png"):
        next(folder.rglob(name)).unlink()
    for expected in ("pictures", "pictures-2", "pictures-3"):
        result = command("certify", run, "--images", folder)
        assert (result.code, f"Records: {run / expected}/certificates.jsonl" in result.out) == (0, True)


def test_what_was_certified_survives_an_interruption(
    command: Command, run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, certify = [], lc.ProvedNetwork.certify
    file = run / "mine/certificates.jsonl"

    def interrupted(self: lc.ProvedNetwork, images: torch.Tensor) -> object:
        calls.append(len(images))
        if len(calls) == 2:
            assert len(file.read_text().splitlines()) == 1 + 64  # before anything closes the file
            raise KeyboardInterrupt
        return certify(self, images)

    monkeypatch.setattr(lc.ProvedNetwork, "certify", interrupted)
    result = command("certify", run, "--images", folder, "--out", run / "mine")
    assert (result.code, result.out.splitlines()) == (130, ["certifying 70 pictures"])
    assert result.err.strip() == f"interrupted; 64 of 70 pictures are in {file}"
    assert len(file.read_text().splitlines()) == 1 + 64
    assert len(read_records(run / "mine").rows) == calls[0] == 63


def test_what_is_proved_is_called_so(command: Command, run: Path, pictures: list[Path]) -> None:
    said = " ".join(command("certify", run, "--images", pictures[0]).out.split())
    assert "(proved, rounding included)" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}x"], "tinyx: no such file or folder, and no network of this name ships with lipcert; did"),
        (["lipconvnet5-cifar1"], "ships with lipcert; did you mean 'lipconvnet5-cifar10'?"),
        (["{tmp}"], "is not the folder of a run; expected best.safetensors in it"),
        (["{tmp}/bad.safetensors"], "not a safetensors file, or a truncated one"),
        (["{run}/best.safetensors"], "does not say which images it is for; pass --data"),
        (["{run}", "--weights", "lst"], "weights: expected one of best, last, got 'lst'; did you mean"),
        (["{run}", "--data", "digit"], "did you mean 'digits'?"),
        (["{run}", "--data", "{tmp}/none"], "no such folder"),
        (["{run}", "--device", "abacus"], "device: expected auto, cpu, cuda"),
        (["{run}", "--device", "meta"], "device: expected auto, cpu, cuda"),
        (["{run}", "--images", "{tmp}/bad.png"], "bad.png: cannot be read as a PNG, JPEG or WebP image"),
        (["{run}", "--images", "{tmp}/none.png"], "none.png: expected a picture or a folder: no such file"),
        (["{run}", "--images", "{tmp}/*.jpg"], "*.jpg: expected pictures, but nothing matches this pattern"),
        (["{run}", "--images", "{tmp}/run*"], "run*: expected pictures, but what matches this pattern has"),
        (["{run}", "--images", "{tmp}/runs"], "runs: expected pictures in this folder, got no PNG, JPEG or"),
        (["{tmp}/bad.png"], "bad.png is a picture; name a network, and the picture by --images"),
        (["{run}", "--images", "{tmp}/wide [photo].png", "--no-resize"], "is 30x20, but the network"),
        (["{run}", "--images", "{tmp}/digit.png", "--data", "digits"], "--data and --count choose test"),
        (["{run}", "{run}"], "NETWORK: expected one network, got 2; to compare runs use lipcert report"),
        (["lipconvnet5-cifar10", "--weights", "last"], "is one network; 'last' chooses among those of"),
        ([], "Missing argument 'NETWORK'; see lipcert certify --help"),
        (["{run}", "--out", "{tmp}/bad.png"], "out: cannot write to"),
        (["{run}", "--no-resize"], "no-resize: applies only to pictures of your own; name them"),
        (["{run}/best.safetensors", "--weights", "last"], "is one network; 'last' chooses among those of"),
    ],
)  # fmt: skip
def test_bad_input(
    command: Command, run: Path, pictures: list[Path], tmp_path: Path, arguments: list[str], message: str
) -> None:
    for name in ("bad.png", "bad.safetensors"):
        (tmp_path / name).write_bytes(b"no picture, no network")
    result = command("certify", *(a.format(run=run, tmp=tmp_path) for a in arguments))
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (run / "report.html").exists()


def test_an_unfinished_run_says_how_to_finish(command: Command, run: Path) -> None:
    for name in ("best.safetensors", "best.proved.safetensors"):
        (run / name).unlink()
    result = command("certify", run)
    assert (result.code, "--resume" in result.err) == (2, True)


def test_images_of_another_shape_are_refused(command: Command, run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (9, 9), (i, 0, 0)).save(folder / f"{i}.png")
    result = command("certify", run, "--data", tmp_path / "photos")
    assert result.code == 2
    assert "has images of shape (3, 8, 8), but tiny takes (1, 8, 8)" in result.err


def test_report_of_one_and_of_several(command: Command, run: Path, tmp_path: Path) -> None:
    assert command("certify", run, "--json").code == 0
    other = json.loads(command("certify", run, "--json", "--count", 20).out)
    result = command("report", run, "--png", tmp_path / "png", "--json")
    assert result.code == 0
    names = {Path(path).name for path in json.loads(result.out)["pictures"]}
    assert names == {"curve.png", "histogram.png", "angles.png", "regions.png", "training.png"}
    result = command("report", run, Path(other["report"]).parent, "--out", tmp_path / "both.html")
    assert (result.code, result.err) == (0, "")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "2 runs side by side" in page
    assert "not certified on the same images" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}"], "has no certificates yet; run `lipcert certify"),
        (["{tmp}/none"], "no such folder; expected the folder of a run"),
        (["{tmp}"], "expected a folder with certificates.jsonl, which `lipcert certify` writes"),
        (["{run}", "{run}"], "expected different runs, got one of them twice"),
    ],
)
def test_report_of_what_is_not_there(
    command: Command, run: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (run / "certificates.jsonl").unlink()
    result = command("report", *(a.format(run=run, tmp=tmp_path) for a in arguments))
    assert result.code == 2
    assert message in result.err


def test_papers_row_is_found_for_its_network() -> None:
    from types import SimpleNamespace
    from typing import Any

    from lipcert.cli.report import paper_row

    options = {"data": "cifar10", "depth": 5, "activation": "maxmin", "head": "orthogonal", "gamma": 0.0}
    records: Any = SimpleNamespace(data="cifar10")
    found = paper_row(Run("a").knowing(options=options, records=records))
    assert found.reported is not None
    assert found.reported.values == {"standard": 75.78, "36/255": 59.18, "72/255": 42.01, "108/255": 27.09}
    other = Run("a").knowing(options=options | {"data": "digits"}, records=records)
    assert paper_row(other).reported is None


def test_names_of_classes(trained: Path, tmp_path: Path) -> None:
    assert (len(CIFAR100), len(set(CIFAR100)), list(CIFAR100)) == (100, 100, sorted(CIFAR100))
    folder = Path(shutil.copytree(trained, tmp_path / "a"))
    (folder / "config.toml").unlink()
    records = (folder / "certificates.jsonl").read_text().replace('"0", "1", "2"', '"ant", "owl", "2"')
    (folder / "certificates.jsonl").write_text(records)
    assert class_names(Run.at(folder), 10)[:3] == ("ant", "owl", "2")
    assert class_names(Run.at(folder), 11)[2] == "class 2"
    (folder / "certificates.jsonl").write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        class_names(Run.at(folder), 10)
    (folder / "certificates.jsonl").unlink()
    assert class_names(Run.at(folder), 2) == ("class 0", "class 1")


@pytest.mark.parametrize(
    ("folders", "names"),
    [(["runs/a", "runs/b"], ["a", "b"]), (["x/a", "y/a"], ["x/a", "y/a"]), (["runs/a"], ["a"])],
)
def test_runs_get_the_shortest_names_that_differ(folders: list[str], names: list[str]) -> None:
    from lipcert.cli.report import distinct_names

    assert distinct_names([Path(folder) for folder in folders]) == names


@pytest.mark.parametrize(
    "arguments",
    [
        ["certify", "{run}"],
        ["audit", "{run}", "--attacks", "noise", "--count", "2"],
        ["verify", "{run}", "--sample", "1"],
        ["export", "{run}", "--onnx", "{run}/a.onnx"],
    ],
)
def test_nothing_is_done_twice(
    command: Command, run: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """The test set is loaded once, the proved file read once, and nothing is proved again."""
    from lipcert.certify import independent, network_file
    from lipcert.data import sources

    calls: list[str] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(function.__name__)
            return function(*arguments, **options)

        return call

    for module, name in ((sources, "load"), (network_file, "read_network"), (independent, "read_network")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    monkeypatch.setattr(sys.modules["lipcert.certify.prove"], "prove", counted(lc.prove))
    result = command(*(part.format(run=run) for part in arguments))
    assert (result.code, result.err) == (0, "")
    assert sorted(calls) == (["read_network"] if arguments[0] == "export" else ["load", "read_network"])
