"""Which images to show beside their certificates, and the images themselves as data URIs."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from lipcert.certify.outcomes import Outcomes

PER_ROW = 8


@dataclass(frozen=True)
class Shown:
    """One image of the gallery, with names in place of class numbers."""

    uri: str
    index: int
    label: str
    prediction: str
    rival: str
    radius: float
    right: bool


@dataclass(frozen=True)
class Shelf:
    """A row of images that have something in common."""

    title: str
    note: str
    images: tuple[Shown, ...]


def gallery(outcomes: Outcomes, images: Tensor, classes: Sequence[str]) -> list[Shelf]:
    """Rows of images: smallest, median and largest radius among the right ones, and the wrong ones.

    Args:
        outcomes: certificates; `index` points into `images`.
        images: uint8, (M, C, H, W), the whole dataset.
        classes: the name of each class.
    """
    order = outcomes.radius.argsort(stable=True)
    right = order[outcomes.right[order]]
    wrong = order[~outcomes.right[order]].flip(0)
    middle = max(0, (len(right) - PER_ROW) // 2)
    shelves = [
        ("Nearest to a mistake", "right, with the smallest radius", right[:PER_ROW]),
        ("In the middle", "right, with a median radius", right[middle : middle + PER_ROW]),
        ("Safest", "right, with the largest radius", right.flip(0)[:PER_ROW]),
        ("Wrong", "misclassified, the surest mistakes first", wrong[:PER_ROW]),
    ]
    # Few images would stand in several rows; the first row that has them keeps them.
    seen: set[int] = set()
    found = []
    for title, note, rows in shelves:
        new = [row for row in rows.tolist() if row not in seen]
        seen.update(new)
        if new:
            found.append(Shelf(title, note, tuple(_shown(outcomes, row, images, classes) for row in new)))
    return found


def data_uri(image: Tensor) -> str:
    """A uint8 image (C, H, W) of one or three channels as a PNG inside a data URI.

    >>> data_uri(torch.zeros(1, 8, 8, dtype=torch.uint8)).partition(",")[0]
    'data:image/png;base64'
    """
    pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3])
    content = io.BytesIO()
    picture.save(content, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"


def _shown(outcomes: Outcomes, row: int, images: Tensor, classes: Sequence[str]) -> Shown:
    index, rival = int(outcomes.index[row]), int(outcomes.runner_up[row])
    return Shown(
        uri=data_uri(images[index].to(torch.uint8)),
        index=index,
        label=classes[int(outcomes.label[row])],
        prediction=classes[int(outcomes.prediction[row])],
        rival=classes[rival] if rival >= 0 else "",
        radius=float(outcomes.radius[row]),
        right=bool(outcomes.right[row]),
    )
