"""Random crops and flips of whole batches, as tensor operations on any device."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError, choose


class Augmentation(Protocol):
    """A random change of images, split in two so that several processes can share one batch's draws.

    - `draw(count, generator)` returns one row of choices per image and uses nothing but the generator.
    - `apply(images, choices)` changes image i by row i alone, without any randomness of its own.
    """

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the random choices for `count` images, first dimension `count`."""

    def apply(self, images: Tensor, choices: Tensor) -> Tensor:
        """Return the images as the choices say; same shape and dtype."""


BORDERS = ("black", "reflect")


@dataclass(frozen=True)
class CropFlip:
    """Pad, crop back to the old size at a random place, mirror left-right with probability 1/2.

    The paper pads 32x32 images by 4 black pixels, before the model's normalisation. No picture of the test
    set has such a frame, and in l2 it is far from any border that a picture could have; "reflect" continues
    the picture by its mirror image instead.

    Args:
        padding: pixels added on every side; 0 leaves only the mirror.
        border: "black", or "reflect", which repeats no pixel of the edge itself: c b [a b c] b a.
    """

    padding: int = 4
    border: str = "black"

    def __post_init__(self) -> None:
        choose("border", self.border, BORDERS)
        if self.padding < 0:
            raise ArgumentError(f"padding: expected 0 or more pixels, got {self.padding}")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return (row, column, mirrored) of each image, (count, 3) int64, rows and columns in 0 .. 2p."""
        places = 2 * self.padding + 1
        # One number per image picks all three, so the n-th image's choices use the n-th draw.
        drawn = torch.randint(2 * places * places, (count,), generator=generator, device=generator.device)
        row_and_column = drawn // 2
        return torch.stack((row_and_column // places, row_and_column % places, drawn % 2), dim=1)

    def apply(self, images: Tensor, choices: Tensor) -> Tensor:
        """Crop and mirror image i as row i of `choices` says.

        Shape:
            images (N, C, H, W) of any dtype, choices (N, 3) -> (N, C, H, W).
        """
        if images.ndim != 4 or choices.shape != (len(images), 3):
            raise ArgumentError(
                "images: expected (N, C, H, W) and one (row, column, mirrored) each, got "
                f"{tuple(images.shape)} and {tuple(choices.shape)}"
            )
        count, channels, height, width = images.shape
        device = images.device
        row, column, mirrored = choices.to(device)[:, :, None].unbind(1)
        rows = row + torch.arange(height, device=device)
        across = torch.arange(width, device=device)
        columns = column + torch.where(mirrored.bool(), width - 1 - across, across)
        if self.border == "reflect":
            rows, columns = self._reflected(rows, height), self._reflected(columns, width)
            padded = images
        else:
            padded = F.pad(images, (self.padding,) * 4)
        # Where in its padded plane each pixel comes from, alike for all channels: one gather for the batch.
        source = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
        source = source.reshape(count, 1, height * width).expand(-1, channels, -1)
        return padded.flatten(2).gather(2, source).reshape(images.shape)

    def _reflected(self, places: Tensor, side: int) -> Tensor:
        """Where places of the padded picture lie in the picture itself."""
        if self.padding >= side:
            raise ArgumentError(
                f"padding: expected less than the side of the images, {side} pixels, to reflect them, got "
                f"{self.padding}"
            )
        last = side - 1
        return last - (last - (places - self.padding).abs()).abs()
