"""Answers to the events of the page, as pictures, HTML and messages; knows nothing of gradio."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from torch import Tensor

from lipcert.errors import DataError, LipcertError
from lipcert.explore.choices import Choices
from lipcert.explore.panel import render_panel
from lipcert.explore.state import Explorer

THUMBNAILS = 24
THUMBNAIL_SIDE = 64
"""Images are enlarged by whole factors up to about this, so that browsers do not blur them."""

Read = Callable[[Path], tuple[Tensor, str | None]]
"""A picture file -> uint8 (C, S, S) as the network takes it, and its size before if that changed."""


class Session:
    """The answers behind one page.

    Args:
        explorer: of the network.
        choices: its test images.
        read: reads dropped pictures; raises DataError.
    """

    def __init__(self, explorer: Explorer, choices: Choices, read: Read) -> None:
        self.explorer, self.choices, self.read = explorer, choices, read

    def test_image(self, value: object) -> tuple[str, str]:
        """Panel and message for an index; one of them is empty."""
        try:
            index = self.choices.index(value)
            images = self.choices.images
            finding = self.explorer.examine(images.images[index])
        except LipcertError as error:
            return "", message(str(error))
        label = int(images.labels[index])
        return render_panel(finding, images.classes, title=f"Test image {index}", label=label), ""

    def own_picture(self, file: str | Path) -> tuple[str, str]:
        """Panel and message for a dropped file; one of them is empty."""
        path = Path(file)
        try:
            picture, size = self.read(path)
            finding = self.explorer.examine(picture)
        except DataError as error:
            return "", message(_unreadable(path.name, error))
        except LipcertError as error:
            return "", message(str(error))
        side = picture.shape[-1]
        note = (
            f"Cut to its centre square and resized from {size} to {side}x{side}; all below is about that."
            if size
            else ""
        )
        return render_panel(finding, self.choices.images.classes, title=path.name, note=note), ""

    def thumbnails(self, indices: Sequence[int]) -> list[tuple[NDArray[np.uint8], str]]:
        """Pictures (H, W, 3) of test images for the page, each with its name for those who do not see it."""
        found, images = [], self.choices.images
        for index in indices:
            image = images.images[index]
            factor = max(1, THUMBNAIL_SIDE // image.shape[-1])
            large = image.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
            name = f"{index}: {images.classes[int(images.labels[index])]}"
            found.append((large.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy(), name))
        return found


def message(text: str) -> str:
    """One sentence for the page."""
    return f'<p role="alert">{escape(text)}</p>' if text else ""


def _unreadable(name: str, error: DataError) -> str:
    cause = error.__cause__
    # "Cannot identify image file" would not help the user.
    reason = "" if cause is None or isinstance(cause, UnidentifiedImageError) else f" ({cause})"
    return f"{name} cannot be read as a picture{reason}; please drop a PNG, JPEG or WebP file."
