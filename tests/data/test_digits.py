import pytest
import torch
from sklearn.datasets import load_digits as embedded

from lipcert.data import Dataset, load
from lipcert.errors import ArgumentError


def rows(images: torch.Tensor, labels: torch.Tensor) -> list[list[int]]:
    """Each image as one list of pixels and label, sorted, so that two sets compare whatever their order."""
    return sorted(torch.cat((images.flatten(1).long(), labels[:, None]), dim=1).tolist())


@pytest.fixture(scope="module")
def train() -> Dataset:
    return load("digits")


@pytest.fixture(scope="module")
def test() -> Dataset:
    return load("digits", split="test")


def test_the_two_splits_together_are_the_embedded_set(train: Dataset, test: Dataset) -> None:
    assert (len(train), len(test), train.image_shape) == (1437, 360, (1, 8, 8))
    assert train.classes == tuple("0123456789")
    source = embedded()
    scaled = (torch.from_numpy(source.images) * 255 / 16 + 0.5).floor()
    assert rows(torch.cat((train.images, test.images)), torch.cat((train.labels, test.labels))) == rows(
        scaled, torch.from_numpy(source.target)
    )


def test_levels_span_the_whole_range(train: Dataset) -> None:
    levels = [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]
    assert train.images.unique().tolist() == levels


def test_the_split_is_stratified_and_fixed(train: Dataset, test: Dataset) -> None:
    share = test.labels.bincount() / (train.labels.bincount() + test.labels.bincount())
    # 360 / 1797, and a class of about 180 is within one image of its share.
    assert (share - 360 / 1797).abs().max() < 1 / 170
    assert train.fingerprint == "a3adc611bd8148d6ff58aa89823055c4f3086c43f5805f234386befb6607cb9c"
    assert test.fingerprint == "28029801a5ca4780decf1d8c6a410a7aef14e9aa9746a599583137e6d9ba69ac"


def test_larger_images_repeat_pixels(test: Dataset) -> None:
    large = load("digits", split="test", image_size=32)
    assert large.image_shape == (1, 32, 32)
    for row in range(4):
        assert torch.equal(large.images[:, :, row::4, 3 - row :: 4], test.images)
    assert torch.equal(large.labels, test.labels)


@pytest.mark.parametrize("size", [0, 4, 12, -8])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(
        ArgumentError, match=f"image_size: expected a multiple of 8 for the digits, got {size}"
    ):
        load("digits", image_size=size)
