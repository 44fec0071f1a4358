"""The activation layers: where they start, what they promise, and that training keeps the promise."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError
from lipcert.nn.activations import (
    Activation,
    GroupSort,
    Householder,
    HouseholderChain,
    HouseholderND,
    HouseholderOrder,
    MaxMin,
)
from lipcert.nn.contract import ACTIVATIONS

LAYERS = {
    "maxmin": lambda c, **kw: MaxMin(),
    "groupsort": lambda c, **kw: GroupSort(4),
    "householder": lambda c, **kw: Householder(c, **kw),
    "order1": lambda c, **kw: HouseholderOrder(c, order=1, **kw),
    "order2": lambda c, **kw: HouseholderOrder(c, order=2, **kw),
    "order4": lambda c, **kw: HouseholderOrder(c, order=4, **kw),
    "chain3": lambda c, **kw: HouseholderChain(c, length=3, **kw),
    "nd3": lambda c, **kw: HouseholderND(c, group_size=3, length=4, **kw),
    "nd4": lambda c, **kw: HouseholderND(c, group_size=4, length=2, **kw),
}
LEARNABLE = [name for name in LAYERS if name not in ("maxmin", "groupsort")]
SHAPES = [(12,), (12, 2, 3), (12, 1, 1)]
layers = pytest.mark.parametrize("name", LAYERS)
learnable = pytest.mark.parametrize("name", LEARNABLE)
shapes = pytest.mark.parametrize("shape", SHAPES)


def build(name: str, dtype: torch.dtype = torch.float64) -> Activation:
    return LAYERS[name](12, dtype=dtype)


def train(layer: nn.Module, shape: tuple[int, ...], steps: int = 20) -> None:
    """Move the parameters far: they have no say in the norm of the output, so chase a random target."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3, momentum=0.9)
    for _ in range(steps):
        z, target = torch.randn(2, 16, *shape, dtype=torch.float64)
        optimizer.zero_grad()
        (layer(z) - target).square().sum(1).mean().backward()
        optimizer.step()


def orthogonality_defect(layer: nn.Module, shape: tuple[int, ...]) -> float:
    z = torch.randn(shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], z).reshape(
        z.numel(), z.numel()
    )
    return float((jacobian @ jacobian.T - torch.eye(len(jacobian))).abs().max())


# Entries of J J^T are sums of at most four rounded products per link, with coefficients good to about 30 u.
DEFECT = 4 * 4 * 60 * 2**-53


@shapes
@layers
def test_jacobian_is_orthogonal_before_and_after_training(name, shape):
    layer = build(name)
    assert orthogonality_defect(layer, shape) <= DEFECT
    if name in LEARNABLE:
        before = [p.detach().clone() for p in layer.parameters()]
        train(layer, shape)
        assert all((p - b).abs().max() > 1e-3 for p, b in zip(layer.parameters(), before, strict=True))
    assert orthogonality_defect(layer, shape) <= DEFECT
    assert layer.lipschitz_bound(shape) == 1.0


@layers
def test_no_two_inputs_move_apart(name):
    layer = build(name)
    if name in LEARNABLE:
        train(layer, (12,))
    near = torch.randn(2000, 12, dtype=torch.float64)
    far = (
        near
        + torch.randn(2000, 12, dtype=torch.float64) * 10 ** torch.linspace(-6, 1, 2000)[:, None].double()
    )
    ratio = (layer(far) - layer(near)).norm(dim=1) / (far - near).norm(dim=1)
    assert ratio.max() <= 1 + 1e-8  # rounding of 1e-15 over distances of 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@shapes
@pytest.mark.parametrize("name", ["householder", "order1"])
def test_order_one_starts_as_maxmin_to_the_bit(name, shape, dtype):
    z = torch.randn(8, *shape).to(dtype)
    assert torch.equal(build(name, torch.float32)(z), MaxMin()(z))


@pytest.mark.parametrize(
    "layer",
    [HouseholderND(12), HouseholderND(12, group_size=4, length=2), HouseholderND(12, group_size=6, length=3)],
    ids=repr,
)
def test_reflections_of_half_the_group_start_as_maxmin(layer):
    z = torch.randn(50, 12)
    # z1 - (z1 - z2) rounds twice per exchange
    assert (layer(z) - MaxMin()(z)).abs().max() <= 4 * torch.finfo(torch.float32).eps * z.abs().max()


@pytest.mark.parametrize(
    ("layer", "distance"),
    [
        (HouseholderOrder(2, order=2), 2 * math.sin(math.pi / 64)),
        (HouseholderOrder(2, order=5), 2 * math.sin(math.pi / 64)),
        (HouseholderChain(2, length=1), 0),
        (HouseholderChain(2, length=2), math.pi / 32),
        (HouseholderChain(2, length=4), math.pi / 32),
    ],
    ids=repr,
)
def test_more_regions_start_near_maxmin(layer, distance):
    phase = torch.linspace(0, 2 * math.pi, 20001)
    z = torch.stack((phase.cos(), phase.sin()), dim=1)
    assert (layer(z) - MaxMin()(z)).norm(dim=1).max() <= distance + 1e-5


def test_order_one_takes_the_parameters_of_householder():
    source, target = Householder(12), HouseholderOrder(12, order=1)
    nn.init.normal_(source.theta)
    target.load_state_dict(source.state_dict())
    z = torch.randn(5, 12)
    assert torch.equal(source(z), target(z))


@learnable
def test_every_parameter_learns_from_the_start(name):
    layer = build(name)
    z, target = torch.randn(2, 500, 12, dtype=torch.float64)
    (layer(z) - target).square().sum().backward()
    for parameter in layer.parameters():
        # a vector moves if one of its coordinates does
        moved = parameter.grad.norm(dim=1) if isinstance(layer, HouseholderND) else parameter.grad.abs()
        assert (moved > 0).all()


