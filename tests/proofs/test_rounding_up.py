"""Rounding upwards, against fractions."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.proofs.rounding import frobenius_upper_bound, gamma, product_up, sqrt_up, sum_up


@given(terms=st.lists(st.floats(1e-6, 1), min_size=2, max_size=6))
def test_nothing_is_rounded_down(terms: list[float]) -> None:
    fractions = [Fraction(term) for term in terms]
    total, product = sum(fractions), Fraction(1)
    for fraction in fractions:
        product *= fraction
    assert total < Fraction(sum_up(*terms)) <= total * (1 + Fraction(1, 2**51))
    assert product < Fraction(product_up(*terms)) <= product * (1 + Fraction(1, 2**48))
    root = Fraction(sqrt_up(terms[0]))
    assert fractions[0] < root**2 <= fractions[0] * (1 + Fraction(1, 2**50))
    squares = sum(fraction**2 for fraction in fractions)
    bound = Fraction(frobenius_upper_bound(torch.tensor([terms], dtype=torch.float64)))
    assert squares < bound**2 <= squares * (1 + Fraction(1, 2**46))


@pytest.mark.parametrize("n", [1, 3, 1000, 10**6])
def test_gamma_is_no_less_than_its_definition(n: int) -> None:
    exact = Fraction(n, 2**53) / (1 - Fraction(n, 2**53))
    assert exact <= Fraction(gamma(n)) <= exact * (1 + Fraction(1, 2**50))


def test_the_root_of_a_sum_of_squares_has_room_for_every_term() -> None:
    matrix = torch.ones(1, 4096, dtype=torch.float64)
    assert frobenius_upper_bound(matrix) >= 64 * (1 + 4096 * 2.0**-53)
