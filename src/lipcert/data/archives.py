"""The public CIFAR archives: where they are, how they are checked, what lies inside, where we keep them."""

import os
from dataclasses import dataclass
from pathlib import Path

from lipcert.files import home_path

DATA_VARIABLE = "LIPCERT_DATA"


@dataclass(frozen=True)
class Archive:
    """One public dataset in its 'python version' layout.

    Args:
        name: the name users type.
        url, size, sha256: of the archive.
        folder: the one folder in the archive.
        meta, class_key: the file that names the classes, and its key.
        train, test: file -> number of images in it.
        label_key: the key of the labels in those files.
    """

    name: str
    url: str
    size: int
    sha256: str
    folder: str
    meta: str
    class_key: str
    train: dict[str, int]
    test: dict[str, int]
    label_key: str

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that the loader needs, relative to `folder`."""
        return (self.meta, *self.train, *self.test)

    @property
    def remedy(self) -> str:
        """How to get the files, as the end of an error's sentence."""
        return (
            f"run `lipcert data download {self.name}`, or set {DATA_VARIABLE} to the folder that contains "
            f"{self.folder}"
        )

    @property
    def repair(self) -> str:
        """The same for files that are there and damaged, which a download leaves alone."""
        return f"remove the folder and run `lipcert data download {self.name}`"


ARCHIVES = {
    "cifar10": Archive(
        name="cifar10",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        size=170_498_071,
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        folder="cifar-10-batches-py",
        meta="batches.meta",
        class_key="label_names",
        train={f"data_batch_{i}": 10_000 for i in range(1, 6)},
        test={"test_batch": 10_000},
        label_key="labels",
    ),
    "cifar100": Archive(
        name="cifar100",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        size=169_001_437,
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        folder="cifar-100-python",
        meta="meta",
        class_key="fine_label_names",
        train={"train": 50_000},
        test={"test": 10_000},
        label_key="fine_labels",
    ),
}


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that holds the datasets: `root`, else $LIPCERT_DATA, else ~/.cache/lipcert."""
    chosen = root or os.environ.get(DATA_VARIABLE) or Path("~/.cache/lipcert")
    return home_path(chosen)
