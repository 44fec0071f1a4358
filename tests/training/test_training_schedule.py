import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.training.schedule import learning_rate


@pytest.mark.parametrize(
    ("epoch", "factor"), [(0, 1), (99, 1), (100, 0.1), (149, 0.1), (150, 0.01), (199, 0.01)]
)
@pytest.mark.parametrize("steps_per_epoch", [1, 351])
def test_papers_schedule_drops_at_epochs_100_and_150_of_200(epoch, factor, steps_per_epoch):
    total = 200 * steps_per_epoch
    first, last = epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch - 1
    for step in (first, last):
        # Two products of rounded factors: a few units in the last place.
        assert learning_rate("step", step, total, lr=0.1) == pytest.approx(0.1 * factor, rel=1e-15)


@pytest.mark.parametrize("schedule", ["onecycle", "cosine"])
def test_rise_is_linear_and_reaches_lr(schedule):
    rates = [learning_rate(schedule, step, 100, lr=2.0, warmup=0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * k for k in range(1, 11)])
    assert rates[10] == max(rates) == 2.0
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_falls_match_their_formulas_half_way():
    assert learning_rate("onecycle", 55, 100, lr=1.0, warmup=0.1) == pytest.approx(0.5)
    assert learning_rate("cosine", 55, 100, lr=1.0, warmup=0.1) == pytest.approx(0.5)
    # A third of the way down the cosine: (1 + cos(pi / 3)) / 2 = 3 / 4.
    assert learning_rate("cosine", 40, 100, lr=1.0, warmup=0.1) == pytest.approx(0.75)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(["step", "onecycle", "cosine"]), st.integers(1, 500), st.floats(0, 0.99), st.data())
def test_rate_is_positive_and_at_most_lr(schedule, total, warmup, data):
    step = data.draw(st.integers(0, total - 1))
    rate = learning_rate(schedule, step, total, lr=0.3, warmup=warmup)
    assert 0 < rate <= 0.3
    assert math.isfinite(rate)
