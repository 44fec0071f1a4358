"""Margins to certificates, against cases computed by hand and a slow loop."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.margins import certificate, pair_certificates, pair_distances

ROWS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
ORTHONORMAL = math.sqrt(2) * (1 - torch.eye(3))


def slow_certificate(logits: Tensor, labels: Tensor, weight: Tensor) -> list[float]:
    """Proposition 1, word by word."""
    result = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        best = math.inf
        for i, value in enumerate(row):
            if i != label:
                distance = math.dist(weight[label].tolist(), weight[i].tolist())
                best = min(best, (row[label] - value) / distance)
        result.append(best)
    return result


def test_distances_by_hand() -> None:
    root = math.sqrt(2)
    expected = torch.tensor([[0.0, root, 2.0], [root, 0.0, root], [2.0, root, 0.0]])
    torch.testing.assert_close(pair_distances(ROWS), expected)


def test_nearest_class_is_not_always_the_binding_one() -> None:
    # Class 1 is closer in logits (gap 3) but class 2 is twice as far in rows: 3 / sqrt(2) = 2.12 > 4 / 2 = 2.
    logits = torch.tensor([[5.0, 2.0, 1.0]])
    result = pair_certificates(logits, torch.tensor([0]), pair_distances(ROWS))
    torch.testing.assert_close(result, torch.tensor([[math.inf, 3 / math.sqrt(2), 2.0]]))
    assert certificate(logits, torch.tensor([0]), pair_distances(ROWS)).item() == 2.0


@pytest.mark.parametrize(
    ("logits", "label", "expected"),
    [
        ([3.0, 1.0, 0.0], 0, 2 / math.sqrt(2)),
        ([1.0, 3.0, 0.0], 0, -2 / math.sqrt(2)),
        ([2.0, 2.0, 0.0], 0, 0.0),
        ([2.0, 2.0, 2.0], 2, 0.0),
    ],
    ids=["right", "wrong is negative", "tie", "all tie"],
)
def test_orthonormal_rows_by_hand(logits: list[float], label: int, expected: float) -> None:
    result = certificate(torch.tensor([logits]), torch.tensor([label]), ORTHONORMAL)
    assert result.item() == pytest.approx(expected, rel=1e-6)


def test_two_classes_by_hand() -> None:
    weight = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
    result = certificate(
        torch.tensor([[1.0, -9.0], [1.0, 2.0]]), torch.tensor([0, 0]), pair_distances(weight)
    )
    assert result.tolist() == [2.0, pytest.approx(-0.2)]


def test_one_class_can_never_change() -> None:
    result = certificate(torch.tensor([[-7.0]]), torch.tensor([0]), torch.zeros(1, 1))
    assert result.item() == math.inf


@pytest.mark.parametrize(("gap", "expected"), [(1.0, math.inf), (-1.0, -math.inf), (0.0, 0.0)])
def test_equal_rows_differ_by_a_constant(gap: float, expected: float) -> None:
    distances = pair_distances(torch.ones(2, 3))
    assert certificate(torch.tensor([[gap, 0.0]]), torch.tensor([0]), distances).item() == expected


def test_equal_rows_leave_the_gradient_finite() -> None:
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    certificate(logits, torch.tensor([0]), pair_distances(weight)).sum().backward()
    assert weight.grad is not None
    assert logits.grad is not None
    assert weight.grad.isfinite().all()
    root = 1 / math.sqrt(2)
    torch.testing.assert_close(logits.grad, torch.tensor([[root, 0.0, -root]]))


def test_nan_logits_stay_nan() -> None:
    assert certificate(torch.tensor([[math.nan, 0.0, 1.0]]), torch.tensor([2]), ORTHONORMAL).isnan().all()


def test_gradcheck() -> None:
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 3, 4, 1])
    assert torch.autograd.gradcheck(lambda f, w: certificate(f, labels, pair_distances(w)), (logits, weight))


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 6), features=st.integers(1, 5))
def test_agrees_with_the_slow_loop(seed: int, classes: int, features: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, features, dtype=torch.float64, generator=generator)
    logits = torch.randn(7, classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(classes, (7,), generator=generator)
    result = certificate(logits, labels, pair_distances(weight))
    # A few roundings each way.
    torch.testing.assert_close(
        result, torch.tensor(slow_certificate(logits, labels, weight)).double(), rtol=1e-6, atol=0
    )


def test_half_precision_rows_are_taken_as_they_are() -> None:
    weight = torch.randn(3, 4).bfloat16()
    torch.testing.assert_close(pair_distances(weight), pair_distances(weight.float()))


@pytest.mark.parametrize(
    ("logits", "labels", "distances", "message"),
    [
        (torch.zeros(3), torch.zeros(3).long(), torch.zeros(3, 3), r"logits: expected a batch \(N, K\)"),
        (torch.zeros(2, 3), torch.zeros(3).long(), torch.zeros(3, 3), "labels: expected 2 int64 classes"),
        (torch.zeros(2, 3), torch.zeros(2), torch.zeros(3, 3), "labels: expected 2 int64 classes.*float32"),
        (
            torch.zeros(2, 3),
            torch.tensor([0, 3]),
            torch.zeros(3, 3),
            "labels: expected classes from 0 to 2, got 0 to 3",
        ),
        (torch.zeros(2, 3), torch.tensor([0, -1]), torch.zeros(3, 3), "labels: expected classes from 0 to 2"),
        (
            torch.zeros(2, 3),
            torch.tensor([0, 1]),
            torch.zeros(3, 1),
            r"distances: expected a matrix \(3, 3\)",
        ),
    ],
)
def test_bad_arguments(logits: Tensor, labels: Tensor, distances: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        certificate(logits, labels, distances)


def test_rows_must_be_a_matrix() -> None:
    with pytest.raises(
        ArgumentError, match=r"weight: expected one row per class, \(K, D\), got shape \(3,\)"
    ):
        pair_distances(torch.zeros(3))
