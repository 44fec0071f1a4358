"""What every registered activation promises; a new one is picked up from the registry, unnamed here."""

import copy

import pytest
import torch
from torch import nn

from lipcert.errors import ArgumentError
from lipcert.nn import ACTIVATIONS
from tests.contracts.dense import dense_jacobian, rounding, worst_singular_value
from tests.contracts.histories import HISTORIES, History
from tests.contracts.layers import CHANNELS

SHAPES = [(CHANNELS,), (CHANNELS, 1, 1), (CHANNELS, 2, 3)]

every_activation = pytest.mark.parametrize("name", ACTIVATIONS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@every_activation
@every_shape
@pytest.mark.parametrize("history", HISTORIES, ids=lambda h: h.__name__)
def test_the_jacobian_is_orthogonal(name: str, shape: tuple[int, ...], history: History) -> None:
    function = history(lambda: ACTIVATIONS[name](CHANNELS), shape)
    jacobian = dense_jacobian(function, shape)
    assert worst_singular_value(jacobian) <= rounding(jacobian)


@every_activation
@every_shape
def test_the_shape_is_kept(name: str, shape: tuple[int, ...]) -> None:
    layer = ACTIVATIONS[name](CHANNELS)
    assert layer.output_shape(shape) == shape
    assert layer(torch.randn(3, *shape)).shape == (3, *shape)


@every_activation
def test_no_pair_of_inputs_moves_apart(name: str) -> None:
    layer = ACTIVATIONS[name](CHANNELS).double().eval()
    bound = layer.lipschitz_bound((CHANNELS, 2, 2))
    assert 1 <= bound <= 1 + 1e-6
    x = torch.randn(500, CHANNELS, 2, 2, dtype=torch.float64)
    # Steps of every size, so that pairs stay within a linear piece, cross one boundary, or many.
    y = x + torch.randn_like(x) * torch.logspace(-6, 1, 500, dtype=torch.float64).view(-1, 1, 1, 1)
    gain = (layer(x) - layer(y)).detach().flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert float(gain.max()) <= bound * (1 + 1e-8)  # at steps of 1e-6 the differences carry eight digits


@every_activation
def test_maps_are_treated_pixel_by_pixel(name: str) -> None:
    layer = ACTIVATIONS[name](CHANNELS).double().eval()
    x = torch.randn(2, CHANNELS, 3, 2, dtype=torch.float64)
    pixels = x.permute(0, 2, 3, 1).reshape(-1, CHANNELS)
    expected = layer(pixels).reshape(2, 3, 2, CHANNELS).permute(0, 3, 1, 2)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-14)


@every_activation
def test_it_is_not_linear(name: str) -> None:
    layer = ACTIVATIONS[name](CHANNELS).double().eval()
    x = torch.randn(20, CHANNELS, dtype=torch.float64)
    assert not torch.allclose(layer(x) + layer(-x), 2 * layer(torch.zeros_like(x)))


@every_activation
def test_gradcheck(name: str) -> None:
    layer = ACTIVATIONS[name](CHANNELS).double()
    x = torch.randn(2, CHANNELS, 2, 1, dtype=torch.float64, requires_grad=True)
    names = [n for n, _ in layer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *values))


@every_activation
def test_single_precision_agrees(name: str) -> None:
    layer = ACTIVATIONS[name](CHANNELS).eval()
    x = torch.randn(50, CHANNELS)
    with torch.no_grad():
        exact = copy.deepcopy(layer).double()(x.double())
        assert float((layer(x) - exact).norm() / exact.norm()) < 1e-6


@every_activation
def test_bfloat16_autocast_agrees(name: str) -> None:
    layer = ACTIVATIONS[name](CHANNELS)
    x = torch.randn(50, CHANNELS, 2, 2, requires_grad=True)
    plain = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x)
        low = layer(x.bfloat16())
    low.float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    for y in (half, low):
        assert float((y.float() - plain).detach().norm() / plain.detach().norm()) < 0.02


@every_activation
def test_the_gradient_keeps_its_norm_through_40_layers(name: str) -> None:
    layers = nn.Sequential()
    for _ in range(40):
        # A random rotation in between, so that each activation meets every piece.
        rotation = nn.Linear(CHANNELS, CHANNELS)
        nn.init.orthogonal_(rotation.weight)
        layers.extend((rotation, ACTIVATIONS[name](CHANNELS)))
    x, u = torch.randn(5, CHANNELS, requires_grad=True), torch.randn(5, CHANNELS)
    (gradient,) = torch.autograd.grad(layers.eval()(x), x, u)
    assert float((gradient.norm(dim=1) / u.norm(dim=1) - 1).abs().max()) < 0.01


@every_activation
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, CHANNELS + 2), str(CHANNELS)),
        (torch.zeros(2, CHANNELS + 2, 3, 3), str(CHANNELS)),
    ],
    ids=["vector", "map"],
)
def test_other_channels_are_refused(name: str, x: torch.Tensor, message: str) -> None:
    layer = ACTIVATIONS[name](CHANNELS)
    if not list(layer.parameters()):
        pytest.skip("has no state per channel, so that it takes any number of whole groups")
    with pytest.raises(ArgumentError, match=message):
        layer(x)
