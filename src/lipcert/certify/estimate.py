"""Lipschitz constants by power iteration, as in appendix D of the paper; they never enter a certificate."""

import math

import torch
from torch import Tensor, nn

from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.errors import check_positive
from lipcert.operators import Operator, Shape


def lipschitz_estimate(
    model: nn.Module | ProvedNetwork, input_shape: Shape | None = None, *, iterations: int = 50
) -> float:
    """Estimate the Lipschitz constant from raw pixels to logits, as the product of the operators' estimates.

    Each factor comes from below, so this is not a bound. Draws no global random numbers.

    Args:
        model: a proved network, or a model that can be proved; one operator after the other.
        input_shape: shape of one image; by default the one the model was built for.
        iterations: steps of power iteration on each operator; the paper takes 50.

    Paper: appendix D, "Results using revised Lipschitz constants".
    """
    return math.prod(layer_estimates(model, input_shape, iterations=iterations))


def layer_estimates(
    model: nn.Module | ProvedNetwork, input_shape: Shape | None = None, *, iterations: int = 50
) -> list[float]:
    """Estimated Lipschitz constant of every operator in `ProvedNetwork.layers`, in float64."""
    check_positive(iterations=iterations)
    network = model if isinstance(model, ProvedNetwork) else prove(model, input_shape)
    return [_estimate(leaf.operator, leaf.input_shape, iterations, network.device) for leaf in network.layers]


def _estimate(operator: Operator, input_shape: Shape, iterations: int, device: torch.device) -> float:
    """Largest gain ||f(v) - f(0)|| / ||v|| met on the way to the leading singular vector v.

    Around zero every operator is affine or positively homogeneous, so that differences of its outputs are
    products with its Jacobian, and gradients are products with the transpose. A gain is then a ratio of
    distances that the operator really has.
    """
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(1, *input_shape, dtype=torch.float64, device="cpu", generator=generator).to(device)
    origin = torch.zeros_like(v)
    largest = 0.0
    for _ in range(iterations):
        v = v / v.norm()
        with torch.no_grad():
            change = operator.apply(v) - operator.apply(origin)
        gain = float(change.norm())
        largest = max(largest, gain)
        if not gain:
            break
        v = _transpose_product(operator, v, change)
    return largest


def _transpose_product(operator: Operator, x: Tensor, u: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(operator.apply(x), x, u)
    return gradient
