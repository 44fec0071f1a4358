"""Read one picture as an upright RGB tensor."""

import stat
import threading
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from lipcert.data.png import has_all_rows
from lipcert.data.resize import resize_square
from lipcert.errors import ArgumentError, DataError

FORMATS = ("PNG", "JPEG", "WEBP")
LARGEST = 50_000_000
"""Pixels of the largest picture that is decoded: 50 megapixels, below 1 GB of memory."""

LIMIT = f"at most {LARGEST // 10**6} megapixels are read, so make it smaller"
LARGE = 12_000_000
"""Pictures beyond this are decoded one at a time, so that several readers need no more memory than one."""

_opening, _decoding_large = threading.Lock(), threading.Lock()


@dataclass(frozen=True)
class ReadImage:
    """A picture file as an image of a data set.

    Attributes:
        levels: (3, H, W), uint8.
        exact: the same before it was rounded to 8 bits, float64 in [0, 1]; None if nobody asked for it.
        size: width and height of the picture before it was cut and resized.
    """

    levels: Tensor
    exact: Tensor | None
    size: tuple[int, int]


def read_image(path: str | Path, image_size: int | None = None, *, exact: bool = False) -> ReadImage:
    """Read a PNG, JPEG or WebP file as RGB.

    The camera's orientation is applied; grey becomes three equal channels (16-bit grey is scaled to 8); what
    is transparent shows white. Of a JPEG file with several pictures (MPO, of phones) the first one is read.

    Args:
        path: the file.
        image_size: cut the centred square out and resize it to this side (bicubic, `lipcert.data.resize`); by
            default leave the size.
        exact: with `image_size`, also return the picture as it is before rounding to 8 bits.

    Raises:
        DataError: the file is not there, is no such image, is damaged or truncated, is an animation, or has
            more than 50 million pixels.
    """
    if image_size is not None and image_size < 1:
        raise ArgumentError(f"image_size: expected at least 1 pixel, got {image_size}")
    with open_picture(path) as file:
        pixels = decode(file, str(path))
    height, width = pixels.shape[:2]
    before = None
    if image_size is not None:
        pixels = centre_square(pixels)
        if exact:
            before = resize_square(pixels, image_size).clip(0, 1)
        if len(pixels) != image_size:
            resized = resize_square(pixels, image_size) if before is None else before
            pixels = (resized * 255).round().clip(0, 255).astype(np.uint8)
    return ReadImage(_planes(pixels), None if before is None else _planes(before), (width, height))


def _planes(pixels: NDArray[Any]) -> Tensor:
    """(H, W, C) as (C, H, W)."""
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def open_picture(path: str | Path) -> BinaryIO:
    """Open a picture file for reading.

    Raises:
        DataError: there is no such file, it may not be read, or it is no regular file.
    """
    place = Path(path)
    try:
        kind = place.stat().st_mode
        # Opening a pipe would block until somebody writes to it. A folder fails below with its usual error.
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise DataError(f"{path}: expected a picture, got a pipe or a device; save it to a file first")
        return place.open("rb")
    except OSError as error:
        raise DataError(f"{path}: expected a picture: {error.strerror}") from error
    except ValueError as error:  # a NUL, or half of a character
        raise DataError(f"{str(path)!r}: expected a picture: no file can have this name") from error


def decode(file: BinaryIO, name: str) -> NDArray[np.uint8]:
    """Decode an open file to RGB as `read_image` does, (H, W, 3).

    Args:
        file: at its beginning, and able to seek.
        name: for the error.

    Raises:
        DataError: as `read_image`; the size in the header is checked before anything is decoded.
    """
    problem = f"{name}: cannot be read as a PNG, JPEG or WebP image"
    try:
        with _open(file) as image:
            width, height = image.size
            if width * height > LARGEST:
                raise ValueError(f"it is {width}x{height}; {LIMIT}")
            if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
                raise ValueError("it is an animation")
            file.seek(0)
            if not has_all_rows(file):
                raise ValueError("it is truncated")
            with _decoding_large if width * height > LARGE else nullcontext():
                ImageOps.exif_transpose(image, in_place=True)
                return np.array(_as_rgb(image), dtype=np.uint8)
    except Image.DecompressionBombError as error:  # more than 179 million, by Pillow's own count
        raise DataError(f"{problem}: it is far too large; {LIMIT}") from error
    except UnidentifiedImageError as error:
        raise DataError(problem) from error
    except Exception as error:
        # Decoders of damaged files raise almost any type; the file is at fault in each case.
        raise DataError(f"{problem}: {error}") from error


def centre_square(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The largest centred square of (H, W, C), as a view."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return pixels[top : top + side, left : left + side]


def _open(file: BinaryIO) -> Image.Image:
    """Read the header; the warning filters belong to all threads.

    Pillow warns of sizes that `LARGEST` refuses, and if only the first picture of an MPO file can be found,
    which is the one that is read.
    """
    with _opening, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", "Image appears to be a malformed MPO file")
        return Image.open(file, formats=FORMATS)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow would clip 16-bit levels at 255; 65535 / 257 = 255.
        levels = np.asarray(image).astype(np.int32)
        image = Image.fromarray(((levels + 128) // 257).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        white = Image.new("RGBA", opaque.size, "white")
        return Image.alpha_composite(white, opaque).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