@learnable
def test_any_finite_parameters_will_do(name):
    layer = build(name)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=1e3)
    z = torch.randn(100, 12, dtype=torch.float64)
    # |theta| of a few thousand costs u |theta| |z|
    assert ((layer(z).norm(dim=1) / z.norm(dim=1)) - 1).abs().max() <= 1e-11


@shapes
@layers
def test_freeze_deepcopy_and_state_dict_keep_the_function_to_the_bit(name, shape):
    layer, loaded = build(name), build(name)
    if name in LEARNABLE:
        train(layer, shape, steps=3)
    z = torch.randn(3, *shape, dtype=torch.float64)
    expected = layer(z)
    loaded.load_state_dict(layer.state_dict())
    assert torch.equal(layer.freeze(shape).apply(z), expected)
    assert torch.equal(copy.deepcopy(layer)(z), expected)
    assert torch.equal(loaded(z), expected)
    assert torch.equal(layer.eval()(z), expected)
    assert layer.output_shape(shape) == shape


@layers
def test_bf16_autocast_keeps_dtype_and_norm(name):
    layer = build(name, torch.float32)
    z = torch.randn(6, 12, 4, 4, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(z)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert (y.float().norm() / z.float().norm() - 1).abs() <= 4 * 2**-8  # a few roundings to 8 bits


@layers
def test_a_batch_may_be_empty(name):
    layer = build(name)
    z = torch.randn(0, 12, 2, 2, dtype=torch.float64, requires_grad=True)
    layer(z).sum().backward()
    assert z.grad.shape == z.shape


def test_registry_builds_every_activation():
    names = {"maxmin", "groupsort4", "hh1", "hh2", "hh3", "chain2", "nd4"}
    assert names <= ACTIVATIONS.keys()
    found = {name: repr(ACTIVATIONS[name](8)) for name in sorted(names)}
    assert found == {
        "chain2": "HouseholderChain(8, length=2)",
        "groupsort4": "GroupSort(4)",
        "hh1": "Householder(8)",
        "hh2": "HouseholderOrder(8, order=2)",
        "hh3": "HouseholderOrder(8, order=3)",
        "maxmin": "MaxMin()",
        "nd4": "HouseholderND(8, group_size=4, length=2)",
    }


@pytest.mark.parametrize(
    ("layer", "numbers"),
    [
        (Householder(6), 3),
        (HouseholderOrder(6, order=1), 3),
        (HouseholderOrder(6, order=4), 3 * 7),
        (HouseholderChain(6, length=4), 3 * 4),
        (HouseholderND(6, group_size=3, length=2), 6 * 2),
    ],
    ids=repr,
)
def test_number_of_parameters_is_the_papers(layer, numbers):
    assert sum(p.numel() for p in layer.parameters()) == numbers


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Householder(5), "channels: Householder needs a multiple of 2, got 5"),
        (lambda: Householder(0), "channels: expected an integer of at least 1, got 0"),
        (lambda: Householder(4.0), r"channels: expected an integer of at least 1, got 4\.0"),
        (lambda: HouseholderOrder(4, order=0), "order: expected an integer of at least 1, got 0"),
        (lambda: HouseholderOrder(4, order=129), "order: expected at most 128, got 129"),
        (lambda: HouseholderChain(4, length=0), "length: expected an integer of at least 1, got 0"),
        (lambda: HouseholderND(6, group_size=4), "channels: HouseholderND needs a multiple of 4, got 6"),
        (lambda: GroupSort(1), "group_size: expected an integer of at least 2, got 1"),
        (lambda: MaxMin()(torch.zeros(2, 3)), "MaxMin: expected a number of channels divisible by 2, got 3"),
        (
            lambda: MaxMin()(torch.zeros(2, 4, 4)),
            r"MaxMin: expected floating point .* got .* shape \(2, 4, 4\)",
        ),
        (lambda: MaxMin()(torch.zeros(2, 4).long()), "MaxMin: expected floating point .* got torch.int64"),
        (lambda: Householder(4)(torch.zeros(2, 6)), r"Householder: expected 4 channels, got shape \(6,\)"),
        (
            lambda: GroupSort(4).freeze((6, 2, 2)),
            "GroupSort: expected a number of channels divisible by 4, got 6",
        ),
        (lambda: MaxMin().lipschitz_bound((4, 2)), r"MaxMin: expected samples \(C,\) or \(C, H, W\), got"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@learnable
def test_no_bound_for_parameters_that_are_not_finite(name):
    layer = build(name)
    with torch.no_grad():
        next(layer.parameters()).view(-1)[0] = math.nan
    with pytest.raises(ArgumentError, match="that are not finite; the model diverged or is damaged"):
        layer.lipschitz_bound((12,))


def test_no_bound_for_a_zero_vector():
    layer = HouseholderND(6, group_size=3)
    with torch.no_grad():
        layer.vectors[0, :, 1] = 0
    with pytest.raises(ArgumentError, match="vectors: expected nonzero vectors, got one of zeros"):
        layer.lipschitz_bound((6,))


def test_gradient_norm_survives_forty_layers():
    stack = nn.Sequential(*(Householder(8, dtype=torch.float32) for _ in range(40)))
    for layer in stack:
        nn.init.uniform_(layer.theta, -4, 4)
    z = torch.randn(10, 8, requires_grad=True)
    gradient: Tensor = torch.randn(10, 8)
    stack(z).backward(gradient)
    assert ((z.grad.norm(dim=1) / gradient.norm(dim=1)) - 1).abs().max() <= 40 * 8 * torch.finfo(
        torch.float32
    ).eps
