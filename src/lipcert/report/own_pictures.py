"""Predictions and radii of pictures without labels."""

from dataclasses import dataclass
from statistics import median_low

from lipcert.certify.records import Records

LISTED = 500
"""Most pictures that a page lists one by one."""


@dataclass(frozen=True)
class Summary:
    """Radii of all pictures, in pixel units; `original` is about the decoded pictures, before a resize.

    Attributes:
        count: of the pictures that were certified.
        unread: of those that could not be read.
        resized: of those that were resized.
        median: at least half of the pictures have this radius.
        largest: radius.
        median_original: the same in the originals.
        largest_original: the same in the originals.
    """

    count: int
    unread: int
    resized: int
    median: float
    largest: float
    median_original: float
    largest_original: float


@dataclass(frozen=True)
class PredictionRow:
    """The pictures of one predicted class; `certified` have a radius above 0."""

    name: str
    pictures: int
    certified: int
    median: float
    median_original: float


@dataclass(frozen=True)
class PictureLine:
    """One picture, with names in place of class numbers; `size` is that of the file if it was resized."""

    file: str
    prediction: str
    rival: str
    radius: float
    size: str
    original: float


def summarise(records: Records) -> Summary:
    """Radii of all pictures."""
    radii = [row.radius for row in records.rows]
    originals = records.radii_original
    return Summary(
        count=len(radii),
        unread=len(records.unread),
        resized=records.resized,
        median=median_low(radii),
        largest=max(radii),
        median_original=median_low(originals),
        largest_original=max(originals),
    )


def by_prediction(records: Records) -> list[PredictionRow]:
    """One row per class that was predicted, in the order of the classes."""
    found, outcomes = [], records.outcomes
    originals = records.radii_original
    radii, predictions = outcomes.radius.tolist(), outcomes.prediction.tolist()
    for number, name in enumerate(records.header.classes):
        chosen = [place for place, prediction in enumerate(predictions) if prediction == number]
        if chosen:
            own = [radii[place] for place in chosen]
            before = median_low([originals[place] for place in chosen])
            certified = sum(radius > 0 for radius in own)
            found.append(PredictionRow(name, len(chosen), certified, median_low(own), before))
    return found


def one_by_one(records: Records) -> list[PictureLine]:
    """The first pictures."""
    names = [*records.header.classes, ""]  # -1 is the runner-up of a single class
    rows = zip(records.rows[:LISTED], records.radii_original[:LISTED], strict=True)
    return [
        PictureLine(
            "" if row.picture is None else row.picture.file,
            names[row.prediction],
            names[row.runner_up],
            row.radius,
            row.resized_from or "",
            original,
        )
        for row, original in rows
    ]
