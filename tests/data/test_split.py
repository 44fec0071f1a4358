import dataclasses

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lipcert.data import Dataset, hold_out
from lipcert.data.seeding import Stream
from lipcert.data.split import stratified
from lipcert.errors import ArgumentError


def dataset_of(labels: torch.Tensor) -> Dataset:
    images = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return Dataset("plain", images, labels, tuple(str(i) for i in range(int(labels.max()) + 1)))


def shuffled_labels(sizes: list[int], seed: int = 0) -> torch.Tensor:
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize(
    ("total", "classes", "held"),
    [(50_000, 10, 5000), (50_000, 100, 5000), (1440, 10, 144), (100_000, 10, 5000)],
)
def test_holds_out_5000_or_a_tenth(total: int, classes: int, held: int) -> None:
    labels = shuffled_labels([total // classes] * classes)
    train, validation = hold_out(dataset_of(labels))
    assert (len(train), len(validation)) == (total - held, held)
    counts = labels[validation].bincount()
    assert counts.max() - counts.min() <= 1


def test_a_tiny_set_still_holds_out_every_class() -> None:
    labels = shuffled_labels([4, 4, 4])
    assert sorted(labels[hold_out(dataset_of(labels)).validation].tolist()) == [0, 1, 2]


def test_the_choice_is_pinned() -> None:
    held = hold_out(dataset_of(torch.arange(30) % 3), seed=1)
    assert held.validation.tolist() == [14, 24, 28]
    assert held.fingerprint == "7e11da4e8172233aa52b3da50f875da4af7d4f5b7024ccea4a0a6e648a7510da"


def test_the_choice_depends_on_the_seed_and_the_labels_alone() -> None:
    dataset = dataset_of(shuffled_labels([50, 50]))
    brighter = dataclasses.replace(dataset, images=dataset.images + 1)
    prints = [hold_out(d, seed=s).fingerprint for d, s in ((dataset, 0), (brighter, 0), (dataset, 1))]
    assert prints[0] == prints[1] != prints[2]


def test_random_order_within_a_class() -> None:
    validation = hold_out(dataset_of(torch.zeros(1000).long())).validation
    # 100 of 1000 uniform positions: their mean is 500 with a standard deviation of about 27.
    assert abs(validation.double().mean() - 500) < 6 * 27


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(0, 30).filter(lambda n: n != 1), min_size=1, max_size=6), data=st.data())
def test_stratified_parts(sizes: list[int], data: st.DataObject) -> None:
    present = sum(size > 0 for size in sizes)
    assume(present)
    labels = shuffled_labels(sizes)
    count = data.draw(st.integers(present, sum(sizes) - present))
    train, chosen = stratified(labels, count, Stream.HOLD_OUT, seed=data.draw(st.integers(0, 2**32 - 1)))
    assert sorted(train.tolist() + chosen.tolist()) == list(range(sum(sizes)))
    assert train.tolist() == sorted(train.tolist())
    assert len(chosen) == count
    for part in (train, chosen):
        assert set(labels[part].tolist()) == set(labels.tolist())
    for number, size in enumerate(sizes):
        share = size * count / sum(sizes)
        taken = int((labels[chosen] == number).sum())
        # Within one image of the exact share, except where the limits (one, all but one) push images around.
        if all(1 <= s * count / sum(sizes) <= s - 1 for s in sizes if s):
            assert abs(taken - share) < 1


@pytest.mark.parametrize("count", [-1, 0, 2, 28])
def test_impossible_counts_are_refused(count: int) -> None:
    with pytest.raises(ArgumentError, match=f"count: expected 3 to 27 images.*got {count}"):
        stratified(shuffled_labels([10, 10, 10]), count, Stream.HOLD_OUT, 0)


def test_hold_out_passes_a_low_count_on() -> None:
    with pytest.raises(ArgumentError, match="count: expected 3 to 27 images"):
        hold_out(dataset_of(shuffled_labels([10, 10, 10])), count=2)


def test_a_single_image_cannot_be_split() -> None:
    with pytest.raises(ArgumentError, match=r"class 1 \(from 0\) has one image only"):
        hold_out(dataset_of(torch.tensor([0, 0, 0, 1, 2, 2])))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(ArgumentError, match=f"seed: expected an integer from 0 .* got {seed}"):
        hold_out(dataset_of(torch.arange(30) % 3), seed=seed)
