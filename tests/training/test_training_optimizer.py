import copy

import pytest
import torch

from lipcert.errors import ArgumentError
from lipcert.models.lipconvnet import lipconvnet
from lipcert.nn import CONVOLUTIONS, Householder
from lipcert.optim import Muon
from lipcert.runs.config import TrainConfig
from lipcert.training.optimizer import learning_rate_of, make_optimizer, parameter_groups


def small(conv="soc", head="lln", activation="hh1"):
    torch.manual_seed(0)
    return lipconvnet(
        depth=5,
        conv=conv,
        head=head,
        activation=activation,
        num_classes=3,
        width=2,
        image_size=8,
        in_channels=1,
    )


def names_by_decay(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group["weight_decay"]: {names[id(p)] for p in group["params"]} for group in groups}


@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("conv", sorted(CONVOLUTIONS))
def test_all_but_the_activations_decay(conv, head):
    model = small(conv, head)
    groups = names_by_decay(model, parameter_groups(model, 5e-4))
    angles = {name for name, _ in model.named_parameters() if "activation" in name}
    assert angles
    assert groups[0.0] == angles
    assert groups[5e-4] == {name for name, _ in model.named_parameters()} - angles
    assert any(name.endswith("bias") for name in groups[5e-4])


def test_activation_without_parameters_makes_no_empty_group():
    assert len(parameter_groups(small(activation="maxmin"), 5e-4)) == 1


def test_plain_convolutions_and_matrices_decay_too():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.BatchNorm2d(2),
        Householder(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 3),
    )
    groups = names_by_decay(model, parameter_groups(model, 0.1))
    assert groups == {
        0.1: {"0.weight", "0.bias", "4.weight", "4.bias"},
        0.0: {"1.weight", "1.bias", "2.theta"},
    }


@pytest.mark.parametrize(
    ("model", "decay", "message"),
    [
        (torch.nn.Linear(2, 2), -1e-4, "weight_decay: expected a number of at least 0, got -0.0001"),
        (torch.nn.Linear(2, 2), float("nan"), "weight_decay: expected a number of at least 0, got nan"),
        (torch.nn.Linear(2, 2), "5e-4", "weight_decay: expected a number of at least 0, got '5e-4'"),
        ([torch.zeros(2)], 1e-4, "model: expected a torch.nn.Module, got list"),
    ],
)
def test_arguments_that_make_no_groups_are_refused(model, decay, message):
    with pytest.raises(ArgumentError, match=message):
        parameter_groups(model, decay)


@pytest.mark.parametrize(("conv", "decay"), [("soc", 5e-4), ("bcop", 0.0), ("cayley", 0.0)])
def test_decay_of_the_papers_networks(conv, decay):
    model = small(conv)
    optimizer = make_optimizer(model, TrainConfig(conv=conv), torch.device("cpu"))
    weight = dict(model.named_parameters())["head.weight"]
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    assert group["weight_decay"] == decay


@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_are_those_of_sgd_written_out(nesterov):
    model = small().double()
    config = TrainConfig(lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    optimizer = make_optimizer(model, config, torch.device("cpu"))
    expected = copy.deepcopy(dict(model.named_parameters()))
    velocity = {name: torch.zeros_like(p) for name, p in expected.items()}
    for _ in range(3):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            with torch.no_grad():
                decay = 0.0 if "activation" in name else 0.01
                gradient = parameter.grad + decay * expected[name]
                velocity[name] = 0.9 * velocity[name] + gradient
                expected[name] -= 0.1 * (gradient + 0.9 * velocity[name] if nesterov else velocity[name])
        optimizer.step()
    for name, parameter in model.named_parameters():
        # Three steps of a handful of float64 operations on numbers of size 1.
        torch.testing.assert_close(parameter, expected[name], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("conv", sorted(CONVOLUTIONS))
def test_muon_has_the_matrices_and_sgd_the_rest_with_the_same_decay(conv):
    model = small(conv)
    config = TrainConfig(conv=conv, optimizer="muon", muon_step=0.05, lr=0.2, weight_decay=0.01)
    optimizer = make_optimizer(model, config, torch.device("cpu"))
    assert isinstance(optimizer, Muon)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = set()
    for group in optimizer.param_groups:
        mine = {names[id(p)] for p in group["params"]}
        seen |= mine
        is_matrix = {"conv" in name and name.endswith(("weight", "bases")) for name in mine}
        assert is_matrix == {group["layout"] is not None}
        if group["layout"] is not None:
            assert (group["lr"], group["initial_lr"], group["momentum"]) == (0.05, 0.05, 0.95)
            assert group["weight_decay"] == 0.0
        else:
            assert (group["lr"], group["initial_lr"], group["momentum"]) == (0.2, 0.2, 0.9)
            assert group["weight_decay"] == (0.0 if any("activation" in name for name in mine) else 0.01)
    assert seen == set(names.values())
    assert learning_rate_of(optimizer) == 0.2


def test_muon_without_a_matrix_that_it_knows():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="the convolution 'mine' names no matrix for Muon; use"):
        make_optimizer(model, TrainConfig(conv="mine", optimizer="muon"), torch.device("cpu"))
