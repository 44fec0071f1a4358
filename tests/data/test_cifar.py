import os
from pathlib import Path

import numpy as np
import pytest
import torch
from small_cifar import PER_FILE, batch, write

from lipcert.data import hold_out, load, to_float
from lipcert.data.archives import Archive, data_root
from lipcert.errors import ArgumentError, DataError

needs_cifar = [
    pytest.mark.cifar,
    pytest.mark.skipif(
        not os.environ.get("LIPCERT_DATA"), reason="LIPCERT_DATA names no folder with the CIFAR files"
    ),
]


def test_reads_files_in_order(small_root: Path) -> None:
    train = load("cifar10", root=small_root)
    assert (train.name, train.split, train.classes) == ("cifar10", "train", ("ant", "bee", "cow"))
    assert train.image_shape == (3, 32, 32)
    expected = np.concatenate([batch(number)[b"data"] for number in range(5)])
    np.testing.assert_array_equal(train.images.reshape(-1, 3072).numpy(), expected)
    assert train.labels.tolist() == [label for number in range(5) for label in batch(number)[b"labels"]]


def test_test_split_is_the_test_file(small_root: Path) -> None:
    test = load("cifar10", split="test", root=small_root)
    np.testing.assert_array_equal(test.images.reshape(-1, 3072).numpy(), batch(5)[b"data"])
    assert test.split == "test"


def test_pixels_are_planes_of_rows(small_root: Path, small: Archive) -> None:
    content = batch(0)
    pixels = np.zeros((PER_FILE, 3072), dtype=np.uint8)
    pixels[0, 1024 + 32 * 2 + 5] = 200
    write(small_root / small.folder / "test_batch", content | {b"data": pixels})
    image = load("cifar10", split="test", root=small_root).images[0]
    assert image[1, 2, 5] == 200
    assert image.sum() == 200


@pytest.mark.parametrize("file", ["batches.meta", "data_batch_3"])
def test_a_missing_file_is_named_with_the_remedy(small_root: Path, small: Archive, file: str) -> None:
    (small_root / small.folder / file).unlink()
    with pytest.raises(
        DataError, match=rf"{file} is missing; run `lipcert data download cifar10`.*LIPCERT_DATA"
    ):
        load("cifar10", root=small_root)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {b"data": np.zeros((PER_FILE - 1, 3072), np.uint8)},
            r"expected 'data' to be uint8 \(4, 3072\), got uint8 \(3, 3072\)",
        ),
        ({b"data": np.zeros((PER_FILE, 3071), np.uint8)}, r"got uint8 \(4, 3071\)"),
        ({b"data": np.zeros((PER_FILE, 3072), np.int64)}, r"got int64"),
        ({b"data": b"bytes"}, "got bytes"),
        ({b"labels": [0, 1, 2]}, "expected 'labels' to be 4 integers, got 3 of them"),
        ({b"labels": [0, 1, 2, b"3"]}, "expected 'labels' to be 4 integers"),
        ({b"labels": [0, 1, 2, True]}, "refused"),
        ({b"labels": None}, "got NoneType"),
        ({b"labels": [0, 1, 2, 3]}, "expected labels from 0 to 2, got 3"),
        ({b"labels": [0, 1, -1, 2]}, "expected labels from 0 to 2, got -1"),
    ],
)
def test_a_wrong_batch_is_named(
    small_root: Path, small: Archive, change: dict[bytes, object], message: str
) -> None:
    write(small_root / small.folder / "data_batch_2", batch(1) | change)
    with pytest.raises(DataError, match=f"data_batch_2: .*{message}"):
        load("cifar10", root=small_root)


def test_a_truncated_batch_is_named(small_root: Path, small: Archive) -> None:
    path = small_root / small.folder / "data_batch_4"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="data_batch_4: refused"):
        load("cifar10", root=small_root)


@pytest.mark.parametrize("names", [[], [1, 2], b"ant", None])
def test_wrong_class_names_are_named(small_root: Path, small: Archive, names: object) -> None:
    write(small_root / small.folder / small.meta, {b"label_names": names})
    with pytest.raises(DataError, match=r"batches\.meta: expected a list of class names under 'label_names'"):
        load("cifar10", root=small_root)


def test_root_comes_from_argument_then_variable_then_cache(
    small_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIPCERT_DATA", str(small_root))
    assert len(load("cifar10")) == 5 * PER_FILE
    assert data_root("~/elsewhere") == Path.home() / "elsewhere"
    monkeypatch.delenv("LIPCERT_DATA")
    assert data_root() == Path.home() / ".cache" / "lipcert"


def test_cifar_has_one_size(small_root: Path) -> None:
    assert load("cifar10", root=small_root, image_size=32).image_shape == (3, 32, 32)
    with pytest.raises(ArgumentError, match="image_size: expected 32 for cifar10, got 64"):
        load("cifar10", root=small_root, image_size=64)


def test_unknown_names_get_a_suggestion(small_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"data: no folder 'cifar1' is here.*did you mean 'cifar10'"):
        load("cifar1", root=small_root)
    with pytest.raises(
        ArgumentError, match="split: expected one of test, train, got 'tests'; did you mean 'test'"
    ):
        load("cifar10", root=small_root, split="tests")


@pytest.mark.parametrize(
    ("name", "classes", "mean"),
    [
        pytest.param("cifar10", 10, (0.4914, 0.4822, 0.4465), marks=needs_cifar),
        pytest.param("cifar100", 100, (0.5071, 0.4865, 0.4409), marks=needs_cifar),
    ],
)
def test_the_real_files_are_the_published_sets(name: str, classes: int, mean: tuple[float, ...]) -> None:
    train, test = load(name), load(name, split="test")
    assert train.images.shape == (50_000, 3, 32, 32)
    assert test.images.shape == (10_000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [50_000 // classes] * classes
    assert test.labels.bincount().tolist() == [10_000 // classes] * classes
    # The published means have four digits, the last of them rounded or cut.
    torch.testing.assert_close(to_float(train.images).mean((0, 2, 3)), torch.tensor(mean), atol=1e-4, rtol=0)
    held = hold_out(train)
    assert train.labels[held.validation].bincount().tolist() == [5000 // classes] * classes
