import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lipcert.data.image import read_image
from lipcert.errors import DataError


def levels(path: Path | str, image_size: int | None = None) -> torch.Tensor:
    return read_image(path, image_size).levels


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "picture.png"


def test_pixels_are_channels_rows_columns(path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    np.testing.assert_array_equal(levels(path).numpy(), pixels.transpose(2, 0, 1))


def test_grey_becomes_three_equal_channels(path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(pixels).save(path)
    np.testing.assert_array_equal(levels(path).numpy(), np.stack([pixels] * 3))


def test_16_bit_grey_is_scaled_not_cut(path: Path) -> None:
    Image.fromarray(np.array([[0, 257, 128, 129, 30_000, 65_535]], dtype=np.uint16)).save(path)
    assert levels(path)[0, 0].tolist() == [0, 1, 0, 1, 117, 255]


def test_black_and_white(path: Path) -> None:
    Image.fromarray(np.array([[False, True]])).save(path)
    assert levels(path)[2, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("alpha", "expected"), [(255, [10, 20, 30]), (0, [255, 255, 255]), (51, [206, 208, 210])]
)
def test_transparency_shows_white(path: Path, alpha: int, expected: list[int]) -> None:
    Image.new("RGBA", (2, 2), (10, 20, 30, alpha)).save(path)
    assert levels(path)[:, 0, 0].tolist() == expected


def test_a_transparent_grey_and_a_transparent_palette(path: Path) -> None:
    Image.new("LA", (1, 1), (40, 0)).save(path)
    assert levels(path)[:, 0, 0].tolist() == [255] * 3
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 4, 5, 6])
    palette.putpixel((1, 0), 1)
    palette.save(path, transparency=1)
    assert levels(path)[:, 0].T.tolist() == [[1, 2, 3], [255, 255, 255]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    """The eight values of the EXIF standard, as numpy operations on the upright picture."""
    upright = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    store = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.T,
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].T,
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(store(upright))).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(levels(tmp_path / "turned.png")[0].numpy(), upright)


def test_resizing_cuts_the_centre_square(path: Path) -> None:
    pixels = np.zeros((4, 8, 3), dtype=np.uint8)
    pixels[:, 2:6] = 90
    Image.fromarray(pixels).save(path)
    assert levels(path, image_size=2).flatten().tolist() == [90] * 12
    assert levels(path, image_size=9).shape == (3, 9, 9)


