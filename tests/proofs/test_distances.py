"""Proved distances between rows, against exact rational arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.kernels.margins import pair_distances
from lipcert.proofs.distances import pair_distance_bounds


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-200, 1e-12, 1.0, 1e6]))
def test_bounds_are_never_below_the_exact_distance(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    weight[1] = weight[0] + scale * weight[1]
    bounds = pair_distance_bounds(weight)
    exact = sum(
        (Fraction(a) - Fraction(b)) ** 2 for a, b in zip(weight[0].tolist(), weight[1].tolist(), strict=True)
    )
    assert Fraction(float(bounds[0, 1])) ** 2 >= exact
    assert float(bounds[0, 1]) <= float(pair_distances(weight)[0, 1]) * (1 + 1e-13) + 1e-150
    assert bounds.diagonal().eq(0).all()


@pytest.mark.parametrize("size", [1e-160, 1e-200, 1e-307, 5e-324])
def test_bounds_hold_where_squares_underflow(size: float) -> None:
    weight = torch.tensor([[0.0, 0.0, 0.0], [size, size, size]], dtype=torch.float64)
    assert Fraction(float(pair_distance_bounds(weight)[0, 1])) ** 2 >= 3 * Fraction(size) ** 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rows_of_any_precision_enter_float64_exactly(dtype: torch.dtype) -> None:
    weight = torch.randn(4, 3).to(dtype).requires_grad_()
    bounds = pair_distance_bounds(weight)
    assert bounds.dtype == torch.float64
    assert not bounds.requires_grad
    assert torch.equal(bounds, pair_distance_bounds(weight.detach().double()))


def test_one_row_has_no_other() -> None:
    assert pair_distance_bounds(torch.ones(1, 5)).tolist() == [[0.0]]
