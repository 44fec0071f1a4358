"""certificates.jsonl: what is written is what is read, wherever the folder goes."""

import json
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.certify import Certificates
from lipcert.certify.records import FILE, Images, read_records, write_records
from lipcert.errors import CheckpointError


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Certificates]:
    images = lc.data.load("digits", split="test").subset(range(5))
    model = lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1).eval()
    network, file = lc.prove(model), tmp_path / "best.proved.safetensors"
    network.save(file)
    cert = network.certify(lc.data.to_float(images.images))
    about = Images(images.name, images.fingerprint, len(images), images.labels)
    write_records(tmp_path, cert, about, network=network, file=file)
    return tmp_path, cert


def test_margin_and_rounding_come_back(written: tuple[Path, Certificates]) -> None:
    folder, cert = written
    found = read_records(folder)
    assert torch.equal(found.margin, cert.margin)
    assert torch.equal(found.rounding, cert.rounding)


def test_records_move_with_their_folder(written: tuple[Path, Certificates]) -> None:
    folder, _ = written
    assert json.loads((folder / FILE).read_text().splitlines()[0])["network"] == "best.proved.safetensors"
    moved = folder.rename(folder.with_name("moved"))
    assert read_records(moved).network_file.is_file()


def test_an_unlimited_radius_beside_a_runner_up_is_refused(written: tuple[Path, Certificates]) -> None:
    folder, _ = written
    head, first, *rest = (folder / FILE).read_text().splitlines()
    row = json.loads(first) | {"radius": None}
    (folder / FILE).write_text("\n".join([head, json.dumps(row), *rest]) + "\n")
    with pytest.raises(CheckpointError, match="a radius is not finite"):
        read_records(folder)


def test_records_name_the_proved_file_and_its_layers(written: tuple[Path, Certificates]) -> None:
    folder, cert = written
    found = read_records(folder)
    network = lc.load(found.network_file)
    assert isinstance(network, lc.ProvedNetwork)
    assert found.network_hash == network.hash
    assert [row["lipschitz"] for row in found.layers] == [leaf.lipschitz for leaf in network.layers]
    assert found.lipschitz == cert.lipschitz == network.lipschitz


def test_pictures_of_ones_own_have_the_same_records(written: tuple[Path, Certificates]) -> None:
    folder, cert = written
    network = lc.load(read_records(folder).network_file)
    assert isinstance(network, lc.ProvedNetwork)
    files = [(f"{number}.png", None if number else "640x480") for number in range(5)]
    write_records(
        folder,
        cert,
        Images(None, "0" * 64, 5, files=files),
        network=network,
        file=folder / "best.proved.safetensors",
    )
    found = read_records(folder)
    assert found.data == "pictures"
    assert torch.equal(found.outcomes.radius, cert.radius)
    assert found.outcomes.label.tolist() == [-1] * 5
    rows = [json.loads(line) for line in (folder / FILE).read_text().splitlines()[1:]]
    assert [(row["file"], row["resized_from"]) for row in rows] == files
