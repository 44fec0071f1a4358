"""certificates.jsonl: what is written is what is read, wherever the folder goes."""

import json
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.certify import Certificates
from lipcert.certify.records import Images, read_records, write_records
from lipcert.errors import CheckpointError
from lipcert.files import CERTIFICATES


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
    found = read_records(folder).certificates
    assert torch.equal(found.margin, cert.margin)
    assert torch.equal(found.rounding, cert.rounding)


def test_records_move_with_their_folder(written: tuple[Path, Certificates]) -> None:
    folder, _ = written
    assert (
        json.loads((folder / CERTIFICATES).read_text().splitlines()[0])["network"]
        == "best.proved.safetensors"
    )
    moved = folder.rename(folder.with_name("moved"))
    assert read_records(moved).network_file.is_file()


def test_an_unlimited_radius_beside_a_runner_up_is_refused(written: tuple[Path, Certificates]) -> None:
    folder, _ = written
    head, first, *rest = (folder / CERTIFICATES).read_text().splitlines()
    row = json.loads(first) | {"radius": None}
    (folder / CERTIFICATES).write_text("\n".join([head, json.dumps(row), *rest]) + "\n")
    with pytest.raises(CheckpointError, match="a radius is not finite"):
        assert read_records(folder).outcomes


def test_records_name_the_proved_file_and_its_layers(written: tuple[Path, Certificates]) -> None:
    folder, cert = written
    found = read_records(folder)
    network = lc.load(found.network_file)
    assert isinstance(network, lc.ProvedNetwork)
    assert found.header.network_sha256 == network.hash
    assert [layer.lipschitz for layer in found.header.layers] == [leaf.lipschitz for leaf in network.layers]
    assert found.header.lipschitz == cert.lipschitz == network.lipschitz
