"""The checked-in polynomials keep the bounds that they state; all proofs are in exact arithmetic."""

import cmath
import math

import pytest

from lipcert.kernels.series import SERIES, Series
from lipcert.proofs.modulus import polynomial_modulus_lower_bound, polynomial_modulus_upper_bound
from tests.reference.exponential import PAPER_ERROR

EVALUATED = [pytest.param(f.evaluation[k], id=f"{n}-{k}") for n, f in SERIES.items() for k in f.evaluation]
TRAINED = [pytest.param(f.training[k], id=f"{n}-{k}") for n, f in SERIES.items() for k in f.training]


def value(series: Series, y: float) -> complex:
    return sum(c * (1j * y) ** j for j, c in enumerate(series.coefficients))


def grid(radius: float, points: int = 2000) -> list[float]:
    return [radius * i / points for i in range(points + 1)]


@pytest.mark.parametrize("series", EVALUATED)
def test_no_evaluation_polynomial_stretches(series: Series) -> None:
    assert polynomial_modulus_upper_bound(series.coefficients, series.radius) <= 1.0
    # Larger by one part in a thousand, and the bound would be lost: the proof is not vacuous.
    larger = [c * 1.001 for c in series.coefficients]
    assert polynomial_modulus_upper_bound(larger, series.radius) > 1.0


@pytest.mark.parametrize("series", EVALUATED + TRAINED)
def test_the_stated_error_is_proved_and_tight(series: Series) -> None:
    lowest = polynomial_modulus_lower_bound(series.coefficients, series.radius)
    highest = polynomial_modulus_upper_bound(series.coefficients, series.radius)
    assert max(1 - lowest, highest - 1) <= series.modulus_error
    seen = max(abs(abs(value(series, y)) - 1) for y in grid(series.radius))
    assert seen >= 0.99 * series.modulus_error


@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_exponential_is_within_the_papers_error(size: int) -> None:
    series = SERIES["exponential"].evaluation[size]
    assert series.radius == pytest.approx(SERIES["exponential"].target[size] * size)
    assert max(abs(value(series, y) - cmath.exp(1j * y)) for y in grid(series.radius)) < PAPER_ERROR


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("size", [3, 5])
def test_training_is_no_less_orthogonal_than_five_taylor_terms(name: str, size: int) -> None:
    radius = SERIES["exponential"].target[size] * size
    taylor = [1 / math.factorial(j) for j in range(6)]
    lowest, highest = (
        polynomial_modulus_lower_bound(taylor, radius),
        polynomial_modulus_upper_bound(taylor, radius),
    )
    assert SERIES[name].training[size].modulus_error <= max(1 - lowest, highest - 1)


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_training_and_evaluation_turn_by_the_same_angle(name: str, size: int) -> None:
    train, evaluate = SERIES[name].training[size], SERIES[name].evaluation[size]
    drift = max(
        abs(cmath.phase(value(train, y) * value(evaluate, y).conjugate())) for y in grid(train.radius)
    )
    assert drift < 0.0505  # the linear programmes allow 0.05 at the points of their grid
