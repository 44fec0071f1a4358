import copy

import pytest
import torch
from torch import nn

from lipcert.models.lipconvnet import lipconvnet
from lipcert.nn.carried import carried_vectors
from lipcert.training.average import WeightAverage


def network():
    torch.manual_seed(0)
    return lipconvnet(depth=5, conv="soc", width=2, image_size=8, in_channels=1, num_classes=3)


def test_average_is_that_computed_by_hand():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    average = WeightAverage(model, 0.2)
    weights = [4.0, 2.0, 1.0]
    for step, weight in enumerate(weights, 1):
        nn.init.constant_(model.weight, weight)
        average.update(model, step)
    # Decays: min(0.2, 1/10) = 0.1, min(0.2, 2/11) = 2/11, min(0.2, 3/12) = 0.2.
    first = 0.1 * 8 + 0.9 * 4
    second = 2 / 11 * first + 9 / 11 * 2
    third = 0.2 * second + 0.8 * 1
    assert average.model.weight.item() == pytest.approx(third, rel=1e-6)
    assert model.weight.item() == 1.0


@pytest.mark.parametrize(
    ("step", "decay"), [(1, 0.1), (9, 0.5), (4491, 4491 / 4500), (4492, 0.998), (10**6, 0.998)]
)
def test_early_decays_are_smaller(step, decay):
    average = WeightAverage(nn.Linear(1, 1), 0.998)
    assert average.decay_at(step) == pytest.approx(decay, rel=1e-12)


def test_random_weights_are_forgotten_within_a_few_steps():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1e3)
    average = WeightAverage(model, 0.9999)
    nn.init.zeros_(model.weight)
    for step in range(1, 31):
        average.update(model, step)
    # The product of t / (t + 9) over t = 1, ..., 30 is 30! 9! / 39! = 1 / 211,915,132.
    assert 0 < average.model.weight.item() < 1e3 / 2e8


def test_a_copy_made_before_the_first_step_works_after_it():
    model = network().train()
    average = WeightAverage(model, 0.9)
    x = torch.rand(4, 1, 8, 8)
    model(x).sum().backward()  # SOC learns the shape of its vectors here
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    average.update(model, 1)
    average.update_buffers(model)
    assert average.model(x).isfinite().all()
    assert any(value.numel() for value in carried_vectors(model).values())
    for name, buffer in average.model.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_the_model_is_left_alone_and_the_copy_is_for_evaluation():
    model = network().train()
    before = copy.deepcopy(model.state_dict())
    average = WeightAverage(model, 0.9)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    average.update(model, 1)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_reset_begins_again():
    model = network()
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.head.weight += 1
    average.update(model, 5)
    assert not torch.equal(average.model.head.weight, model.head.weight)
    average.reset(model)
    assert torch.equal(average.model.head.weight, model.head.weight)
