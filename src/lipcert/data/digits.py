"""The handwritten digits that scikit-learn carries inside: 1,797 grey images of 8x8, no file, no network."""

import numpy as np
import torch

from lipcert.data.dataset import Dataset
from lipcert.data.seeding import Stream
from lipcert.data.split import stratified
from lipcert.errors import ArgumentError, choose

SIDE = 8
TEST_COUNT = 360
TEST_SEED = 0


def load_digits(*, split: str = "train", image_size: int | None = None) -> Dataset:
    """Load the digits: 1,437 training or 360 test images, one channel.

    Stored levels v = 0 .. 16 become uint8 as round(255 v / 16), halves upwards: 0 -> 0, 8 -> 128, 16 -> 255.
    The test set is a fixed stratified choice of 360 images.

    Args:
        split: `train` or `test`.
        image_size: a multiple of 8; each pixel becomes a square of equal pixels. An image change of l2 norm d
            at 8x8 has norm d * image_size / 8 then, so radii are in the units of the size that is used.

    Raises:
        ArgumentError: `image_size` is not a multiple of 8.
    """
    from sklearn.datasets import load_digits as embedded  # takes a second to import; most runs do not need it

    choose("split", split, ("train", "test"))
    size = SIDE if image_size is None else image_size
    if size < SIDE or size % SIDE:
        raise ArgumentError(f"image_size: expected a multiple of {SIDE} for the digits, got {image_size}")
    source = embedded()
    levels = torch.from_numpy(source.images.astype(np.int64))
    images = ((levels * 255 + 8) // 16).to(torch.uint8)[:, None]
    images = images.repeat_interleave(size // SIDE, 2).repeat_interleave(size // SIDE, 3)
    labels = torch.from_numpy(source.target.astype(np.int64))
    whole = Dataset("digits", images, labels, tuple(str(digit) for digit in range(10)), split)
    train, test = stratified(labels, TEST_COUNT, Stream.TEST_SPLIT, TEST_SEED)
    return whole.subset(train if split == "train" else test)
