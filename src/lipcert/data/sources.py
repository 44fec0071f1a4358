"""One way in: a dataset by its name or by its path."""

import os
from pathlib import Path

from lipcert.data.archives import ARCHIVES
from lipcert.data.cifar import IMAGE_SHAPE, load_cifar
from lipcert.data.dataset import Dataset
from lipcert.data.digits import load_digits
from lipcert.data.folder import load_folder
from lipcert.errors import ArgumentError, choose

NAMES = ("cifar10", "cifar100", "digits")


def load(
    name_or_path: str | Path,
    *,
    split: str = "train",
    root: str | Path | None = None,
    image_size: int | None = None,
) -> Dataset:
    """Load a dataset by name (`digits`, `cifar10`, `cifar100`) or a folder of images by path.

    A plain name means the dataset; for a folder that is called `digits` write `./digits`.

    Args:
        name_or_path: which.
        split: `train` or `test`.
        root: where the CIFAR folders are; by default $LIPCERT_DATA, else ~/.cache/lipcert.
        image_size: side of the images: any for a folder, a multiple of 8 for the digits, 32 for CIFAR. By
            default the size they have.

    Raises:
        ArgumentError: the name, the split or the size is unknown or does not fit.
        DataError: files are missing or damaged; the error names them and says how to get them.

    >>> digits = load("digits", split="test")
    >>> len(digits), digits.image_shape
    (360, (1, 8, 8))
    """
    choose("split", split, ("train", "test"))
    if is_folder(name_or_path):
        return load_folder(name_or_path, split=split, image_size=image_size)
    name = choose("data (a name, or a folder of images)", name_or_path, NAMES)
    if name not in ARCHIVES:
        return load_digits(split=split, image_size=image_size)
    if image_size not in (None, IMAGE_SHAPE[1]):
        raise ArgumentError(
            f"image_size: expected {IMAGE_SHAPE[1]} for {name}, got {image_size}; leave it out"
        )
    return load_cifar(name, split=split, root=root)


def is_folder(name_or_path: str | Path) -> bool:
    """Whether `load` takes it for the path of a folder, which need not exist, rather than for a name."""
    if isinstance(name_or_path, Path):
        return True
    text = name_or_path
    if text in NAMES:
        return False
    looks_like_one = text.startswith((".", "~")) or "/" in text or os.sep in text
    return looks_like_one or Path(text).is_dir()
