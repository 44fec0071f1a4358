import pytest
import torch
from torch import nn

from lipcert.training import budget
from lipcert.training.budget import MAX_STEPS, MIN_STEPS, WARM_STEPS, fitting_steps, measure


@pytest.mark.parametrize("seconds", [10.0, 333.0])
@pytest.mark.parametrize("between", [7, 351])
def test_steps_and_evaluations_fill_the_budget(seconds, between):
    step_seconds, evaluation_seconds = 0.03, 0.4
    steps = fitting_steps(seconds, step_seconds, evaluation_seconds, between)
    used = steps * step_seconds + (steps / between + 1) * evaluation_seconds
    assert seconds - 2 * (step_seconds + evaluation_seconds / between) < used <= seconds + 1e-9


def test_budget_that_is_too_small_still_learns_one_step():
    assert fitting_steps(0.1, 1.0, 5.0, 10) == 1


@pytest.mark.parametrize(
    ("cost", "expected"), [(0.5, 8), (10.0, MIN_STEPS), (0.001, MAX_STEPS)], ids=["fits", "slow", "fast"]
)
def test_measurement_reads_the_clock_and_leaves_no_trace(monkeypatch, cost, expected):
    now = [0.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = []

    def step():
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        calls.append("step")
        now[0] += cost

    def evaluate():
        now[0] += 2.5

    generator = torch.get_rng_state()
    assert measure(model, optimizer, step, evaluate, 4.0, lambda count: count) == pytest.approx((cost, 2.5))
    assert len(calls) == WARM_STEPS + expected
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), generator)
