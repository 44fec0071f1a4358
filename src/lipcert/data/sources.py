"""Load a dataset by its name or by its path."""

import os
from difflib import get_close_matches
from pathlib import Path

from lipcert.data.archives import ARCHIVES
from lipcert.data.cifar import IMAGE_SHAPE, load_cifar
from lipcert.data.dataset import Dataset
from lipcert.data.digits import load_digits
from lipcert.data.folder import load_folder
from lipcert.errors import ArgumentError, DataError, choose
from lipcert.files import home_path

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
        DataError: there is no such folder, or files are missing or damaged; the error names them and says how
            to get them.

    >>> digits = load("digits", split="test")
    >>> len(digits), digits.image_shape
    (360, (1, 8, 8))
    """
    choose("split", split, ("train", "test"))
    check_exists(name_or_path)
    if is_folder(name_or_path):
        return load_folder(name_or_path, split=split, image_size=image_size)
    name = str(name_or_path)
    if name not in ARCHIVES:
        return load_digits(split=split, image_size=image_size)
    if image_size not in (None, IMAGE_SHAPE[1]):
        raise ArgumentError(
            f"image_size: expected {IMAGE_SHAPE[1]} for {name}, got {image_size}; leave it out"
        )
    return load_cifar(name, split=split, root=root)


def check_exists(name_or_path: str | Path) -> None:
    """Raise unless it is a known name or an existing folder; the error suggests the nearest one.

    Raises:
        ArgumentError: there is no dataset and no folder of that name.
        DataError: it is a path, and there is no such folder.

    >>> check_exists("digit")
    Traceback (most recent call last):
    ...
    lipcert.errors.ArgumentError: data: no folder 'digit' is here and no dataset has that name; expected a \
folder of images, cifar10, cifar100 or digits; did you mean 'digits'?
    """
    if not isinstance(name_or_path, str | Path):
        kind = type(name_or_path).__name__
        raise ArgumentError(f"data: expected a name or the path of a folder, got {kind}")
    path = home_path(name_or_path)
    if name_or_path in NAMES or path.is_dir():
        return
    is_path = is_folder(name_or_path)
    known = [*_folders(path.parent), *(() if is_path else NAMES)]
    near = get_close_matches(path.name, known, n=1, cutoff=0.5)
    # ./digits is a folder, and digits is not.
    hint = f"; did you mean '{os.path.join(os.path.dirname(name_or_path), near[0])}'?" if near else ""
    if is_path:
        raise DataError(
            f"{path}: no such folder; expected a folder of images in one subfolder per class{hint}"
        )
    raise ArgumentError(
        f"data: no folder '{name_or_path}' is here and no dataset has that name; expected a folder of "
        f"images, {', '.join(NAMES[:-1])} or {NAMES[-1]}{hint}"
    )


def _folders(parent: Path) -> list[str]:
    """Names of the folders in a folder; none if it cannot be read."""
    try:
        return sorted(e.name for e in parent.iterdir() if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return []


def is_folder(name_or_path: str | Path) -> bool:
    """Whether `load` reads it as the path of a folder, which need not exist, and not as a name."""
    if isinstance(name_or_path, Path):
        return True
    text = name_or_path
    if text in NAMES:
        return False
    looks_like_one = text.startswith((".", "~")) or "/" in text or os.sep in text
    return looks_like_one or Path(text).is_dir()
