"""Writes a CIFAR-10 of 24 images in the public layout."""

import pickle
from pathlib import Path

import numpy as np

CLASSES = [b"ant", b"bee", b"cow"]
PER_FILE = 4


def batch(number: int) -> dict[bytes, object]:
    """The content of one file; labels and pixels depend on its number."""
    pixels = np.random.default_rng(number).integers(0, 256, (PER_FILE, 3072), dtype=np.uint8)
    labels = [(number + i) % len(CLASSES) for i in range(PER_FILE)]
    return {b"labels": labels, b"data": pixels, b"batch_label": b"a batch"}


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Protocol 4 keeps bytes as bytes, as the Python 2 pickles of the public files do when they are read.
    path.write_bytes(pickle.dumps(content, protocol=4))


def write_all(folder: Path, meta: str, files: tuple[str, ...]) -> None:
    write(folder / meta, {b"label_names": CLASSES})
    for number, name in enumerate(files):
        write(folder / name, batch(number))
