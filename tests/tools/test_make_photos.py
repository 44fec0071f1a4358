"""A folder of pictures made from CIFAR-100: sizes differ, and the centre square is the picture."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lipcert.data.dataset import Dataset
from lipcert.data.folder import find_images, load_folder
from lipcert.data.image import read_image
from tools import make_photos


def stand_in(name: str, *, split: str) -> Dataset:
    """Three pictures of each of 20 classes; a class has its own level of grey."""
    labels = torch.arange(20).repeat(3)
    images = (10 * labels[:, None, None, None] + 20).expand(-1, 3, 32, 32).to(torch.uint8)
    return Dataset(name, images, labels, tuple(f"class {label:02}" for label in range(20)), split)


def test_every_tenth_class_has_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_photos, "load", stand_in)
    make_photos.write_photos(tmp_path / "photos", each=2, test_each=3, first_class=4)
    found = find_images(tmp_path / "photos")
    assert (found.classes, found.labels.tolist()) == (("class 04", "class 14"), [0, 0, 1, 1])
    sizes = {tuple(read_image(file).levels.shape) for file in found.files}
    assert len(sizes) == 4
    test = load_folder(tmp_path / "photos", split="test", image_size=32)
    assert test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert test.images[3:].unique().tolist() == [160]


def test_the_centre_square_is_the_picture() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    shapes = set()
    for seed in range(20):
        larger = make_photos.enlarged(pixels, np.random.default_rng(seed))
        side, longer = min(larger.shape[:2]), max(larger.shape[:2])
        assert 40 <= side <= 160
        assert side <= longer <= 1.5 * side + 1
        rows, columns = ((length - side) // 2 for length in larger.shape[:2])
        centre = larger[rows : rows + side, columns : columns + side]
        expected = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
        assert np.array_equal(centre, np.asarray(expected))
        shapes.add(larger.shape)
    assert len(shapes) > 10
