"""Arrays and pictures: the same certificates as the tensor they stand for, or a refusal in one sentence."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import lipcert as lc
from lipcert.certify.curve import shown
from lipcert.certify.images import as_batch
from lipcert.data import to_float
from lipcert.errors import ArgumentError
from lipcert.nn import ConstantHead, Flatten

COLOUR, GREY = (3, 8, 8), (1, 8, 8)
LEVELS = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
PIXELS = to_float(torch.from_numpy(LEVELS))


def hwc(batch: np.ndarray) -> np.ndarray:
    return np.moveaxis(batch, 1, -1)


def pictures(batch: np.ndarray) -> list[Image.Image]:
    return [Image.fromarray(np.ascontiguousarray(image)) for image in hwc(batch)]


@pytest.mark.parametrize(
    "images",
    [
        LEVELS,
        hwc(LEVELS),
        np.asfortranarray(hwc(LEVELS)),
        hwc(LEVELS)[:, ::-1][:, ::-1],
        LEVELS.astype(np.float32) / np.float32(255),
        PIXELS.numpy().astype(">f4"),
        PIXELS,
        list(PIXELS),
        list(LEVELS),
        list(hwc(LEVELS)),
        tuple(hwc(LEVELS)),
        pictures(LEVELS),
    ],
    ids=[
        *("nchw", "nhwc", "fortran", "views", "float", "big-endian"),
        *("tensor", "tensors", "chw", "hwc", "tuple", "pil"),
    ],
)
def test_all_that_stands_for_the_same_images(images: object) -> None:
    found = as_batch(images, COLOUR)  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    assert torch.equal(found, PIXELS)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (LEVELS[0], COLOUR),
        (hwc(LEVELS)[0], COLOUR),
        (hwc(LEVELS)[0], None),
        (pictures(LEVELS)[0], COLOUR),
        (pictures(LEVELS)[0], None),
    ],
)
def test_one_image_is_a_batch_of_one(image: object, expected: tuple[int, ...] | None) -> None:
    assert torch.equal(as_batch(image, expected), PIXELS[:1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "images",
    [
        LEVELS[:, 0],
        LEVELS[:, :1],
        LEVELS[:, 0, :, :, None],
        [Image.fromarray(image) for image in LEVELS[:, 0]],
        list(LEVELS[:, 0]),
    ],
    ids=["nhw", "nchw", "nhwc", "pil", "hw"],
)
def test_grey_images(images: object) -> None:
    assert torch.equal(as_batch(images, GREY), PIXELS[:, :1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "image", [LEVELS[0, 0], LEVELS[0, :1], LEVELS[0, 0][..., None]], ids=["hw", "chw", "hwc"]
)
def test_one_grey_image_reads_in_one_way(image: np.ndarray) -> None:
    assert torch.equal(as_batch(image, GREY), PIXELS[:1, :1])
    assert torch.equal(as_batch(image), PIXELS[:1, :1])


def is_cube(shape: tuple[int, int, int]) -> bool:
    """Whether channels first and channels last are both of this shape, and not the same images."""
    channels, height, width = shape
    return channels == height == width > 1


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    count=st.integers(1, 3),
    last=st.booleans(),
)
def test_never_read_wrongly(shape: tuple[int, int, int], count: int, last: bool) -> None:
    # Any layout that is accepted gives back the images that were laid out.
    batch = np.random.default_rng(1).integers(0, 256, (count, *shape), dtype=np.uint8)
    laid_out = np.moveaxis(batch, 1, -1) if last else batch
    if is_cube(shape):
        with pytest.raises(ArgumentError, match="more than one way"):
            as_batch(laid_out, shape)
    else:
        assert torch.equal(as_batch(laid_out, shape), to_float(torch.from_numpy(batch)))


def test_arrays_are_copied() -> None:
    array = np.zeros((1, 3, 8, 8), dtype=np.float32)
    array.flags.writeable = False
    as_batch(array, COLOUR).add_(1)
    assert not array.any()


def test_an_empty_list() -> None:
    assert as_batch([], COLOUR).shape == (0, *COLOUR)
    with pytest.raises(ArgumentError, match="expected at least one image, got an empty list"):
        as_batch([])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.zeros((8, 8), dtype=np.uint8), r"images of shape \(3, 8, 8\).*got an array .*\(8, 8\)"),
        (lambda: np.zeros((2, 9, 8, 3)), r"images of shape \(3, 8, 8\).*of shape \(2, 9, 8, 3\)"),
        (lambda: np.zeros(5), r"got an array of shape \(5,\)"),
        (lambda: [np.zeros((1, 3, 8, 8))], r"an image of shape .* got an array of shape \(1, 3, 8, 8\)"),
        (lambda: np.full((1, 3, 8, 8), "a"), "expected an array of uint8 .* got <U1"),
        (lambda: [LEVELS[0], PIXELS[0].double()], r"one shape and type for all, got .* at position 1"),
        (lambda: [LEVELS[0], "a.png"], "expected a torch.Tensor, got list of str; a numpy array"),
        (lambda: "a.png", "expected a torch.Tensor, got str; a numpy array, a PIL image or a list"),
        (lambda: None, "expected a torch.Tensor, got NoneType"),
        (lambda: Image.new("L", (8, 8)), r'of mode RGB, got mode L; use image.convert\("RGB"\)'),
        (lambda: Image.new("RGBA", (8, 8)), r"of mode RGB, got mode RGBA"),
        (lambda: [Image.new("P", (8, 8))], r"of mode RGB, got mode P"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        as_batch(make(), COLOUR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 3, 3), (3, 3, 3)), ((2, 3, 3, 3), (3, 3, 3)), ((3, 8, 3), None), ((8, 3, 8, 1), None)],
)
def test_ambiguous_shapes_are_refused(shape: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    with pytest.raises(ArgumentError, match="can be read in more than one way; pass a "):
        as_batch(np.zeros(shape, dtype=np.uint8), expected)


def test_a_colour_picture_for_a_grey_model() -> None:
    with pytest.raises(ArgumentError, match=r'of mode L, got mode RGB; use image.convert\("L"\)'):
        as_batch(pictures(LEVELS), GREY)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return lc.lipconvnet(depth=5, num_classes=4, width=2, image_size=8, in_channels=3)


def test_certificates_are_those_of_the_tensor(model: nn.Module) -> None:
    expected = lc.certify(model, PIXELS)
    assert torch.equal(lc.certify(model, hwc(LEVELS)).radius, expected.radius)
    assert torch.equal(lc.certify(model, pictures(LEVELS)).radius, expected.radius)
    assert torch.equal(lc.certify(model, LEVELS[1]).prediction, expected.prediction[1:2])


def test_a_model_that_does_not_say_its_images() -> None:
    plain = nn.Sequential(Flatten(), ConstantHead(torch.eye(192)[:3], None))
    assert torch.equal(lc.certify(plain, hwc(LEVELS)).margin, lc.certify(plain, PIXELS).margin)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.from_numpy(LEVELS), r"got torch.uint8; use images.float\(\) / 255"),
        (LEVELS.astype(np.int64), r"got torch.int64"),
        (LEVELS.astype(np.float64), r"raw pixels in \[0, 1\], got 0 to 255"),
        (PIXELS.numpy().astype(np.float16), r"got torch.float16; use images.float\(\)"),
        (Image.new("RGB", (9, 8)), r"images of shape \(3, 8, 8\), which .*, got \(3, 8, 9\)"),
        ([PIXELS], r"expected a batch \(N, C, H, W\), got shape \(1, 4, 3, 8, 8\)"),
    ],
)  # fmt: skip
def test_what_certify_refuses(model: nn.Module, images: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        lc.certify(model, images)  # type: ignore[arg-type]


def test_short_forms(model: nn.Module) -> None:
    cert = lc.certify(model, PIXELS)
    certified = int((cert.radius > 0).sum())
    median = float(cert.radius.sort().values[1])
    printed = f"median radius {shown(median)}, proved"
    assert repr(cert) == f"Certificates(4 images, {certified} certified, {printed})"
    assert repr(replace(cert, proved=False)).endswith("measured)")
    assert repr(lc.certify(model, PIXELS[:0])) == "Certificates(0 images)"
    accuracy = lc.certified_accuracy(cert, cert.prediction, radii=(0.0, 36 / 255 + 1e5))
    assert repr(accuracy) == (
        f"CertifiedAccuracy(4 images, 100.00% right, certified {certified / 4:.2%} beyond 0.0000, "
        "0.00% beyond 100000.1411)"
    )
