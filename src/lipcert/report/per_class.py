"""The same accuracies class by class, and which class limits each."""

from collections.abc import Sequence
from dataclasses import dataclass

from lipcert.certify.curve import RADII
from lipcert.certify.outcomes import Outcomes


@dataclass(frozen=True)
class ClassRow:
    """One class; shares from 0 to 1.

    Attributes:
        name: of the class.
        images: how many there are.
        standard: classified correctly.
        certified: by radius name, correctly and certified beyond it.
        median_radius: in pixel units, where a wrong prediction counts as 0.
        rival: the class that most often limits the radius of its right images, or takes its wrong ones; empty
            if there is none.
    """

    name: str
    images: int
    standard: float
    certified: dict[str, float]
    median_radius: float
    rival: str


def class_rows(outcomes: Outcomes, classes: Sequence[str]) -> list[ClassRow]:
    """One row per class that has images, in the order of the classes."""
    rows = []
    for number, name in enumerate(classes):
        part = outcomes.of_class(number)
        if part is None:
            continue
        accuracy = part.accuracy()
        rows.append(
            ClassRow(
                name=name,
                images=len(part),
                standard=accuracy.standard,
                certified={key: accuracy[radius] for key, radius in RADII.items()},
                median_radius=part.median_radius(),
                rival=_rival(part, classes),
            )
        )
    return rows


def _rival(part: Outcomes, classes: Sequence[str]) -> str:
    others = part.prediction.where(~part.right, part.runner_up)
    others = others[others >= 0]
    return classes[int(others.bincount().argmax())] if len(others) else ""
