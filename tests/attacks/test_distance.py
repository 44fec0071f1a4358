"""Distances: by hand, to the last bit, and against rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.attacks.distance import is_within, l2_distances


def test_a_distance_is_not_rounded_to_single_precision() -> None:
    images, others = torch.zeros(1, 1, 1, 2).double(), torch.tensor([0.0, 0.3]).double().view(1, 1, 1, 2)
    others[..., 1] = 0.3
    assert l2_distances(images, others).tolist() == [0.3]


def test_mixed_precisions_are_compared_as_stored() -> None:
    single = torch.tensor([[0.1]])
    assert l2_distances(single, torch.tensor([[0.1]], dtype=torch.float64)).item() == pytest.approx(
        abs(single.double().item() - 0.1), rel=1e-12
    )


@given(seed=st.integers(0, 1000), pixels=st.integers(1, 60), scale=st.sampled_from([1e-9, 1.0, 1e5]))
def test_against_rational_arithmetic(seed: int, pixels: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(1, pixels, dtype=torch.float64, generator=generator)
    b = a + scale * torch.randn(1, pixels, dtype=torch.float64, generator=generator)
    square = sum((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(a[0].tolist(), b[0].tolist(), strict=True))
    distance = Fraction(l2_distances(a, b).item())
    slack = Fraction(pixels + 4) / 2**53
    assert ((1 - slack) * distance) ** 2 <= square <= ((1 + slack) * distance) ** 2
    # The verdict has no slack at all: it changes between two neighbours in float64.
    root = float(distance)
    while Fraction(root) ** 2 >= square:
        root = math.nextafter(root, 0)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    assert is_within(a, b, root)
    assert not is_within(a, b, math.nextafter(root, 0))


@pytest.mark.parametrize(("radius", "expected"), [(-1.0, False), (0.0, True), (math.inf, True)])
def test_edges(radius: float, expected: bool) -> None:
    assert is_within(torch.ones(3), torch.ones(3), radius) is expected
