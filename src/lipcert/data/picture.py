"""A picture file as the pixels that a network takes."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipcert.data.image import centre_square, decode, open_picture
from lipcert.data.resize import resize_square
from lipcert.errors import ArgumentError

LUMA = np.array([19595, 38470, 7471]) / 65536
"""Weights of red, green and blue in a grey picture: ITU-R BT.601, as in Pillow. They sum to exactly 1."""


def read_picture(source: str | Path | BinaryIO, network: Any) -> Tensor:
    """Read a PNG, JPEG or WebP file as the tensor that `lipcert certify --images` certifies.

    The camera's orientation is applied, what is transparent shows white, and the centre square is cut out
    and resized in float64 (bicubic); nothing is rounded to 8 bits on the way. Networks of one channel get the
    weighted mean of red, green and blue. Radii are then about the resized picture. To certify several files
    at once, put what this returns together with `torch.cat`.

    Args:
        source: a file, or its content, open for reading and able to seek.
        network: what `lipcert.load`, `lipcert.prove`, `lipcert.export.load` or a builder returns; or the
            shape (C, S, S) of its inputs, C being 1 or 3.

    Shape:
        (1, C, S, S), float64 in [0, 1].

    Raises:
        DataError: the file is not there, is no such picture, is damaged or truncated, is an animation, or has
            more than 50 million pixels.
        ArgumentError: the network has no known input shape, or takes no square grey or colour pictures.

    >>> import io, PIL.Image
    >>> PIL.Image.new("RGB", (40, 30), "white").save(file := io.BytesIO(), "PNG")
    >>> read_picture(file, (3, 32, 32)).shape
    torch.Size([1, 3, 32, 32])
    """
    shape = _input_shape(network)
    if isinstance(source, str | Path):
        with open_picture(source) as file:
            whole = decode(file, str(source))
    else:
        source.seek(0)
        whole = decode(source, "picture")
    return as_input(whole, shape)[None]


def as_input(whole: NDArray[np.uint8], shape: tuple[int, ...]) -> Tensor:
    """The centre square of a decoded picture (H, W, 3) as a network for `shape` takes it: (C, S, S)."""
    channels, side, _ = shape
    pixels = resize_square(centre_square(whole), side)
    if channels == 1:
        pixels = pixels @ LUMA[:, None]
    return torch.from_numpy(pixels.clip(0, 1)).permute(2, 0, 1).contiguous()


def is_square(shape: tuple[int, ...]) -> bool:
    """Whether a network for inputs of this shape takes square grey or colour pictures."""
    return len(shape) == 3 and shape[0] in (1, 3) and shape[1] == shape[2]


def _input_shape(network: Any) -> tuple[int, ...]:
    """The shape itself, or that of the inputs of a network."""
    shape = network
    for holder in (network, getattr(network, "config", None), getattr(network, "metadata", None)):
        shape = getattr(holder, "input_shape", shape)
    expected = "expected a network with a known input shape, or the shape (C, S, S) of its inputs"
    if not isinstance(shape, tuple | list) or not all(type(n) is int and n > 0 for n in shape):
        got = repr(network) if isinstance(network, str | tuple | list) else type(network).__name__
        raise ArgumentError(f"network: {expected}, got {got}")
    if not is_square(tuple(shape)):
        raise ArgumentError(
            f"network: it takes {'x'.join(map(str, shape))}, but pictures are square, with 1 or 3 channels; "
            "pass a tensor to certify"
        )
    return tuple(shape)
