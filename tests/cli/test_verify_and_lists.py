"""lipcert verify, data, zoo."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.certify.prove import prove
from lipcert.certify.records import Images, write_records
from lipcert.data import load as load_data
from lipcert.data import to_float

from .conftest import Command
from .test_own_pictures import save_network


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network and its certificates of twelve digits."""
    folder, digits = tmp_path_factory.mktemp("certified") / "tiny", load_data("digits", split="test")
    folder.mkdir()
    torch.manual_seed(0)
    side = digits.image_shape[1]
    model = lc.lipconvnet(5, "soc", "hh1", "lln", 10, width=2, image_size=side, in_channels=1)
    network, file = prove(model, digits.image_shape, digits.classes), folder / "net.proved.safetensors"
    network.save(file)
    images = Images("digits", digits.fingerprint, len(digits), digits.labels)
    found = network.certify(to_float(digits.images[:12]))
    write_records(folder, found, images, network=network, file=file)
    return folder


@pytest.fixture
def certified(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "tiny"))


def test_true_records_are_verified(command: Command, certified: Path) -> None:
    result = command("verify", certified, "--sample", 4)
    assert (result.code, result.err) == (0, "")
    assert "4 of 12 certificates derived again in numpy from the network's file: all agree" in result.out
    assert "Not derived:\n- the other 8 certificates: only their labels were compared" in result.out
    assert "the rounding error at other points of a ball" in result.out
    found = json.loads(command("verify", certified / "certificates.jsonl", "--json").out)
    assert (len(found["checked"]), found["problems"]) == (12, [])
    assert all(abs(layer["derived"] - layer["stated"]) < 1e-6 for layer in found["layers"])


def test_records_may_have_another_name_and_place(command: Command, certified: Path) -> None:
    records, alone = certified / "certificates.jsonl", certified.parent / "their.jsonl"
    shutil.copyfile(records, alone)
    named = command("verify", alone, "--network", certified / "net.proved.safetensors", "--sample", 1)
    assert (named.code, named.err) == (0, "")
    result = command("verify", alone, "--sample", 1)
    assert result.code == 2
    assert "is missing; name the network with --network" in " ".join(result.err.split())


def test_records_of_a_network_without_names_for_its_classes_are_verified(
    command: Command, tmp_path: Path
) -> None:
    file, out = tmp_path / "net.safetensors", tmp_path / "out"
    lc.save(lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1), file)
    certified = command("certify", file, "--data", "digits", "--count", 4, "--out", out)
    assert certified.code == 0, certified.err
    result = command("verify", out, "--sample", 1)
    assert (result.code, result.err) == (0, "")


def test_a_forged_radius_is_exit_1(command: Command, certified: Path) -> None:
    path = certified / "certificates.jsonl"
    header, *lines = path.read_text().splitlines()
    forged = [json.dumps(json.loads(line) | {"radius": 5.0}) for line in lines]
    path.write_text("\n".join([header, *forged]) + "\n")
    result = command("verify", certified)
    assert result.code == 1
    assert "written radius 5, but at most" in result.err


def test_a_forged_label_is_exit_1(command: Command, certified: Path) -> None:
    path = certified / "certificates.jsonl"
    header, first, *lines = path.read_text().splitlines()
    row = json.loads(first)
    forged = json.dumps(row | {"label": (row["label"] + 1) % 10})
    path.write_text("\n".join([header, forged, *lines]) + "\n")
    result = command("verify", certified, "--sample", 1)  # all labels are looked at, sampled or not
    assert result.code == 1
    assert "image 0: written label" in result.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_sha256": "0" * 64}, "holds other images than those that"),
        ({"data": None, "images": "many"}, "is damaged (images: expected int, got 'many')"),
        ({"data": None}, "line 2: lacks file, radius_original, resized_from, sha256"),
        ({"data": "~nosuchuser/x"}, "~nosuchuser/x: no such folder"),
        ({"data": 7}, "is damaged (data: expected str or nothing, got 7)"),
    ],
)
def test_records_of_other_images_are_refused(
    command: Command, certified: Path, change: dict[str, object], message: str
) -> None:
    path = certified / "certificates.jsonl"
    first, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | change), *lines]) + "\n")
    result = command("verify", certified)
    assert result.code == 2
    assert message in result.err


