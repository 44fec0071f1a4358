"""Which test images the page offers: in order, by class, by radius, or misclassified ones."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lipcert.data.dataset import Dataset
from lipcert.errors import ArgumentError, choose
from lipcert.explore.state import Explorer

SORTED_IMAGES = 1000
"""How many of the first images can be sorted by radius; any image can be chosen by its index."""
ORDERS = ("in order", "smallest radius", "largest radius", "wrong")
ANY_CLASS = "any class"


@dataclass(frozen=True, eq=False)
class Choices:
    """The test images, with approximate predictions and radii of the first ones.

    Attributes:
        images: the whole set.
        prediction: (M,), of the first M images, from a float32 copy.
        radius: (M,), of the same.
    """

    images: Dataset
    prediction: Tensor
    radius: Tensor

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """What the page offers as classes."""
        return (ANY_CLASS, *self.images.classes)

    def pick(self, order: str, class_name: str = ANY_CLASS) -> list[int]:
        """Indices of the images of a true class, in one of `ORDERS`.

        Sorted by radius are right predictions only; the wrong ones begin with the surest mistake.

        Raises:
            ArgumentError: an unknown order or class.
        """
        choose("show", order, ORDERS)
        choose("class", class_name, self.classes)
        labels = self.images.labels
        if order == "in order":
            rows = torch.arange(len(labels))
        else:
            right = self.prediction == labels[: len(self.prediction)]
            descending = order != "smallest radius"
            rows = self.radius.argsort(stable=True, descending=descending)
            rows = rows[~right[rows] if order == "wrong" else right[rows]]
        if class_name != ANY_CLASS:
            rows = rows[labels[rows] == self.images.classes.index(class_name)]
        indices: list[int] = rows.tolist()
        return indices

    def index(self, value: object) -> int:
        """An index that the user typed, checked.

        Raises:
            ArgumentError: no whole number, or no such image.
        """
        last = len(self.images) - 1
        if isinstance(value, (int, float)) and float(value).is_integer() and 0 <= value <= last:
            return int(value)
        shown = "nothing" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)
        raise ArgumentError(f"index: expected a whole number from 0 to {last}, got {shown}")


def choices(explorer: Explorer, images: Dataset) -> Choices:
    """Classify the first images once, so that they can be sorted."""
    glance = explorer.glance(images.images[:SORTED_IMAGES])
    return Choices(images, glance.prediction, glance.radius)
