"""Lines of certificates.jsonl after the first: test images, or pictures without labels, readable or not."""

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from reprlib import repr as brief
from typing import Any, TypedDict

from lipcert.schema import build

ONLY_OF_PICTURES = ("file", "sha256", "resized_from", "radius_original", "error")


@dataclass(frozen=True)
class PictureRow:
    """The entries that only pictures without labels have.

    Attributes:
        file: its path.
        sha256: of the file.
        resized_from: its size before ("640x480"), None if that did not change.
        radius_original: radius in the original; that of the picture itself if it was not resized.
    """

    file: str
    sha256: str
    resized_from: str | None
    radius_original: float


@dataclass(frozen=True)
class Unread:
    """The line of a picture that could not be read: nothing but the reason."""

    index: int
    file: str
    error: str


class Line(TypedDict):
    """A test image: null is an unknown label, and infinite in margin, rounding and radius."""

    index: int
    label: int | None
    prediction: int
    runner_up: int
    margin: float | None
    rounding: float | None
    radius: float | None


class PictureLine(Line):
    """A picture without a label: `label` is null; `radius_original` is, too, where it was not resized."""

    file: str
    sha256: str
    resized_from: str | None
    radius_original: float | None


@dataclass(frozen=True)
class Row:
    """The certificate of one image; `picture` is set for pictures without labels."""

    index: int
    label: int | None
    prediction: int
    runner_up: int
    margin: float
    rounding: float
    radius: float
    picture: PictureRow | None = None

    def __post_init__(self) -> None:
        for name in ("index", "margin", "rounding", "radius"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name}: expected a number that is not negative, or null, got {value!r}")


def read_test_image(content: Any, name: str) -> Row:
    """The row of a test image from a line that is called `name`; raises a ValueError if it is not one."""
    line: Line = build(Line, content, name)
    if extra := [entry for entry in ONLY_OF_PICTURES if entry in line]:
        raise ValueError(f"{name}.{extra[0]}: expected nothing, for only pictures without a data set have it")
    return _row(line)


def read_own_picture(content: Any, name: str) -> Row | Unread:
    """The same for a picture without a label."""
    if isinstance(content, dict) and "error" in content:
        # Any further entry would be a claim that nothing checks.
        unread: Unread = build(Unread, content, name)
        if not unread.error or len(content) > len(fields(Unread)):
            raise ValueError(f"{name}: expected index, file and a reason under error, got {brief(content)}")
        return unread
    line: PictureLine = build(PictureLine, content, name)
    if line["label"] is not None:
        raise ValueError(f"{name}.label: expected null for a picture without a data set, got {line['label']}")
    row, size, original = _row(line), line["resized_from"], line["radius_original"]
    if size is None and original is not None:
        raise ValueError(f"{name}.radius_original: expected null, for resized_from is null, got {original}")
    if size is not None and original is None and row.radius < math.inf:
        raise ValueError(f"{name}.radius_original: null is infinite, but the radius is {row.radius}")
    if original is None:
        original = row.radius
    if original < 0:
        raise ValueError(f"{name}.radius_original: expected a number that is not negative, got {original}")
    return replace(row, picture=PictureRow(line["file"], line["sha256"], size, original))


def _row(line: Line) -> Row:
    margin, rounding, radius = (
        math.inf if value is None else value for value in (line["margin"], line["rounding"], line["radius"])
    )
    return Row(line["index"], line["label"], line["prediction"], line["runner_up"], margin, rounding, radius)


def check_places(places: list[int], count: int) -> None:
    """Raise a ValueError unless every picture has one line at most."""
    if beyond := [place for place in places if not 0 <= place < count]:
        raise ValueError(f"index: expected a place among {count} pictures, got {beyond[0]}")
    if twice := [place for place, lines in Counter(places).items() if lines > 1]:
        raise ValueError(f"index: expected one line for each picture, got several for {twice[0]}")
