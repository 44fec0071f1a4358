"""Random numbers that depend only on seed, epoch and step, so that any step can be drawn by itself.

Orders and splits come from the raw 64-bit words of numpy's PCG64, seeded through SeedSequence. numpy keeps
both streams fixed from version to version, which it does not promise for the methods of `Generator` (nor
torch for `randperm`), so a split made today is the split made in five years. The tests pin the words.
"""

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from lipcert.errors import ArgumentError


class Stream(IntEnum):
    """What a draw is for. Draws of different streams are independent though they share seed and epoch."""

    ORDER = 1
    AUGMENT = 2
    HOLD_OUT = 3
    TEST_SPLIT = 4


def permutation(count: int, stream: Stream, seed: int, epoch: int = 0) -> Tensor:
    """Return a random order of 0 .. count - 1, fixed by the numbers given.

    >>> permutation(6, Stream.ORDER, seed=0).tolist()
    [2, 4, 5, 0, 3, 1]
    """
    words = np.random.PCG64(_sequence(stream, seed, epoch, 0)).random_raw(count)
    # Sorting random keys is a uniform order up to ties, and 64-bit keys tie with probability below n^2 /
    # 2^65.
    return torch.from_numpy(np.argsort(words, kind="stable").astype(np.int64))


def generator(stream: Stream, seed: int, epoch: int, step: int) -> torch.Generator:
    """Return a fresh CPU generator, fixed by the numbers given; the same in every process."""
    word = _sequence(stream, seed, epoch, step).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(word) >> 1)


def _sequence(stream: Stream, seed: int, epoch: int, step: int) -> np.random.SeedSequence:
    keys = {"seed": seed, "epoch": epoch, "step": step}
    for name, value in keys.items():
        # One 32-bit word each: SeedSequence would spread a larger number over two, and keys could coincide.
        if not 0 <= value < 2**32:
            raise ArgumentError(f"{name}: expected an integer from 0 to 2**32 - 1, got {value}")
    return np.random.SeedSequence([int(stream), *keys.values()])
