"""Lipschitz constants by power iteration, as in appendix D of the paper; they never enter a certificate."""

import copy
import math

import torch
from torch import Tensor, nn

from lipcert.errors import check_positive
from lipcert.nn.lipschitz import LipschitzModule, Shape
from lipcert.nn.walk import device_of, input_shape_of, placed_layers, unwrap


def lipschitz_estimate(model: nn.Module, input_shape: Shape | None = None, *, iterations: int = 50) -> float:
    """Estimate the Lipschitz constant from raw pixels to logits, as the product of the layers' estimates.

    Each factor comes from below, so this is not a bound: `lipschitz_upper_bound` is. Draws no global random
    numbers.

    Args:
        model: a tree of `nn.Sequential` of lipcert's layers.
        input_shape: shape of one image; by default the one the model was built for.
        iterations: steps of power iteration on each layer; the paper takes 50.

    Raises:
        NotProvedError: a module that is none of lipcert's layers, by path and name.

    Paper: appendix D, "Results using revised Lipschitz constants".
    """
    return math.prod(layer_estimates(model, input_shape, iterations=iterations).values())


def layer_estimates(
    model: nn.Module, input_shape: Shape | None = None, *, iterations: int = 50
) -> dict[str, float]:
    """Estimated Lipschitz constant of every layer as it runs in evaluation, in float64, by path."""
    check_positive(iterations=iterations)
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
    """Largest gain ||f(v) - f(0)|| / ||v|| met on the way to the leading singular vector v.

    Around zero every layer of lipcert is affine or positively homogeneous, so that differences of its own
    outputs are products with its Jacobian, and gradients are products with the transpose. A gain is then a
    ratio of distances that the layer really has.
    """
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(1, *input_shape, dtype=torch.float64, device="cpu", generator=generator).to(device)
    origin = torch.zeros_like(v)
    largest = 0.0
    for _ in range(iterations):
        v = v / v.norm()
        with torch.no_grad():
            change = layer(v) - layer(origin)
        gain = float(change.norm())
        largest = max(largest, gain)
        if not gain:
            break
        v = _transpose_product(layer, v, change)
    return largest


def _transpose_product(layer: LipschitzModule, x: Tensor, u: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x), x, u)
    return gradient
