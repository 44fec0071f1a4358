"""Picture files as network inputs, and certificates in terms of the original picture.

Also what records say about a test set, whose images may have been resized.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lipcert.certify.certificates import Certificates
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.records import Images, finite
from lipcert.certify.resized import ResizeBound, bound_resize
from lipcert.data.dataset import Dataset
from lipcert.data.image import decode, open_picture
from lipcert.data.picture import as_input, is_square
from lipcert.data.resize import resize_matrix
from lipcert.errors import ArgumentError, DataError
from lipcert.operators import Shape


@dataclass(frozen=True)
class Picture:
    """A picture as a network takes it.

    Attributes:
        pixels: (C, S, S), float64 in [0, 1].
        sha256: of the file.
        size: width and height of the file's picture, upright.
    """

    pixels: Tensor
    sha256: str
    size: tuple[int, int]

    @property
    def resized_from(self) -> str | None:
        """Its size before ("640x480"), None if that did not change."""
        return _resized_from(self.size, self.pixels.shape[-1])

    @property
    def bound(self) -> ResizeBound:
        """Bound on how much resizing can increase the distance between two pictures."""
        channels, size, _ = self.pixels.shape
        return _bound(min(self.size), size, channels)


def check_shape(shape: Shape) -> None:
    """Raise an ArgumentError unless the network takes square grey or colour pictures."""
    if not is_square(shape):
        raise ArgumentError(
            f"images: the network takes {'x'.join(map(str, shape))}, but pictures are square, with 1 or 3 "
            "channels; use ProvedNetwork.certify"
        )


def read_picture(
    source: Path | BinaryIO, shape: Shape, *, resize: bool = True, name: str | None = None
) -> Picture:
    """Read a picture as the input of a network for images of `shape`, with its SHA-256 and size.

    The pixels are those of the public `lipcert.read_picture`.

    Args:
        source: a file, or its content, open for reading.
        shape: (C, S, S), C being 1 or 3.
        resize: if False, pictures of other sizes are an error.
        name: of the picture, for errors; else its path.

    Raises:
        DataError: it is no picture, is damaged or too large, or has another size and may not be resized.
    """
    if isinstance(source, Path):
        with open_picture(source) as file:
            return read_picture(file, shape, resize=resize, name=name or str(source))
    name = name or "picture"
    sha256 = hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]
    source.seek(0)
    whole = decode(source, name)
    side = shape[1]
    height, width = whole.shape[:2]
    if (height, width) != (side, side) and not resize:
        raise DataError(
            f"{name}: is {width}x{height}, but the network takes {side}x{side}; leave out --no-resize"
        )
    return Picture(as_input(whole, shape), sha256, (width, height))


def as_levels(picture: Picture) -> tuple[Tensor, str | None]:
    """The picture rounded to 8 bits, uint8 (C, S, S), and its size before it was resized."""
    return (picture.pixels * 255).round().to(torch.uint8), picture.resized_from


def answers(
    network: ProvedNetwork, pictures: Sequence[Picture], certificates: Certificates
) -> list[dict[str, Any]]:
    """Certificates of pictures as dictionaries for JSON; None stands for an infinite number."""
    names = [*network.classes, None]  # -1 is the runner-up of a single class
    return [
        {
            "prediction": network.classes[prediction],
            "runner_up": names[runner_up],
            "margin": finite(margin),
            "rounding": rounding,
            "radius": finite(radius),
            "resized_from": picture.resized_from,
            "radius_original": finite(picture.bound.radius_before(radius)) if picture.resized_from else None,
            "network_sha256": network.hash,
        }
        for picture, prediction, runner_up, margin, rounding, radius in zip(
            pictures,
            certificates.prediction.tolist(),
            certificates.runner_up.tolist(),
            certificates.margin.tolist(),
            certificates.rounding.tolist(),
            certificates.radius.tolist(),
            strict=True,
        )
    ]


def about(images: Dataset) -> Images:
    """What records state about a test set: name, hash, labels, and from what size its images were resized."""
    originals = None
    if images.sizes is not None:
        channels, side, _ = images.image_shape
        named = [(_resized_from(size, side), min(size)) for size in images.sizes]
        originals = [None if name is None else (name, _bound(least, side, channels)) for name, least in named]
    return Images(images.name, images.fingerprint, len(images), images.labels, originals)


def _resized_from(size: tuple[int, int], side: int) -> str | None:
    """Width and height as text ("640x480"); None if they are those of the network's images."""
    return None if size == (side, side) else f"{size[0]}x{size[1]}"


@lru_cache(maxsize=256)
def _bound(side: int, size: int, channels: int) -> ResizeBound:
    return bound_resize(torch.from_numpy(resize_matrix(side, size).copy()), channels)
