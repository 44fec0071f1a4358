"""Numbers of a report against counting by hand."""

import pytest
import torch

from lipcert.certify.curve import RADII
from lipcert.certify.outcomes import Outcomes
from lipcert.errors import ArgumentError
from lipcert.report.gallery import gallery
from lipcert.report.per_class import class_rows

from .conftest import CLASSES


def test_accuracy_counts_right_images_beyond_the_radius(outcomes: Outcomes) -> None:
    accuracy = outcomes.accuracy()
    # Right: radii 0.05, 0.2, 0.5, 0, 0.3, 1.0; 36/255 = 0.141, 72/255 = 0.282, 108/255 = 0.424.
    assert accuracy.standard == 6 / 8
    assert [accuracy[radius] for radius in RADII.values()] == [4 / 8, 3 / 8, 2 / 8]


def test_median_radius_counts_wrong_images_as_zero(outcomes: Outcomes) -> None:
    # 0, 0, 0, 0.05, 0.2, 0.3, 0.5, 1.0: torch takes the lower of the two middle ones, the careful choice.
    assert outcomes.median_radius() == 0.05


def test_rows_of_classes(outcomes: Outcomes) -> None:
    cat, dog, other = class_rows(outcomes, CLASSES)
    assert (cat.name, cat.images, cat.standard) == ("cat", 3, 1.0)
    assert cat.certified == {"36/255": 2 / 3, "72/255": 1 / 3, "108/255": 1 / 3}
    assert cat.median_radius == 0.2
    assert cat.rival == CLASSES[1]
    # Of the dogs, two are limited by 0 and 2, and one is taken for 2.
    assert dog.rival == CLASSES[2]
    assert (other.images, other.standard) == (2, 0.5)


def test_a_class_without_images_has_no_row(outcomes: Outcomes) -> None:
    assert [row.name for row in class_rows(outcomes, (*CLASSES, "empty"))] == list(CLASSES)


def test_one_class_has_no_rival() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    alone = Outcomes(one, one, one, one - 1, torch.tensor([torch.inf], dtype=torch.float64))
    assert class_rows(alone, ("only",))[0].rival == ""


def test_gallery_shows_every_image_once_and_the_right_ones_first(outcomes: Outcomes) -> None:
    shelves = gallery(outcomes, torch.zeros(8, 1, 4, 4, dtype=torch.uint8), CLASSES)
    assert [shelf.title for shelf in shelves] == ["Nearest to a mistake", "Wrong"]
    assert [image.index for image in shelves[0].images] == [3, 0, 1, 4, 2, 6]
    assert [(image.index, image.prediction) for image in shelves[1].images] == [(5, "a & b"), (7, "cat")]


def test_gallery_of_many_images_has_all_shelves() -> None:
    count = 100
    numbers = torch.arange(count)
    many = Outcomes(
        numbers, numbers % 2, torch.where(numbers < 90, numbers % 2, 1 - numbers % 2), (numbers + 1) % 2,
        numbers.double() / count,
    )  # fmt: skip
    shelves = gallery(many, torch.zeros(count, 3, 4, 4, dtype=torch.uint8), ("a", "b"))
    found = {shelf.title: [image.index for image in shelf.images] for shelf in shelves}
    assert found["Nearest to a mistake"] == list(range(8))
    assert found["In the middle"] == list(range(41, 49))
    assert found["Safest"] == list(range(89, 81, -1))
    assert found["Wrong"] == list(range(99, 91, -1))


def test_nothing_is_refused() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="expected at least one image"):
        Outcomes(empty, empty, empty, empty, empty.double())
