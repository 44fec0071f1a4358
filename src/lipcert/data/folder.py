"""A folder of the user's own images, one subfolder per class."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch

from lipcert.data.dataset import Dataset
from lipcert.data.image import ReadImage, read_image
from lipcert.data.seeding import Stream
from lipcert.data.split import stratified
from lipcert.errors import DataError, choose
from lipcert.files import PICTURES, home_path

SPLITS = ("train", "test")
TEST_SHARE = 5
TEST_SEED = 0

# Files that operating systems create; names that start with a dot are skipped anyway.
_LITTER = frozenset({"thumbs.db", "desktop.ini"})


@dataclass(frozen=True)
class ImageFiles:
    """The image files of a folder, not read yet, with a label each and the names of all classes."""

    files: tuple[Path, ...]
    labels: torch.Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    def part(self, first: int, end: int) -> "ImageFiles":
        """Some of the files, by position."""
        # A view of the labels would take the whole tensor along when it is sent.
        return replace(self, files=self.files[first:end], labels=self.labels[first:end].clone())


def load_folder(path: str | Path, *, split: str = "train", image_size: int | None = None) -> Dataset:
    """Load every PNG, JPEG and WebP image of a folder into memory, as RGB.

    Either `path/<class>/<image>`, of which a fixed, seeded, stratified fifth (by sorted file names) is the
    test set, or `path/train/<class>/<image>` and `path/test/<class>/<image>`. Labels number the sorted class
    names. Hidden files are skipped.

    Args:
        path: the folder.
        split: `train` or `test`.
        image_size: side of the square that every image is cut (centred) and resized to. By default images
            stay as they are and must have one size. Test images that were resized are also kept as they are
            before rounding to 8 bits (`Dataset.exact`), for the certificates.

    Raises:
        DataError: the folder is not laid out so, or an image cannot be used; the error names the file.
    """
    return read_images(find_images(path, split=split), str(path), image_size, split)


def find_images(path: str | Path, *, split: str = "train") -> ImageFiles:
    """The files that `load_folder` reads, in its order.

    Raises:
        DataError: the folder is not laid out as `load_folder` says.
    """
    choose("split", split, SPLITS)
    root = home_path(path)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; expected a folder of images in one subfolder per class")
    entries = {entry.name for entry in visible(root)}
    if has_splits(root):
        if entries != set(SPLITS):
            other = min(entries - set(SPLITS))
            raise DataError(
                f"{root}: expected nothing beside train and test, got '{other}'; move it elsewhere"
            )
        found = {part: _image_files(root / part) for part in SPLITS}
        if found["train"].keys() != found["test"].keys():
            odd = min(found["train"].keys() ^ found["test"].keys())
            raise DataError(f"{root}: class '{odd}' is in only one of train and test; both need every class")
        by_class = found[split]
        files, labels = _flat(by_class)
    else:
        by_class = _image_files(root)
        few = next((name for name, images in by_class.items() if len(images) < 2), None)
        if few is not None:
            raise DataError(
                f"{root / few}: expected at least 2 images, one to train and one to test, got 1; add images "
                "(to train it takes 3, for one is held out), or make train and test subfolders"
            )
        files, labels = _flat(by_class)
        count = max(len(files) // TEST_SHARE, len(by_class))
        train, test = stratified(labels, count, Stream.TEST_SPLIT, TEST_SEED)
        chosen = train if split == "train" else test
        files, labels = [files[i] for i in chosen.tolist()], labels[chosen]
    return ImageFiles(tuple(files), labels, tuple(by_class))


def has_splits(root: Path) -> bool:
    """Whether a folder has the subfolders train and test; `test` alone may be the name of a class."""
    return set(SPLITS) <= {entry.name for entry in root.iterdir() if entry.is_dir()}


def visible(folder: Path) -> list[Path]:
    """What counts in a folder, sorted by name: no hidden files, and none that operating systems create."""
    seen = (p for p in folder.iterdir() if not p.name.startswith(".") and p.name.lower() not in _LITTER)
    return sorted(seen, key=lambda p: p.name)  # paths alone sort differently on Windows


def _image_files(root: Path) -> dict[str, list[Path]]:
    """Return class name -> image files, both sorted; raise on anything that is neither."""
    by_class: dict[str, list[Path]] = {}
    for folder in visible(root):
        if not folder.is_dir():
            raise DataError(
                f"{folder}: expected only class folders in {root}; move the file into one, or away"
            )
        files = visible(folder)
        wrong = next(
            (file for file in files if not file.is_file() or file.suffix.lower() not in PICTURES), None
        )
        if wrong is not None and wrong.is_dir() and folder.name in SPLITS:
            other = next(part for part in SPLITS if part != folder.name)
            raise DataError(f"{root}: has classes in '{folder.name}' but no folder '{other}'; add it")
        if wrong is not None:
            raise DataError(f"{wrong}: expected a PNG, JPEG or WebP file; convert it, or move it away")
        if not files:
            raise DataError(f"{folder}: the class has no image; add images, or remove the folder")
        if not folder.name.isprintable():
            raise DataError(
                f"{root}: {folder.name!a} is no name for a class, because it is not UTF-8 or cannot be "
                "printed; rename the folder"
            )
        by_class[folder.name] = files
    if len(by_class) < 2:
        raise DataError(f"{root}: expected at least 2 class folders, got {len(by_class)}")
    return by_class


def _flat(by_class: dict[str, list[Path]]) -> tuple[list[Path], torch.Tensor]:
    files = [file for images in by_class.values() for file in images]
    numbers = [number for number, images in enumerate(by_class.values()) for _ in images]
    return files, torch.tensor(numbers, dtype=torch.int64, device="cpu")


def read_images(found: ImageFiles, name: str, image_size: int | None, split: str) -> Dataset:
    """The images of files as a data set, read by four threads.

    Raises:
        DataError: a file is no image, is damaged, or has another size than the first one.
    """
    files, is_test = found.files, split == "test" and image_size is not None

    def read(file: Path) -> ReadImage:
        return read_image(file, image_size, exact=is_test)

    first = read(files[0])
    images = first.levels.new_empty(len(files), *first.levels.shape)
    exact = torch.empty(images.shape, dtype=torch.float64, device="cpu") if is_test else None
    sizes = []
    # Threads, because decoders release the GIL; results come in order, so the first bad file is the one
    # reported.
    with ThreadPoolExecutor(max_workers=4) as pool:
        for position, image in enumerate(chain([first], pool.map(read, files[1:]))):
            if image.levels.shape != first.levels.shape:
                raise DataError(
                    f"{files[position]}: is {_size(image.levels)} where {files[0].name} is "
                    f"{_size(first.levels)}; give an image_size to resize all images to"
                )
            images[position] = image.levels
            if exact is not None and image.exact is not None:
                exact[position] = image.exact
            sizes.append(image.size)
    if exact is None or set(sizes) == {(image_size, image_size)}:
        return Dataset(name, images, found.labels, found.classes, split)
    return Dataset(name, images, found.labels, found.classes, split, exact, tuple(sizes))


def _size(image: torch.Tensor) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"
