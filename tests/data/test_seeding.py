import numpy as np
import pytest
import torch

from lipcert.data.seeding import Stream, generator, permutation
from lipcert.errors import ArgumentError


def test_words_are_pinned() -> None:
    """Fails if a version of numpy changes what it promises to keep; every recorded split would change too."""
    assert np.random.PCG64(np.random.SeedSequence([1, 2, 3, 4])).random_raw(2).tolist() == [
        557579879607704519,
        17427803069986898166,
    ]
    assert permutation(12, Stream.ORDER, seed=7, epoch=3).tolist() == [11, 5, 9, 8, 0, 10, 4, 3, 7, 1, 6, 2]


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_is_a_permutation(count: int) -> None:
    assert permutation(count, Stream.ORDER, 0).sort().values.tolist() == list(range(count))


def test_every_order_of_three_is_as_likely() -> None:
    seen = np.unique(
        [permutation(3, Stream.ORDER, seed).tolist() for seed in range(1200)], axis=0, return_counts=True
    )[1]
    assert len(seen) == 6
    # 200 expected each, standard deviation sqrt(1200 * 5/36) = 13.
    assert abs(seen - 200).max() < 5 * 13


def test_streams_seeds_epochs_and_steps_are_independent() -> None:
    keys = [
        (stream, seed, epoch, step)
        for stream in Stream
        for seed in (0, 1)
        for epoch in (0, 1)
        for step in (0, 1)
    ]
    draws = {tuple(torch.rand(3, generator=generator(*key)).tolist()) for key in keys}
    assert len(draws) == len(keys) == 32


def test_a_generator_is_fresh_each_time() -> None:
    first, second = (torch.rand(3, generator=generator(Stream.AUGMENT, 1, 2, 3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("epoch", "step", "name"), [(-1, 0, "epoch"), (0, 2**32, "step")])
def test_out_of_range_is_refused(epoch: int, step: int, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: expected an integer from 0"):
        generator(Stream.AUGMENT, 0, epoch, step)