def test_classes_that_are_named_otherwise_are_exit_1(command: Command, certified: Path) -> None:
    path = certified / "certificates.jsonl"
    first, *lines = path.read_text().splitlines()
    header = json.loads(first)
    header["classes"].reverse()
    path.write_text("\n".join([json.dumps(header), *lines]) + "\n")
    result = command("verify", certified)
    assert result.code == 1
    assert "it names the classes otherwise than digits does" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--network", "{run}/none.safetensors"], "no such file or folder"),
        (
            ["{run}/net.proved.safetensors"],
            "the folder of records, with certificates.jsonl in it; run `",
        ),
        (["{other}"], "`lipcert certify {other} --out FOLDER` writes one"),
        (["{run}", "--data", "{run}"], "expected"),
        (["{run}/none"], "none: no such file or folder, and no network of this name ships with lipcert"),
        (["lipconvnet5-cifar"], "did you mean 'lipconvnet5-cifar10'?"),
        (["{run}/none/certificates.jsonl"], "expected a folder with certificates.jsonl"),
    ],
)
def test_bad_input(command: Command, certified: Path, arguments: list[str], message: str) -> None:
    other = certified.parent / "net.proved.safetensors"
    shutil.copy(certified / other.name, other)
    result = command("verify", *(a.format(run=certified, other=other) for a in arguments))
    assert result.code == 2
    assert message.format(other=other) in result.err
    assert len(result.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "extra",
    [
        {"file": "a.png", "sha256": "0" * 64, "resized_from": "30x20", "radius_original": 500.0},
        {"file": None},
        {"sha256": ""},
        {"error": None},
        {"error": "unreadable", "radius": 999.0},
    ],
)
def test_what_only_pictures_have_is_refused_of_a_data_set(
    command: Command, certified: Path, extra: dict[str, object]
) -> None:
    path = certified / "certificates.jsonl"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *(json.dumps(json.loads(line) | extra) for line in lines)]) + "\n")
    for name in ("verify", "report"):
        result = command(name, certified)
        assert result.code == 2
        assert f"line 2.{next(iter(extra))}: expected nothing" in result.err


def test_records_that_point_beyond_the_images_are_damaged(command: Command, certified: Path) -> None:
    path = certified / "certificates.jsonl"
    header, *lines = path.read_text().splitlines()
    beyond = [json.dumps(json.loads(line) | {"index": 360 + n}) for n, line in enumerate(lines)]
    path.write_text("\n".join([header, *beyond]) + "\n")
    result = command("report", certified)
    assert (result.code, "is damaged (digits has no image 371)" in result.err) == (2, True), result.err


@pytest.mark.parametrize("data", ["~nosuchuser/x", "./none"])
def test_a_report_needs_no_images(command: Command, certified: Path, data: str) -> None:
    path = certified / "certificates.jsonl"
    first, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {"data": data}), *lines]) + "\n")
    assert command("report", certified).code == 0


def test_verify_names_its_own_flag_where_test_images_are_missing(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIPCERT_DATA", str(tmp_path))
    result = command("verify", "lipconvnet5-cifar10")
    assert result.code == 2
    assert f"cifar10: {tmp_path / 'cifar-10-batches-py'} is missing; add --download to fetch it" in result.err


def test_networks_of_no_image_are_refused(command: Command, certified: Path) -> None:
    save_network((), certified / "other.safetensors")
    result = command("verify", certified, "--network", certified / "other.safetensors")
    assert (result.code, "takes inputs of shape (), but images have" in result.err) == (2, True), result.err


def test_data_list_knows_what_is_here(command: Command, tmp_path: Path) -> None:
    rows = json.loads(command("data", "list", "--data-root", tmp_path, "--json").out)
    assert [(row["name"], row["here"]) for row in rows] == [
        ("digits", True), ("cifar10", False), ("cifar100", False),
    ]  # fmt: skip
    assert "lipcert data download cifar10" in command("data", "list", "--data-root", tmp_path).out


def test_download_reports_a_network_that_is_not_there(command: Command, tmp_path: Path) -> None:
    result = command("data", "download", "cifar10", "--data-root", tmp_path, "--url", "ftp://mirror/x")
    assert result.code == 2
    assert "url: expected an http or https address" in result.err


def test_zoo_lists_what_ships(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: Path
) -> None:
    monkeypatch.setattr("lipcert.zoo.FOLDER", tmp_path)
    file = tmp_path / "tiny-digits.proved.safetensors"
    file.write_bytes((trained / "best.proved.safetensors").read_bytes())
    card = {"standard": 0.9, "certified": {"36/255": 0.8, "72/255": 0.7, "108/255": 0.6}, "data": "digits"}
    (tmp_path / "tiny-digits.json").write_text(json.dumps(card))
    (found,) = json.loads(command("zoo", "list", "--json").out)
    assert (found["name"], found["card"]) == ("tiny-digits", card)
    assert "tiny-digits" in command("zoo", "list").out
    result = command("certify", "tiny-digit", "--data", "digits")
    assert (result.code, "did you mean 'tiny-digits'?" in result.err) == (2, True)
    file.write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    damaged = command("certify", "tiny-digits")
    assert (damaged.code, "that lipcert" in damaged.err) == (2, True)
