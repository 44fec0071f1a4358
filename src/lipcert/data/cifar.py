"""CIFAR-10 and CIFAR-100 from the files of their public 'python version'."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from lipcert.data.archives import ARCHIVES, Archive, data_root
from lipcert.data.dataset import Dataset
from lipcert.data.restricted_pickle import read_restricted_pickle
from lipcert.errors import DataError, choose

IMAGE_SHAPE = (3, 32, 32)


def load_cifar(name: str, *, split: str = "train", root: str | Path | None = None) -> Dataset:
    """Load `cifar10` or `cifar100` (fine labels): 50,000 training or 10,000 test images, 3x32x32.

    Args:
        name: which of the two.
        split: `train` or `test`.
        root: the folder that contains `cifar-10-batches-py` or `cifar-100-python`; by default $LIPCERT_DATA,
            else ~/.cache/lipcert.

    Raises:
        DataError: a file is missing, damaged or not what the public layout says; the error names it.
    """
    archive = ARCHIVES[choose("data", name, ARCHIVES)]
    parts = {"train": archive.train, "test": archive.test}[choose("split", split, ("train", "test"))]
    folder = data_root(root) / archive.folder
    for file in (archive.meta, *parts):
        if not (folder / file).is_file():
            raise DataError(f"{name}: {folder / file} is missing; {archive.remedy}")
    classes = _read_classes(folder / archive.meta, archive)
    batches = [_read_batch(folder / file, count, len(classes), archive) for file, count in parts.items()]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, *IMAGE_SHAPE)
    labels = np.concatenate([numbers for _, numbers in batches])
    return Dataset(name, torch.from_numpy(images), torch.from_numpy(labels), classes, split)


def _read_classes(path: Path, archive: Archive) -> tuple[str, ...]:
    names = read_restricted_pickle(path).get(archive.class_key)
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(
            f"{path}: expected a list of class names under '{archive.class_key}'; {archive.repair}"
        )
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names)


def _read_batch(
    path: Path, count: int, num_classes: int, archive: Archive
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return (pixels, labels) of one file, checked against each other and against the public layout."""
    content = read_restricted_pickle(path)
    pixels, labels = content.get("data"), content.get(archive.label_key)
    width = int(np.prod(IMAGE_SHAPE))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, width):
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(
            f"{path}: expected 'data' to be uint8 {(count, width)}, got {found}; {archive.repair}"
        )
    if (
        not isinstance(labels, list)
        or len(labels) != count
        or any(type(label) is not int for label in labels)
    ):
        found = f"{len(labels)} of them" if isinstance(labels, list) else type(labels).__name__
        raise DataError(
            f"{path}: expected '{archive.label_key}' to be {count} integers, got {found}; {archive.repair}"
        )
    wrong = next((label for label in labels if not 0 <= label < num_classes), None)
    if wrong is not None:
        raise DataError(f"{path}: expected labels from 0 to {num_classes - 1}, got {wrong}; {archive.repair}")
    return pixels, np.array(labels, dtype=np.int64)
