"""The memory of a training step, by hand and by what it must contain."""

import dataclasses

import pytest
import torch
from torch import nn

from lipcert.runs.config import TrainConfig
from lipcert.training.memory import LiveTensors, step_memory
from lipcert.training.parts import Split, build_model, load_split

CONFIG = TrainConfig(data="digits", width=4, batch_size=64, epochs=1, precision="fp32", threads=1)


@pytest.fixture(scope="module")
def split() -> Split:
    return load_split(CONFIG)


def test_views_count_once_and_what_is_gone_does_not_count() -> None:
    x = torch.ones(100)
    with LiveTensors() as live:
        for _ in range(5):
            y = x.view(10, 10).t() * 2
        assert (live.now, live.peak) == (800, 1200)  # the new y is made before the old one goes
        del y
        assert live.now == 400


def test_a_backward_pass_by_hand() -> None:
    """Between forward and backward: input, weight, and what both layers keep; then a gradient of each."""
    x, weight = torch.ones(50, 20), nn.Parameter(torch.ones(20, 20))
    with LiveTensors() as live:
        y = (x @ weight).tanh()  # x 4000, weight 1600, product 4000 (then free), tanh 4000
        assert (live.now, live.peak) == (9600, 13600)
        y.sum().backward()
    assert weight.grad is not None
    assert live.now == 9600 + 1600, "the gradient of the weight is left"


def test_a_step_holds_weights_gradients_and_the_state_of_the_optimizer(split: Split) -> None:
    model = build_model(CONFIG, split.images)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    found = step_memory(CONFIG, split)
    assert found > 3 * weights
    averaged = step_memory(dataclasses.replace(CONFIG, ema=0.9), split)
    assert averaged >= found + weights


def test_memory_depends_on_the_run_alone(split: Split) -> None:
    first = step_memory(CONFIG, split)
    twice = step_memory(dataclasses.replace(CONFIG, batch_size=128), split)
    assert step_memory(CONFIG, split) == first, "what ran before is not counted"
    assert 1.5 * first < twice < 2 * first, "activations double, weights do not"
