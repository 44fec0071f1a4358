"""Which images are offered: orders, classes, indices."""

import pytest
import torch

from lipcert.data import Dataset
from lipcert.errors import ArgumentError
from lipcert.explore.choices import ANY_CLASS, ORDERS, Choices, choices
from lipcert.explore.state import Explorer

LABELS = [0, 1, 0, 1, 0, 1]
PREDICTIONS = [0, 1, 1, 0, 0]  # of the first five: the last image was not looked at
RADII = [0.3, 0.1, 0.2, 0.5, 0.05]


@pytest.fixture
def six() -> Choices:
    images = torch.zeros(6, 1, 2, 2, dtype=torch.uint8)
    data = Dataset("six", images, torch.tensor(LABELS), ("cat", "dog"), "test")
    return Choices(data, torch.tensor(PREDICTIONS), torch.tensor(RADII))


@pytest.mark.parametrize(
    ("order", "class_name", "expected"),
    [
        ("in order", ANY_CLASS, [0, 1, 2, 3, 4, 5]),
        ("in order", "dog", [1, 3, 5]),
        ("smallest radius", ANY_CLASS, [4, 1, 0]),
        ("largest radius", ANY_CLASS, [0, 1, 4]),
        ("largest radius", "cat", [0, 4]),
        ("wrong", ANY_CLASS, [3, 2]),
        ("wrong", "dog", [3]),
    ],
)
def test_orders(six: Choices, order: str, class_name: str, expected: list[int]) -> None:
    assert six.pick(order, class_name) == expected


def test_unknown_names_are_refused(six: Choices) -> None:
    with pytest.raises(ArgumentError, match="did you mean 'wrong'"):
        six.pick("wrnog")
    with pytest.raises(ArgumentError, match="class: expected one of any class, cat, dog, got 'cow'"):
        six.pick("wrong", "cow")


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (5, 5), (3.0, 3)])
def test_indices(six: Choices, value: object, expected: int) -> None:
    assert six.index(value) == expected


@pytest.mark.parametrize(
    ("value", "shown"),
    [(6, "6"), (-1, "-1"), (1.5, "1.5"), (None, "nothing"), (float("inf"), "inf"), (float("nan"), "nan"),
     ("two", "'two'")],
)  # fmt: skip
def test_bad_indices(six: Choices, value: object, shown: str) -> None:
    with pytest.raises(ArgumentError, match=f"from 0 to 5, got {shown}$"):
        six.index(value)


@pytest.mark.parametrize("order", ORDERS[1:3])
def test_the_digits_are_sorted_by_their_certificates(
    explorer: Explorer, digits: Dataset, offered: Choices, order: str
) -> None:
    first, second = (explorer.examine(digits.images[k]).radius for k in offered.pick(order)[:20:19])
    assert (first < second) == (order == "smallest radius")


def test_only_the_first_images_are_looked_at(
    explorer: Explorer, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipcert.explore.choices.SORTED_IMAGES", 10)
    offered = choices(explorer, digits)
    assert len(offered.prediction) == len(offered.radius) == 10
    assert max(offered.pick("largest radius")) < 10
    assert len(offered.pick("in order")) == len(digits)
