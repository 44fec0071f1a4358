import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipcert.data import Batches, CropFlip, Dataset, to_float
from lipcert.data.augment import Augmentation
from lipcert.errors import ArgumentError

Batch = tuple[Tensor, Tensor, Tensor]


def dataset_of(count: int) -> Dataset:
    images = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    return Dataset("random", images, torch.arange(count) % 4, ("a", "b", "c", "d"))


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a, b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)
    )


def test_plain_batches_are_the_dataset() -> None:
    dataset = dataset_of(10)
    batches = Batches(dataset, 4)
    assert (len(batches), batches.steps_per_epoch) == (3, 3)
    images, labels, indices = (torch.cat(part) for part in zip(*batches, strict=True))
    assert images.dtype == torch.float32
    assert torch.equal(images, dataset.images.float() / 255)
    assert torch.equal(labels, dataset.labels)
    assert indices.tolist() == list(range(10))


@pytest.mark.parametrize("drop_last", [True, False])
def test_shuffled_batches_visit_each_image_once(drop_last: bool) -> None:
    dataset = dataset_of(10)
    batches = list(Batches(dataset, 4, shuffle=True, drop_last=drop_last))
    assert [len(labels) for _, labels, _ in batches] == ([4, 4] if drop_last else [4, 4, 2])
    indices = torch.cat([indices for _, _, indices in batches]).tolist()
    assert len(set(indices)) == len(indices)
    assert indices != sorted(indices)
    for images, labels, chosen in batches:
        assert torch.equal(images, to_float(dataset.images[chosen]))
        assert torch.equal(labels, dataset.labels[chosen])


def test_augmentation_keeps_labels_with_their_images() -> None:
    count = 40
    images = torch.arange(1, count + 1).to(torch.uint8)[:, None, None, None].repeat(1, 3, 9, 9)
    dataset = Dataset("colours", images, torch.arange(count), tuple(map(str, range(count))))
    for batch, labels, indices in Batches(dataset, 16, shuffle=True, augment=CropFlip(4)):
        assert torch.equal(labels, indices)
        assert torch.equal(batch[:, 0, 4, 4], (labels + 1).float() / 255)


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 50),
    size=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 1000),
    shuffle=st.booleans(),
    augment=st.sampled_from([None, CropFlip(2)]),
    data=st.data(),
)
def test_a_resume_gets_the_same_bits(
    count: int,
    size: int,
    seed: int,
    epoch: int,
    shuffle: bool,
    augment: Augmentation | None,
    data: st.DataObject,
) -> None:
    dataset = dataset_of(count)
    whole = list(Batches(dataset, size, seed=seed, epoch=epoch, shuffle=shuffle, augment=augment))
    start = data.draw(st.integers(0, len(whole)))
    torch.manual_seed(start)
    rest = Batches(dataset, size, seed=seed, epoch=epoch, shuffle=shuffle, augment=augment, start_step=start)
    assert len(rest) == len(whole) - start
    assert same(list(rest), whole[start:])
    assert same(list(rest), whole[start:])


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 50),
    share=st.integers(1, 4),
    world=st.integers(1, 4),
    seed=st.integers(0, 100),
    augment=st.sampled_from([None, CropFlip(2)]),
)
def test_processes_share_one_batch(
    count: int, share: int, world: int, seed: int, augment: Augmentation | None
) -> None:
    dataset = dataset_of(count)
    size = share * world
    alone = list(Batches(dataset, size, seed=seed, shuffle=True, augment=augment))
    parts = [
        list(Batches(dataset, size, seed=seed, shuffle=True, augment=augment, rank=rank, world_size=world))
        for rank in range(world)
    ]
    together = [
        tuple(torch.cat(tensors) for tensors in zip(*step, strict=True)) for step in zip(*parts, strict=True)
    ]
    assert same(together, alone)
    for step, (_, labels, _) in enumerate(alone):
        lengths = [len(part[step][1]) for part in parts]
        assert max(lengths) - min(lengths) <= (0 if len(labels) == size else 1)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}])
def test_seed_and_epoch_change_order_and_augmentation(change: dict[str, int]) -> None:
    dataset = dataset_of(64)
    settings_ = {"seed": 0, "epoch": 0}

    def first(keys: dict[str, int], shuffle: bool) -> Batch:
        return next(iter(Batches(dataset, 64, shuffle=shuffle, augment=CropFlip(2), **keys)))

    assert not torch.equal(first(settings_, True)[2], first(settings_ | change, True)[2])
    assert not torch.equal(first(settings_, False)[0], first(settings_ | change, False)[0])


def test_steps_are_augmented_differently() -> None:
    image = dataset_of(1).images.repeat(32, 1, 1, 1)
    twice = Dataset("twice", image, torch.zeros(32).long(), ("a",))
    (first, _, _), (second, _, _) = Batches(twice, 16, augment=CropFlip(3))
    assert not torch.equal(first, second)


def test_the_dataset_stays_as_it_was() -> None:
    dataset = dataset_of(12)
    before = dataset.images.clone()
    for images, _, _ in Batches(dataset, 5, shuffle=True, augment=CropFlip(1)):
        images.zero_()
    assert torch.equal(dataset.images, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"batch_size": 3, "world_size": 2}, "batch_size: expected a multiple of the 2 processes, got 3"),
        ({"batch_size": 2, "world_size": 0}, "batch_size: expected a multiple of the 0 processes"),
        ({"batch_size": 2, "world_size": 2, "rank": 2}, "rank: expected 0 to 1, got 2"),
        ({"batch_size": 2, "rank": -1}, "rank: expected 0 to 0, got -1"),
        (
            {"batch_size": 11, "drop_last": True},
            "random has 10 images, not enough for a batch of 11; use .* at most 10",
        ),
        ({"batch_size": 5, "start_step": 3}, "start_step: expected 0 to 2, got 3"),
        ({"batch_size": 5, "start_step": -1}, "start_step: expected 0 to 2, got -1"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Batches(dataset_of(10), **arguments)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"random has 0 images, not enough for a batch of 2$"):
        Batches(dataset_of(3).subset([]), 2)
