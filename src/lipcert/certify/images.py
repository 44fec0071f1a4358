"""Converts numpy arrays, PIL images and lists of them to the batch that a model takes.

A torch tensor is not changed. In arrays and pictures uint8 means 0 to 255 and is divided by 255, floats are
pixels in [0, 1] already, and channels may come last. A shape that could be read in two ways is an error: a
picture that is read wrongly would still get a certificate, but about another picture.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.operators.operator import Shape

if TYPE_CHECKING:
    from PIL import Image

    Picture = Tensor | npt.NDArray[Any] | Image.Image
    Images = Picture | Sequence[Picture]

MODES = {1: "L", 3: "RGB"}
"""Modes of PIL images whose numbers are the pixels, by channels."""


def as_batch(images: "Images", expected: Shape | None = None) -> Tensor:
    """One image or several as a tensor (N, C, H, W); a tensor is returned as it is.

    uint8 arrays and PIL images become float32 in [0, 1] by one division by 255, to the bit what
    `lipcert.data.to_float` makes of the same numbers. `check_images` checks the result.

    Args:
        images: a tensor; an array (N, H, W, C), (N, C, H, W), (H, W, C), (C, H, W), or grey (H, W) and, if
            `expected` is given, (N, H, W); a PIL image of mode RGB or L; or a list of single images.
        expected: (C, H, W) of the images that the model takes, if it says so; decides what an axis means.

    Raises:
        ArgumentError: another type or mode, images of different sizes in one list, or a shape that could mean
            two things.

    >>> as_batch(np.full((2, 8, 8, 3), 255, dtype=np.uint8)).shape
    torch.Size([2, 3, 8, 8])
    """
    if isinstance(images, Tensor):
        return images
    if isinstance(images, np.ndarray):
        return _pixels(_ordered(images, expected, is_one=False))
    if _is_picture(images):
        return _pixels(_from_picture(images, expected)[None])
    if isinstance(images, (list, tuple)) and all(map(_is_image, images)):
        return _stacked([_one(image, expected) for image in images], expected)
    kind = type(images).__name__
    if isinstance(images, (list, tuple)):
        kind += f" of {next(type(image).__name__ for image in images if not _is_image(image))}"
    raise ArgumentError(
        f"images: expected a torch.Tensor, got {kind}; a numpy array, a PIL image or a list of them "
        "will also do"
    )


def _is_picture(image: object) -> "TypeGuard[Image.Image]":
    # A PIL image cannot exist before PIL is imported, and importing it here would cost time.
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(image, pil.Image)


def _is_image(image: object) -> bool:
    return isinstance(image, (Tensor, np.ndarray)) or _is_picture(image)


def _one(image: "Picture", expected: Shape | None) -> Tensor:
    """One item of a list as (C, H, W)."""
    if isinstance(image, Tensor):
        return image
    if isinstance(image, np.ndarray):
        return _pixels(_ordered(image, expected, is_one=True))[0]
    return _pixels(_from_picture(image, expected))


def _stacked(batch: list[Tensor], expected: Shape | None) -> Tensor:
    if not batch:
        if expected is None:
            raise ArgumentError("images: expected at least one image, got an empty list")
        return torch.empty(0, *expected, device="cpu")
    first = batch[0]
    for place, image in enumerate(batch):
        if image.shape != first.shape or image.dtype != first.dtype:
            raise ArgumentError(
                "images: expected one shape and type for all, got "
                f"{tuple(first.shape)} of {first.dtype} and, at position {place}, {tuple(image.shape)} of "
                f"{image.dtype}"
            )
    return torch.stack(batch)


def _pixels(array: npt.NDArray[Any]) -> Tensor:
    """The numbers as a tensor of their own; uint8 becomes float32 in [0, 1]."""
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        tensor = torch.from_numpy(native)
    except TypeError as error:
        raise ArgumentError(
            f"images: expected an array of uint8 (0 to 255) or of floats in [0, 1], got {array.dtype}"
        ) from error
    return tensor.to(torch.float32).div_(255) if tensor.dtype == torch.uint8 else tensor


def _from_picture(image: "Image.Image", expected: Shape | None) -> npt.NDArray[Any]:
    """(C, H, W) of a picture whose mode fits; conversions change pixels, so they are left to the caller."""
    wanted = sorted(MODES.values()) if expected is None else [MODES.get(expected[0], "RGB")]
    if image.mode not in wanted:
        raise ArgumentError(
            f"images: expected a PIL image of mode {' or '.join(wanted)}, got mode {image.mode}; use "
            f'image.convert("{wanted[-1]}")'
        )
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)


def _ordered(array: npt.NDArray[Any], expected: Shape | None, *, is_one: bool) -> npt.NDArray[Any]:
    """The array as (N, C, H, W)."""
    readings = {
        # One grey image is read in two ways that differ in the steps along axes of length 1: the same image.
        tuple((side, step * (side > 1)) for side, step in zip(batch.shape, batch.strides, strict=True)): batch
        for batch in _readings(array, expected, is_one=is_one)
        if _is_plausible(batch, expected)
    }
    if len(readings) > 1:
        raise ArgumentError(
            f"images: an array of shape {array.shape} can be read in more than one way; pass a torch.Tensor "
            "(N, C, H, W)"
        )
    if not readings:
        wanted = (
            "1 or 3 channels" if expected is None else f"shape {tuple(expected)} (channels, rows, columns)"
        )
        raise ArgumentError(
            f"images: expected {'an image' if is_one else 'images'} of {wanted}, with the channels first or "
            f"last, got an array of shape {array.shape}"
        )
    return next(iter(readings.values()))


def _readings(array: npt.NDArray[Any], expected: Shape | None, *, is_one: bool) -> Iterable[npt.NDArray[Any]]:
    """Every (N, C, H, W) that the axes could stand for."""
    if array.ndim == 2:
        yield array[None, None]
    elif array.ndim == 3:
        yield array[None]
        yield np.moveaxis(array, -1, 0)[None]
        if not is_one and expected is not None:
            yield array[:, None]
    elif array.ndim == 4 and not is_one:
        yield array
        yield np.moveaxis(array, -1, 1)


def _is_plausible(batch: npt.NDArray[Any], expected: Shape | None) -> bool:
    """Whether these are images for the model or, if it does not say, images of one or three channels."""
    return batch.shape[1] in MODES if expected is None else batch.shape[1:] == tuple(expected)


def check_images(images: Tensor, expected: Shape) -> None:
    """Raise an ArgumentError unless it is a batch of images of shape `expected` with pixels in [0, 1]."""
    if not isinstance(images, Tensor):
        raise ArgumentError(f"images: expected a torch.Tensor, got {type(images).__name__}")
    if images.is_nested or images.layout != torch.strided or images.device.type == "meta":
        raise ArgumentError(
            "images: expected a dense tensor with numbers in it, got a sparse, nested or meta one"
        )
    if images.dim() != 4:
        hint = "; add the batch axis with images[None]" if images.dim() == 3 else ""
        raise ArgumentError(f"images: expected a batch (N, C, H, W), got shape {tuple(images.shape)}{hint}")
    if images.dtype not in (torch.float32, torch.float64):
        hint = "images.float()" if images.is_floating_point() else "images.float() / 255"
        raise ArgumentError(
            f"images: expected float32 or float64 pixels in [0, 1], got {images.dtype}; use {hint}"
        )
    if tuple(images.shape[1:]) != tuple(expected):
        raise ArgumentError(
            f"images: expected images of shape {tuple(expected)}, which the network was proved for, "
            f"got {tuple(images.shape[1:])}"
        )
    if not bool(images.isfinite().all()):
        raise ArgumentError("images: expected finite pixels, got NaN or infinity")
    if images.numel() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise ArgumentError(
            f"images: expected raw pixels in [0, 1], got {float(images.min()):g} to {float(images.max()):g}; "
            "do not normalise them, the model does"
        )
