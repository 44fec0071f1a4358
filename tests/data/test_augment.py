import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipcert.data import CropFlip
from lipcert.errors import ArgumentError

shapes = st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))
seeds = st.integers(0, 2**31)
paddings = st.integers(0, 5)
dtypes = st.sampled_from([torch.uint8, torch.float32, torch.float64])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    levels = torch.randint(1, 256, shape, generator=generator(seed))
    return levels.to(torch.uint8) if dtype == torch.uint8 else levels.to(dtype) / 255


def crop_and_flip(images: Tensor, source: torch.Generator, padding: int = 4) -> Tensor:
    change = CropFlip(padding)
    return change.apply(images, change.draw(len(images), source))


def one_by_one(images: Tensor, choices: Tensor, padding: int, border: str) -> Tensor:
    """The obvious way: for each image and pixel, look up where it comes from."""
    count, _, height, width = images.shape
    out = torch.zeros_like(images)
    for n in range(count):
        down, right, mirrored = choices[n].tolist()
        for y in range(height):
            for x in range(width):
                source_y = y + down - padding
                source_x = (width - 1 - x if mirrored else x) + right - padding
                if border == "reflect":
                    source_y, source_x = reflected(source_y, height), reflected(source_x, width)
                if 0 <= source_y < height and 0 <= source_x < width:
                    out[n, :, y, x] = images[n, :, source_y, source_x]
    return out


def reflected(place: int, side: int) -> int:
    return -place if place < 0 else 2 * (side - 1) - place if place >= side else place


@settings(deadline=None, max_examples=60)
@given(shape=shapes, dtype=dtypes, padding=paddings, seed=seeds, border=st.sampled_from(["black", "reflect"]))
def test_equals_the_obvious_way(
    shape: tuple[int, ...], dtype: torch.dtype, padding: int, seed: int, border: str
) -> None:
    images = random_images(shape, dtype)
    if border == "reflect":
        padding = min(padding, shape[2] - 1, shape[3] - 1)
    change = CropFlip(padding, border)
    choices = change.draw(len(images), generator(seed))
    expected = one_by_one(images, choices, padding, border)
    assert torch.equal(change.apply(images, choices), expected)


@settings(deadline=None, max_examples=60)
@given(shape=shapes, dtype=dtypes, padding=paddings, seed=seeds)
def test_shape_range_and_source(shape: tuple[int, ...], dtype: torch.dtype, padding: int, seed: int) -> None:
    images = random_images(shape, dtype)
    before = images.clone()
    out = crop_and_flip(images, generator(seed), padding)
    assert (out.shape, out.dtype) == (images.shape, images.dtype)
    assert torch.equal(images, before)
    for new, old in zip(out, images, strict=True):
        assert set(new.flatten().tolist()) <= {0, *old.flatten().tolist()}


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 40), padding=paddings, seed=seeds)
def test_images_are_never_mixed(count: int, padding: int, seed: int) -> None:
    """Each image has one colour, its own, so its label's number can be read from what comes out."""
    labels = torch.arange(1, count + 1)
    images = labels.to(torch.uint8)[:, None, None, None].expand(count, 3, 11, 11)
    out = crop_and_flip(images, generator(seed), padding)
    # Padding is at most 5 and the side is 11, so the centre always shows the image.
    assert torch.equal(out[:, :, 5, 5], labels.to(torch.uint8)[:, None].expand(count, 3))
    assert set(out.unique().tolist()) <= {0, *labels.tolist()}


@settings(deadline=None, max_examples=30)
@given(seed=seeds, padding=paddings)
def test_the_generator_alone_decides(seed: int, padding: int) -> None:
    images = random_images((6, 3, 8, 8), torch.uint8)
    source = generator(seed)
    first = crop_and_flip(images, source, padding)
    state = source.get_state()
    second = crop_and_flip(images, source, padding)
    torch.manual_seed(seed + 1)
    assert torch.equal(crop_and_flip(images, generator(seed), padding), first)
    assert torch.equal(crop_and_flip(images, source.clone_state().set_state(state), padding), second)


def test_all_crops_and_mirrors_are_as_likely() -> None:
    choices = CropFlip(1).draw(18_000, generator(0))
    counts = choices.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 2 * 3 * 3
    # 1000 expected each, standard deviation below sqrt(1000) = 32.
    assert (counts - 1000).abs().max() < 5 * 32


def test_uint8_and_float_see_the_same_change() -> None:
    images = random_images((16, 3, 32, 32), torch.uint8)
    change = crop_and_flip(images, generator(3))
    assert torch.equal(crop_and_flip(images.float() / 255, generator(3)), change.float() / 255)


def test_padding_0_leaves_only_the_mirror() -> None:
    images = random_images((50, 1, 4, 4), torch.uint8)
    out = crop_and_flip(images, generator(0), padding=0)
    same = (out == images).flatten(1).all(1)
    mirrored = (out == images.flip(3)).flatten(1).all(1)
    assert (same | mirrored).all()
    assert same.any()
    assert mirrored.any()


def test_works_on_an_expanded_view_and_any_layout() -> None:
    images = random_images((4, 3, 8, 6), torch.uint8)
    expected = crop_and_flip(images, generator(1))
    assert torch.equal(crop_and_flip(images.to(memory_format=torch.channels_last), generator(1)), expected)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="padding: expected 0 or more pixels, got -1"):
        crop_and_flip(torch.zeros(1, 1, 2, 2), generator(0), padding=-1)
    with pytest.raises(ArgumentError, match="border: expected one of black, reflect, got 'white'"):
        CropFlip(2, "white")
    with pytest.raises(ArgumentError, match="padding: expected less than the side of the images, 4 pixels"):
        CropFlip(4, "reflect").apply(torch.zeros(1, 3, 9, 4), torch.zeros(1, 3).long())
    with pytest.raises(ArgumentError, match=r"images: expected \(N, C, H, W\).*got \(3, 2, 2\)"):
        crop_and_flip(torch.zeros(3, 2, 2), generator(0))
    with pytest.raises(ArgumentError, match=r"images: expected.*got \(3, 1, 2, 2\) and \(2, 3\)"):
        CropFlip().apply(torch.zeros(3, 1, 2, 2), torch.zeros(2, 3).long())
