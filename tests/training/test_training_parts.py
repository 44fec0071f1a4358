"""What a run is made of follows from its options."""

import pytest

from lipcert.data import load
from lipcert.data.augment import CropFlip
from lipcert.training.config import TrainConfig
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
    assert augmentation(TrainConfig(data="digits", **options), images) == expected


def test_auto_crops_and_flips_photographs():
    assert TrainConfig(data="cifar10").crops
    assert TrainConfig(data="a/folder").crops
    assert not TrainConfig(data="cifar10", augment="none").crops
