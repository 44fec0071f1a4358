"""Pictures as networks take them: a linear map with a proved norm, against dense matrices and Pillow."""

import hashlib
import io
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lipcert as lc
from lipcert.certify.independent.resized import stretch
from lipcert.certify.resized import ResizeBound, bound_resize
from lipcert.data.picture import LUMA
from lipcert.data.resize import resize_matrix, resize_square
from lipcert.errors import ArgumentError, DataError
from lipcert.pictures import answers, check_shape, read_picture

SIZES = [(20, 8), (33, 32), (31, 32), (8, 20), (1, 4), (7, 3), (300, 32), (64, 64)]


def random_picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def saved(pixels: np.ndarray) -> io.BytesIO:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    file.seek(0)
    return file


@pytest.mark.parametrize(("side", "size"), SIZES)
def test_resizing_is_what_pillow_does_in_floating_point(side: int, size: int) -> None:
    pixels = random_picture(side, side)
    found = resize_square(pixels, size)
    for channel in range(3):
        plane = Image.fromarray(pixels[..., channel].astype(np.float32) / np.float32(255))
        expected = np.asarray(plane.resize((size, size), Image.Resampling.BICUBIC))
        # Pillow keeps float32 numbers between its two passes.
        np.testing.assert_allclose(found[..., channel], expected, atol=4 * 2.0**-24, rtol=0)


@pytest.mark.parametrize(("side", "size"), SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_bound_is_the_norm_of_the_dense_map(side: int, size: int, channels: int) -> None:
    """All pixels at once where that is small enough, one direction squared elsewhere."""
    matrix = torch.tensor(resize_matrix(side, size))
    bound = bound_resize(matrix, channels)
    expected = stretch(side, size)
    assert expected * (1 - 1e-6) <= bound.norm <= expected * (1 + 1e-4)
    if side <= 33:
        dense = torch.einsum("ij,kl->ikjl", matrix, matrix).reshape(size * size, side * side)
        norm = float(torch.linalg.matrix_norm(dense, 2))
        assert norm * (1 - 1e-12) <= bound.norm <= norm * (1 + 1e-4)


@pytest.mark.parametrize(("side", "size"), [(20, 8), (7, 3), (8, 20)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_rounding_bound_holds_in_rational_arithmetic(side: int, size: int, channels: int) -> None:
    pixels = random_picture(side, side, seed=1)
    exact_matrix = np.vectorize(Fraction, otypes=[object])(resize_matrix(side, size))
    originals = np.vectorize(lambda k: Fraction(float(np.float32(k) / np.float32(255))), otypes=[object])(
        pixels
    )
    exact = np.stack([exact_matrix @ originals[..., c] @ exact_matrix.T for c in range(3)])
    if channels == 1:
        exact = sum(Fraction(w) * plane for w, plane in zip(LUMA.tolist(), exact, strict=True))[None]
    exact = np.clip(exact, 0, 1)
    found = read_picture(saved(pixels), (channels, size, size)).pixels.numpy()
    error = math.sqrt(sum((Fraction(float(a)) - b) ** 2 for a, b in zip(found.flat, exact.flat, strict=True)))
    bound = bound_resize(torch.tensor(resize_matrix(side, size)), channels).rounding
    assert 0 < error <= bound < 1e-11


def test_the_radius_in_the_original_is_rounded_down() -> None:
    bound = ResizeBound(norm=0.3, rounding=2.0**-40)
    exact = (Fraction(0.7) - 2 * Fraction(2.0**-40)) / Fraction(0.3)
    assert exact * (1 - Fraction(1, 2**50)) <= Fraction(bound.radius_before(0.7)) < exact
    assert bound.radius_before(0.0) == bound.radius_before(2.0**-41) == 0
    assert bound.radius_before(math.inf) == math.inf


@pytest.mark.parametrize("shape", [(30, 20), (6, 9)])
def test_the_radius_in_the_original_is_reached_and_not_exceeded(shape: tuple[int, int]) -> None:
    """A linear network, whose certificate is exact, looks where the resize stretches most."""
    size, side = 8, min(shape)
    matrix = torch.tensor(resize_matrix(side, size))
    all_left, stretches, all_right = torch.linalg.svd(matrix, full_matrices=False)
    left, right = all_left[:, 0], all_right[0]
    weight = torch.outer(left, left).repeat(3, 1, 1).flatten() / math.sqrt(3)
    file = saved(random_picture(*shape) // 2 + 64)
    picture = read_picture(file, (3, size, size))
    head = torch.nn.Linear(len(weight), 2, dtype=torch.float64)
    with torch.no_grad():
        head.weight[:] = torch.stack([weight, -weight]) / 2
        head.bias[:] = torch.tensor([0.05 - float(weight @ picture.pixels.flatten()), 0.0])
    network = lc.prove(torch.nn.Sequential(lc.Flatten(), head), input_shape=(3, size, size))
    (row,) = answers(network, [picture], network.certify(picture.pixels[None]))
    assert row["radius"] == pytest.approx(0.05, rel=1e-6)
    assert row["resized_from"] == f"{shape[1]}x{shape[0]}"
    direction = torch.outer(right, right) / math.sqrt(3)

    def prediction(length: float) -> str:
        """Of the picture that is changed by so much; the change is resized by itself, being a linear map."""
        moved = picture.pixels - matrix @ (length * direction) @ matrix.T
        assert 0 < float(moved.min()) < float(moved.max()) < 1
        return network.classes[int(network.certify(moved[None]).prediction)]

    reached = row["radius_original"]
    assert prediction(reached) == row["prediction"]
    assert prediction(reached * 1.001) != row["prediction"]
    assert reached == pytest.approx(row["radius"] / float(stretches[0]) ** 2, rel=1e-4)


def test_grey_networks_take_the_weighted_mean() -> None:
    pixels = random_picture(8, 8)
    found = read_picture(saved(pixels), (1, 8, 8))
    assert found.resized_from is None
    expected = np.asarray(Image.fromarray(pixels).convert("L")).astype(float)
    assert np.abs(found.pixels[0].numpy() * 255 - expected).max() < 0.51  # Pillow rounds to levels
    grey = read_picture(saved(np.repeat(pixels[..., :1], 3, axis=2)), (1, 8, 8))
    assert torch.equal(
        grey.pixels[0], torch.tensor(pixels[..., 0].astype(np.float32) / np.float32(255)).double()
    )


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(saved(random_picture(9, 12)).getvalue())
    found = read_picture(path, (3, 8, 8))
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found.pixels.shape, found.size, found.resized_from) == ((3, 8, 8), (12, 9), "12x9")


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(DataError, match=r"^mine: cannot be read as a PNG, JPEG or WebP image$"):
        read_picture(io.BytesIO(b"no picture"), (3, 8, 8), name="mine")
    with pytest.raises(DataError, match=r"^picture: is 12x9, but the network takes 8x8"):
        read_picture(saved(random_picture(9, 12)), (3, 8, 8), resize=False)


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 8, 6), (12,)])
def test_networks_that_take_no_pictures(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"^images: the network takes .*, but pictures are square"):
        check_shape(shape)


