"""certificates.jsonl: what is written is what is read, wherever the folder goes."""

import json
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.certify.radii import Certificates
from lipcert.certify.records import FILE, read_records, write_records
from lipcert.errors import CheckpointError


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Certificates]:
    images = lc.data.load("digits", split="test").subset(range(5))
    model = lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1).eval()
    lc.save(model, tmp_path / "best.safetensors")
    cert = lc.certify(model, lc.data.to_float(images.images))
    write_records(tmp_path, cert, images, model=model, weights=tmp_path / "best.safetensors")
    return tmp_path, cert


def test_margin_and_rounding_come_back(written: tuple[Path, Certificates]) -> None:
    folder, cert = written
    found = read_records(folder)
    assert torch.equal(found.margin, cert.margin)
    assert torch.equal(found.rounding, cert.rounding)


def test_records_move_with_their_folder(written: tuple[Path, Certificates]) -> None:
    folder, _ = written
    assert json.loads((folder / FILE).read_text().splitlines()[0])["weights"] == "best.safetensors"
    moved = folder.rename(folder.with_name("moved"))
    assert read_records(moved).weights_file.is_file()


def test_an_unlimited_radius_beside_a_runner_up_is_refused(written: tuple[Path, Certificates]) -> None:
    folder, _ = written
    head, first, *rest = (folder / FILE).read_text().splitlines()
    row = json.loads(first) | {"radius": None}
    (folder / FILE).write_text("\n".join([head, json.dumps(row), *rest]) + "\n")
    with pytest.raises(CheckpointError, match="a radius is not finite"):
        read_records(folder)
