"""Writes a folder of pictures of varied sizes, one subfolder per class, from CIFAR-100.

    python -m tools.make_photos photos
    lipcert train --data photos --out runs/from-zoo
    lipcert train --data photos --width 16 --out runs/random     # any option of the network: random weights
    python -m tools.keep runs --results results/folder           # then python -m tools.fill_docs

The folder stands in for somebody's own pictures where docs/training.md says what to expect of them: 60 of
each of 10 classes, every tenth of CIFAR-100. None of them is a class of CIFAR-10, on which the network that
ships was trained. A picture is enlarged to 40 to 160 pixels and continued on two sides, so that it is not
square; its centre square is the picture of CIFAR. CIFAR may not be passed on: keep the folder out of the
repository.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from lipcert.data import Dataset, load

EVERY = 10
"""Which classes: every tenth of the hundred."""
SIDES = (40, 160)
"""Smallest and largest shorter side, in pixels."""
LONGER = 0.5
"""The longer side exceeds the shorter one by up to this share."""


def write_photos(
    folder: Path, *, each: int = 60, test_each: int = 100, first_class: int = 0, seed: int = 0
) -> None:
    """Write `folder/train` with `each` pictures of every class, and `folder/test` with `test_each`.

    The pictures are the first of their class; `seed` draws their sizes. Another `first_class` makes a folder
    of other classes, on which options can be chosen.
    """
    for split, count in (("train", each), ("test", test_each)):
        images = load("cifar100", split=split)
        generator = np.random.default_rng([seed, count])
        for label in range(first_class, images.num_classes, EVERY):
            _write_class(images, label, folder / split / images.classes[label], count, generator)


def _write_class(
    images: Dataset, label: int, folder: Path, count: int, generator: np.random.Generator
) -> None:
    folder.mkdir(parents=True)
    for index in (images.labels == label).nonzero().flatten()[:count].tolist():
        pixels = np.ascontiguousarray(images.images[index].permute(1, 2, 0).numpy())
        Image.fromarray(enlarged(pixels, generator)).save(folder / f"{index:05}.png")


def enlarged(pixels: npt.NDArray[np.uint8], generator: np.random.Generator) -> npt.NDArray[np.uint8]:
    """A larger picture whose middle square shows `pixels`; beside it, its mirror image goes on."""
    side = int(generator.integers(*SIDES, endpoint=True))
    square = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC))
    beside = int(generator.integers(0, round(side * LONGER / 2), endpoint=True))
    both = [(beside, beside), (0, 0)]
    if generator.integers(2):
        both.reverse()
    return np.pad(square, [*both, (0, 0)], mode="reflect")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="to write, must not exist")
    parser.add_argument("--each", type=int, default=60, help="training pictures of each class")
    parser.add_argument("--first-class", type=int, choices=range(EVERY), default=0, help="and every tenth")
    options = parser.parse_args()
    write_photos(options.folder, each=options.each, first_class=options.first_class)


if __name__ == "__main__":
    main()