def test_the_same_size_changes_nothing(path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    np.testing.assert_array_equal(levels(path, image_size=5).numpy(), levels(path).numpy())


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for suffix in ("png", "jpg", "webp"):
        path = tmp_path / f"half.{suffix}"
        Image.fromarray(pixels).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(DataError, match=rf"half\.{suffix}: cannot be read"):
            levels(path)


def test_another_format_under_a_false_name_is_refused(path: Path) -> None:
    Image.new("RGB", (2, 2)).save(path, format="GIF")
    with pytest.raises(DataError, match=r"picture\.png: cannot be read as a PNG, JPEG or WebP"):
        levels(path)


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_an_animation_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"moves.{suffix}"
    frames = [Image.new("RGB", (4, 4), (level, 0, 0)) for level in (0, 250)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match=rf"moves\.{suffix}: .*it is an animation"):
        levels(path)


def png(width: int, height: int, rows: bytes, *, colour: int = 2, interlaced: int = 0) -> bytes:
    """A PNG of 8-bit samples with these rows, each after its filter byte, however many there should be."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, interlaced)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


@pytest.mark.parametrize(
    ("width", "height", "said"),
    [(13_000, 13_000, "13000x13000"), (7072, 7072, "7072x7072"), (20_000, 20_000, "far too large")],
)
def test_a_huge_image_is_refused_by_its_header(path: Path, width: int, height: int, said: str) -> None:
    """Without Pillow's warning, which the tests take for an error; nothing is there to be decoded."""
    path.write_bytes(png(width, height, b""))
    with pytest.raises(DataError, match=rf"picture\.png: .*: it is {said}; at most 50 megapixels"):
        levels(path)


def test_the_largest_image_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipcert.data.image.LARGEST", 1200)
    Image.new("RGB", (40, 30)).save(path)
    assert levels(path).shape == (3, 30, 40)


@pytest.mark.parametrize(
    ("colour", "interlaced", "whole"),
    # The passes of Adam7 have 1x1, 1x1, 0, 1x1, 3x1, 2x2 and 5x1 of the 5x3 pixels.
    [(2, 0, 3 * 16), (0, 0, 3 * 6), (6, 0, 3 * 21), (0, 1, 2 + 2 + 2 + 4 + 2 * 3 + 6)],
)
def test_a_png_that_lacks_rows_is_refused(path: Path, colour: int, interlaced: int, whole: int) -> None:
    """Its compressed stream ends properly, only too early: Pillow would fill in the rest and be content."""
    path.write_bytes(png(5, 3, bytes(whole), colour=colour, interlaced=interlaced))
    assert levels(path).shape == (3, 3, 5)
    path.write_bytes(png(5, 3, bytes(whole - 1), colour=colour, interlaced=interlaced))
    with pytest.raises(DataError, match=r"picture\.png: cannot be read .*: it is truncated$"):
        levels(path)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF", "ignore:Truncated File")
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_mutated_files_are_read_or_refused_with_one_sentence(tmp_path: Path, suffix: str) -> None:
    numbers = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / f"mutated.{suffix}"
    Image.fromarray(numbers.integers(0, 256, (12, 9, 3), dtype=np.uint8)).save(path, exif=exif)
    whole = path.read_bytes()
    refused = []
    for _ in range(150):
        content = bytearray(whole)
        for place in numbers.integers(0, len(whole), 3).tolist():
            content[place : place + int(numbers.integers(20))] = numbers.bytes(int(numbers.integers(20)))
        path.write_bytes(content)
        try:
            assert levels(path, image_size=4).shape == (3, 4, 4)
        except DataError as error:
            refused.append(str(error))
    assert refused
    assert all(len(sentence.splitlines()) == 1 for sentence in refused)


def test_a_missing_or_empty_file_is_named(path: Path) -> None:
    with pytest.raises(DataError, match=r"picture\.png: expected a picture: No such file or directory$"):
        levels(path)
    with pytest.raises(DataError, match=r"expected a picture: Is a directory$"):
        levels(path.parent)
    path.touch()
    with pytest.raises(DataError, match=r"picture\.png: cannot be read"):
        levels(path)


@pytest.mark.parametrize("name", ["a\0b.png", "\ud800.png"], ids=["NUL", "half"])
def test_a_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(DataError, match=r"\.png': expected a picture: no file can have this name$") as raised:
        levels(name)
    assert str(raised.value).isprintable()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"picture\.png: expected a picture, got a pipe or a device"):
        levels(path)


def write_mpo(path: Path, orientation: int) -> None:
    """Two pictures in one JPEG file, as phones write them."""
    pixels = np.zeros((20, 30, 3), dtype=np.uint8)
    pixels[:, :15] = 200
    exif = Image.Exif()
    exif[0x0112] = orientation
    first, second = Image.fromarray(pixels), Image.fromarray(255 - pixels)
    first.save(path.with_suffix(".alone.jpg"), exif=exif)
    first.save(path, "MPO", save_all=True, append_images=[second], exif=exif)
    with Image.open(path) as found:
        assert (found.format, found.n_frames) == ("MPO", 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("orientation", [1, 6])
def test_of_several_pictures_in_a_jpeg_file_the_first_is_read(tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "phone.jpg"
    write_mpo(path, orientation)
    np.testing.assert_array_equal(levels(path).numpy(), levels(path.with_suffix(".alone.jpg")).numpy())


def test_the_second_picture_of_a_jpeg_file_may_be_damaged_but_not_the_first(tmp_path: Path) -> None:
    path = tmp_path / "phone.jpg"
    write_mpo(path, 1)
    whole, alone = path.read_bytes(), path.with_suffix(".alone.jpg")
    path.write_bytes(whole[:-50])
    np.testing.assert_array_equal(levels(path).numpy(), levels(alone).numpy())
    path.write_bytes(whole[: alone.stat().st_size - 50])
    with pytest.raises(DataError, match=r"phone\.jpg: cannot be read .*[tT]runcated"):
        levels(path)
    # Without its index Pillow takes the file for an ordinary one, which is no reason to warn.
    assert b"MPF\0II*\0" in whole
    path.write_bytes(whole.replace(b"MPF\0II*\0", b"MPF\0XX*\0"))
    np.testing.assert_array_equal(levels(path).numpy(), levels(alone).numpy())
