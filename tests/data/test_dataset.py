import dataclasses
import hashlib

import pytest
import torch

from lipcert.data import Dataset, to_float
from lipcert.errors import ArgumentError, DataError


@pytest.fixture
def dataset() -> Dataset:
    images = torch.arange(5 * 3 * 2 * 2, dtype=torch.uint8).reshape(5, 3, 2, 2)
    return Dataset("five", images, torch.tensor([0, 1, 2, 0, 1]), ("a", "b", "c"))


def test_fingerprint_is_sha256_of_shape_images_and_labels(dataset: Dataset) -> None:
    expected = hashlib.sha256(b"(5, 3, 2, 2)" + bytes(range(60)))
    for label in (0, 1, 2, 0, 1):
        expected.update(label.to_bytes(8, "little"))
    assert dataset.fingerprint == expected.hexdigest()


def test_fingerprint_depends_on_pixels_labels_order_and_shape(dataset: Dataset) -> None:
    brighter = dataset.images.clone()
    brighter[4, 2, 1, 1] += 1
    others = [
        dataclasses.replace(dataset, images=brighter),
        dataclasses.replace(dataset, labels=torch.tensor([0, 1, 2, 0, 2])),
        dataclasses.replace(dataset, images=dataset.images.reshape(5, 3, 4, 1)),
        dataset.subset([1, 0, 2, 3, 4]),
        dataset.subset([0, 1, 2, 3]),
    ]
    assert len({dataset.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_fingerprint_ignores_memory_layout(dataset: Dataset) -> None:
    strided = dataclasses.replace(
        dataset, images=dataset.images.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    )
    assert not strided.images.is_contiguous()
    assert strided.fingerprint == dataset.fingerprint


@pytest.mark.parametrize(
    "indices", [[3, 0, 3], torch.tensor([3, 0, 3]), torch.tensor([3, 0, 3], dtype=torch.int32), (3, 0, 3)]
)
def test_subset_keeps_order_and_pairs(dataset: Dataset, indices: torch.Tensor | list[int]) -> None:
    part = dataset.subset(indices)
    assert torch.equal(part.images, torch.stack([dataset.images[i] for i in (3, 0, 3)]))
    assert part.labels.tolist() == [0, 0, 0]
    assert (part.name, part.classes, part.split) == ("five", ("a", "b", "c"), "train")


def test_an_empty_subset_is_a_dataset(dataset: Dataset) -> None:
    assert len(dataset.subset([])) == 0


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 5], "expected positions from 0 to 4, got 0 to 5"),
        ([-1], "expected positions from 0 to 4, got -1 to -1"),
        ([0.5], "expected a flat list of integers, got torch.float32"),
        ([True, False], "expected a flat list of integers, got torch.bool"),
        ([[0]], r"expected a flat list of integers, got torch.int64 of shape \(1, 1\)"),
    ],
)
def test_bad_indices_are_refused(dataset: Dataset, indices: list[int], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"indices: {message}"):
        dataset.subset(indices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(5, 3, 2, 2)}, "expected uint8 images"),
        ({"images": torch.zeros(5, 3, 2, dtype=torch.uint8)}, r"of shape \(N, C, H, W\).*\(5, 3, 2\)"),
        ({"labels": torch.zeros(4).long()}, "one int64 label for each of the 5 images"),
        ({"labels": torch.zeros(5)}, "one int64 label for each"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0])}, "labels from 0 to 2, got labels from 0 to 3"),
        ({"labels": torch.tensor([0, 1, -1, 1, 0])}, "labels from 0 to 2, got labels from -1 to 1"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    dataset: Dataset, change: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(DataError, match=f"five: .*{message}"):
        dataclasses.replace(dataset, **change)


def test_a_dataset_cannot_be_reassigned(dataset: Dataset) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "six"  # type: ignore[misc]


def test_moving_keeps_everything(dataset: Dataset) -> None:
    moved = dataset.to("cpu")
    assert moved.fingerprint == dataset.fingerprint


def test_to_float_is_division_by_255() -> None:
    levels = torch.arange(256).to(torch.uint8)
    assert torch.equal(to_float(levels), levels.float() / 255)
    assert levels[3] == 3


def test_to_float_refuses_floats() -> None:
    with pytest.raises(ArgumentError, match=r"images: expected uint8, got torch.float32"):
        to_float(torch.zeros(2))
