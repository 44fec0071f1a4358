"""What a run is made of follows from its options."""

import pytest
import torch

from lipcert.data import Dataset, load
from lipcert.data.augment import CropFlip
from lipcert.runs.config import TrainConfig
from lipcert.training.parts import augmentation


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),  # digits under "auto"
        ({"augment": "none"}, None),
        ({"augment": "crop-flip"}, CropFlip(1)),  # an eighth of 8 pixels
        ({"augment": "crop-flip", "crop": 0}, CropFlip(0)),
        ({"augment": "crop-flip", "crop": 2}, CropFlip(2)),
    ],
)
def test_augmentation_follows_the_options(options, expected):
    images = load("digits", split="test")
    assert images.image_shape[1] == 8
    assert augmentation(TrainConfig(data="digits", **options), images, 200) == expected


@pytest.mark.parametrize(("epochs", "padding"), [(6, 0), (18, 1), (40, 2), (200, 4)])
def test_fitted_crops_grow_with_the_run(epochs, padding):
    images = Dataset("photos", torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    assert augmentation(TrainConfig(augment="fitted"), images, epochs) == CropFlip(padding)
    assert augmentation(TrainConfig(augment="fitted", crop=3), images, epochs) == CropFlip(3)


def test_auto_crops_and_flips_photographs():
    assert TrainConfig(data="cifar10").crops
    assert TrainConfig(data="a/folder").crops
    assert not TrainConfig(data="cifar10", augment="none").crops
