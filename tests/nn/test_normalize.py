"""Normalize: its arithmetic, its constant, its refusals."""

import copy
from fractions import Fraction

import numpy as np
import pytest
import torch

from lipcert.errors import ArgumentError
from lipcert.nn.normalize import Normalize
from lipcert.nn.shape import Flatten

CIFAR_STDS = (0.2470, 0.2435, 0.2616)


def test_arithmetic_by_hand() -> None:
    x = torch.tensor([0.75, 0.5]).view(1, 2, 1, 1)
    y = Normalize((0.5, 0.25), (0.25, 0.5))(x)
    assert y.flatten().tolist() == [1.0, 0.5]


def test_the_constant_is_that_of_the_smallest_std() -> None:
    layer = Normalize((0.5, 0.5, 0.5), CIFAR_STDS)
    bound = layer.lipschitz_bound((3, 8, 8))
    exact = 1 / Fraction(float(layer.std.min()))
    assert exact <= Fraction(bound) <= exact * (1 + Fraction(1, 2**51))
    assert bound > 1 / 0.2436


@pytest.mark.parametrize("std", [0.1, 0.2507, 0.3, 0.7, 1.0, 3.0])
def test_the_constant_rounds_up(std: float) -> None:
    layer = Normalize(0.0, std).double()
    assert Fraction(layer.lipschitz_bound((1, 2, 2))) >= 1 / Fraction(float(layer.std))


def test_the_constant_is_reached() -> None:
    layer = Normalize((0.4, 0.5, 0.6), CIFAR_STDS).double()
    x, d = torch.rand(1, 3, 2, 2).double(), torch.zeros(1, 3, 2, 2).double()
    d[0, 1, 0, 1] = 0.5
    gain = float((layer(x + d) - layer(x)).norm() / d.norm())
    assert gain == pytest.approx(layer.lipschitz_bound((3, 2, 2)), rel=1e-12)


def test_one_number_serves_every_channel() -> None:
    assert Normalize((0.1, 0.2, 0.3), 0.5).std.flatten().tolist() == [0.5] * 3
    assert Normalize(0.5, (0.5, 0.25)).mean.flatten().tolist() == [0.5] * 2


def test_it_has_no_parameters_and_is_saved() -> None:
    layer = Normalize(0.5, 0.25)
    assert not list(layer.parameters())
    assert sorted(layer.state_dict()) == ["mean", "std"]
    assert torch.equal(copy.deepcopy(layer).std, layer.std)
    assert repr(layer) == "Normalize(mean=(0.5), std=(0.25))"


def test_an_edited_std_changes_the_constant_or_is_refused() -> None:
    layer = Normalize(0.5, 0.25)
    layer.std.fill_(0.125)
    assert layer.lipschitz_bound((1, 2, 2)) == 8
    layer.std.fill_(0)
    with pytest.raises(ArgumentError, match="std: expected finite numbers that are not zero"):
        layer.lipschitz_bound((1, 2, 2))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (0.5, 0.0, "std: expected positive numbers, got 0"),
        (0.5, -1.0, "std: expected positive numbers, got -1"),
        (0.5, float("nan"), "std: expected a finite number"),
        (float("inf"), 1.0, "mean: expected a finite number"),
        ((), 1.0, "mean: expected a finite number"),
        ((0.5, 0.5), (1.0, 1.0, 1.0), r"std: expected one number, or one per channel of mean \(2\), got 3"),
    ],
)
def test_bad_numbers(mean: float, std: float, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Normalize(mean, std)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 4, 4), r"expected a batch of images \(N, C, H, W\), got shape \(3, 4, 4\)"),
        (torch.zeros(1, 1, 4, 4), r"expected images of 3 channels, got shape \(1, 4, 4\)"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), r"got torch.uint8; use x.float\(\) / 255"),
    ],
)
def test_bad_images(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Normalize((0.5, 0.5, 0.5), 0.25)(x)


def test_flatten_keeps_distances_and_refuses_single_vectors() -> None:
    x = torch.rand(2, 3, 4, 5)
    assert torch.equal(Flatten()(x), x.reshape(2, 60))
    assert Flatten().output_shape((3, 4, 5)) == (60,)
    assert Flatten().lipschitz_bound((3, 4, 5)) == 1
    with pytest.raises(ArgumentError, match=r"Flatten: expected a batch"):
        Flatten()(torch.zeros(3))


def test_numbers_of_numpy_are_numbers() -> None:
    assert repr(Normalize(np.float32(0.5), np.array([0.25, 0.5]))) == repr(Normalize(0.5, (0.25, 0.5)))
