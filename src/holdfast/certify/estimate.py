"""Lipschitz constants by power iteration, as in appendix D of the paper; they never enter a certificate."""

import copy
import math

import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError
from holdfast.nn.lipschitz import LipschitzModule, Shape
from holdfast.nn.walk import device_of, input_shape_of, placed_layers, unwrap

# Layers are affine, or piecewise linear with few pieces this close to a random point. The step only has to
# stand clear of float64 rounding.
STEP = 1e-3


def lipschitz_estimate(model: nn.Module, iterations: int = 50, *, input_shape: Shape | None = None) -> float:
    """Estimate the Lipschitz constant from raw pixels to logits, as the product of the layers' estimates.

    Each factor comes from below, so this is not a bound: `lipschitz_upper_bound` is. Draws no global random
    numbers.

    Args:
        model: a tree of `nn.Sequential` of holdfast's layers.
        iterations: steps of power iteration on each layer; the paper takes 50.
        input_shape: shape of one image; by default the one the model was built for.

    Raises:
        NotProvedError: a module that is none of holdfast's layers, by path and name.

    Paper: appendix D, "Results using revised Lipschitz constants".
    """
    return math.prod(layer_estimates(model, iterations, input_shape=input_shape).values())


def layer_estimates(
    model: nn.Module, iterations: int = 50, *, input_shape: Shape | None = None
) -> dict[str, float]:
    """Estimated Lipschitz constant of every layer as it runs in evaluation, in float64, by path."""
    if not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1:
        raise ArgumentError(f"iterations: expected a positive integer, got {iterations!r}")
    model = unwrap(model)
    shape = input_shape_of(model, input_shape)
    exact = copy.deepcopy(model).double().eval().requires_grad_(False)
    device = device_of(exact)
    with torch.autocast(device.type, enabled=False):
        return {
            path: _layer_estimate(layer, at, iterations, device)
            for path, layer, at in placed_layers(exact, shape)
        }


def _layer_estimate(
    layer: LipschitzModule, input_shape: Shape, iterations: int, device: torch.device
) -> float:
    """Largest gain ||f(x + hv) - f(x)|| / ||hv|| met on the way to the leading singular vector v.

    Products with the Jacobian are differences of the layer's own outputs, those with its transpose are
    gradients; a gain is then a ratio of distances that the layer really has.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, *input_shape, dtype=torch.float64, generator=generator).to(device)
    v = torch.randn(1, *input_shape, dtype=torch.float64, generator=generator).to(device)
    largest = 0.0
    for _ in range(iterations):
        v = v / v.norm()
        with torch.no_grad():
            change = (layer(x + STEP * v) - layer(x)) / STEP
        gain = float(change.norm())
        largest = max(largest, gain)
        if not gain:
            break
        v = _transpose_product(layer, x, change)
    return largest


def _transpose_product(layer: LipschitzModule, x: Tensor, u: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x), x, u)
    return gradient
