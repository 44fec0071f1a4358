"""Lines of certificates.jsonl after the first: test images, or pictures without labels, readable or not."""

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from reprlib import repr as brief
from typing import Any, TypedDict

from lipcert.schema import build

ONLY_OF_PICTURES = ("file", "sha256", "error")
OF_ORIGINALS = ("resized_from", "radius_original")


@dataclass(frozen=True)
class PictureRow:
    """The entries that only pictures without labels have: path and SHA-256 of the file."""

    file: str
    sha256: str


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


class ResizedLine(Line):
    """A test image of a folder: null under `resized_from` is a picture that kept its size.

    `radius_original` is null in that case, too, and otherwise infinite.
    """

    resized_from: str | None
    radius_original: float | None


class PictureLine(ResizedLine):
    """A picture without a label: `label` is null."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Row:
    """The certificate of one image.

    Attributes:
        index: position of the image.
        label: true class, None if unknown.
        prediction: class.
        runner_up: the class that limits the radius; -1 if there is one class.
        margin: of the prediction over the runner-up.
        rounding: what was taken off the margin.
        radius: in pixel units.
        resized_from: size before the resize ("640x480"), None if it did not change.
        radius_original: radius in the original, that of the image itself if it was not resized; None for sets
            whose images have one size.
        picture: for pictures without labels.
    """

    index: int
    label: int | None
    prediction: int
    runner_up: int
    margin: float
    rounding: float
    radius: float
    resized_from: str | None = None
    radius_original: float | None = None
    picture: PictureRow | None = None

    def __post_init__(self) -> None:
        for name in ("index", "margin", "rounding", "radius"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"{name}: expected a number that is not negative, or null, got {value!r}")


def read_test_image(content: Any, name: str) -> Row:
    """The row of a test image from a line that is called `name`; raises a ValueError if it is not one."""
    if not (isinstance(content, dict) and any(entry in content for entry in OF_ORIGINALS)):
        line: Line = build(Line, content, name)
        row = _row(line)
    else:
        resized: ResizedLine = build(ResizedLine, content, name)
        line, row = resized, _with_original(resized, name)
    if extra := [entry for entry in ONLY_OF_PICTURES if entry in line]:
        raise ValueError(f"{name}.{extra[0]}: expected nothing, for only pictures without a data set have it")
    return row


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
    return replace(_with_original(line, name), picture=PictureRow(line["file"], line["sha256"]))


def _row(line: Line) -> Row:
    margin, rounding, radius = (
        math.inf if value is None else value for value in (line["margin"], line["rounding"], line["radius"])
    )
    return Row(line["index"], line["label"], line["prediction"], line["runner_up"], margin, rounding, radius)


def _with_original(line: ResizedLine, name: str) -> Row:
    row, size, original = _row(line), line["resized_from"], line["radius_original"]
    if size is None and original is not None:
        raise ValueError(f"{name}.radius_original: expected null, for resized_from is null, got {original}")
    if size is not None and original is None and row.radius < math.inf:
        raise ValueError(f"{name}.radius_original: null is infinite, but the radius is {row.radius}")
    if original is None:
        original = row.radius
    if original < 0:
        raise ValueError(f"{name}.radius_original: expected a number that is not negative, got {original}")
    return replace(row, resized_from=size, radius_original=original)


def check_places(places: list[int], count: int) -> None:
    """Raise a ValueError unless every picture has one line at most."""
    if beyond := [place for place in places if not 0 <= place < count]:
        raise ValueError(f"index: expected a place among {count} pictures, got {beyond[0]}")
    if twice := [place for place, lines in Counter(places).items() if lines > 1]:
        raise ValueError(f"index: expected one line for each picture, got several for {twice[0]}")
