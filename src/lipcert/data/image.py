"""One image file as an RGB tensor, upright, or an error that names the file."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from lipcert.errors import ArgumentError, DataError

FORMATS = ("PNG", "JPEG", "WEBP")


def read_image(path: str | Path, image_size: int | None = None) -> Tensor:
    """Read a PNG, JPEG or WebP file as uint8 RGB.

    The camera's orientation is applied; grey becomes three equal channels (16-bit grey is scaled to 8); what
    is transparent shows white.

    Args:
        path: the file.
        image_size: cut the centred square out and resize it to this side (bicubic); by default leave the
            size.

    Shape:
        (3, H, W), or (3, image_size, image_size).

    Raises:
        DataError: the file is not there, is no such image, is damaged, is an animation, or has more pixels
            than twice `PIL.Image.MAX_IMAGE_PIXELS` (179 million).
    """
    if image_size is not None and image_size < 1:
        raise ArgumentError(f"image_size: expected at least 1 pixel, got {image_size}")
    try:
        with warnings.catch_warnings():
            # Pillow warns of half of what it refuses.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                if getattr(image, "n_frames", 1) > 1:
                    raise ValueError("it is an animation")
                upright = _as_rgb(ImageOps.exif_transpose(image))
        if image_size is not None:
            side = min(upright.size)
            left, top = (upright.width - side) // 2, (upright.height - side) // 2
            square = upright.crop((left, top, left + side, top + side))
            upright = square.resize((image_size, image_size), Image.Resampling.BICUBIC)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise DataError(f"{path}: expected a picture: {error.strerror}") from error
    except Exception as error:
        # Decoders of damaged files raise almost any type; the file is at fault in each case.
        raise DataError(f"{path}: cannot be read as a PNG, JPEG or WebP image: {error}") from error
    return torch.from_numpy(np.array(upright, dtype=np.uint8)).permute(2, 0, 1).contiguous()


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow would clip 16-bit levels at 255; 65535 / 257 = 255.
        levels = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((levels + 128) // 257).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        white = Image.new("RGBA", opaque.size, "white")
        return Image.alpha_composite(white, opaque).convert("RGB")
    return image.convert("RGB")