def test_the_public_reader_gives_what_records_are_of(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(saved(random_picture(9, 12)).getvalue())
    model = lc.lipconvnet(depth=5, num_classes=10, width=4, image_size=8, in_channels=1)
    expected = read_picture(path, (1, 8, 8)).pixels[None]
    for network in (model, lc.prove(model), (1, 8, 8), [1, 8, 8]):
        assert torch.equal(lc.read_picture(path, network), expected)
    assert torch.equal(lc.read_picture(str(path), model), expected)
    with path.open("rb") as file:
        file.read(1)  # wherever it was read to
        assert torch.equal(lc.read_picture(file, model), expected)
    assert (expected.shape, expected.dtype) == ((1, 1, 8, 8), torch.float64)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ((3, 8, 6), "it takes 3x8x6, but pictures are square"),
        ((2, 8, 8), "it takes 2x8x8, but pictures are square"),
        ((3, 8, 8.0), r"expected a network with a known input shape, or the shape .*, got \(3, 8, 8.0\)"),
        ("lipconvnet5-cifar10", "expected a network with a known input shape, .* got 'lipconvnet5-cifar10'"),
        (torch.nn.Linear(2, 2), "expected a network with a known input shape, .* got Linear"),
    ],
)
def test_the_public_reader_refuses_what_takes_no_pictures(network: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^network: {message}"):
        lc.read_picture(saved(random_picture(8, 8)), network)


def test_the_public_reader_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    with pytest.raises(DataError, match=r"a\.png: expected a picture: No such file"):
        lc.read_picture(path, (3, 8, 8))
    path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a\.png: cannot be read as a PNG, JPEG or WebP image$"):
        lc.read_picture(str(path), (3, 8, 8))
