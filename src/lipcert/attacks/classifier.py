"""Whom an audit attacks: the classifier that a certificate speaks of, and a quick stand-in for gradients."""

import copy
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipcert.certify.exact import exact_network
from lipcert.certify.radii import PRECISIONS, full_precision
from lipcert.errors import ArgumentError, choose
from lipcert.models.freezing import freeze
from lipcert.nn.lipschitz import Shape
from lipcert.nn.walk import device_of, split_head, unwrap_unchanged


@dataclass(frozen=True)
class Classifier:
    """A classifier twice: once to believe, once to search with.

    Attributes:
        exact: whatever `exact` predicts is what the certificate promises; in `dtype`, without gradients.
        surrogate: nearly the same function in float32, fast and differentiable in its input. Nothing that
            it says is believed.
        dtype: the precision of `exact`.
        device: where both live.
    """

    exact: nn.Module
    surrogate: nn.Module
    dtype: torch.dtype
    device: torch.device

    @torch.no_grad()
    def logits(self, points: Tensor) -> Tensor:
        """Logits of `exact` in float64, (N, K)."""
        with full_precision(self.device):
            logits: Tensor = self.exact(points.to(self.device, self.dtype))
        return logits.double()


def certified_classifier(model: nn.Module, input_shape: Shape, precision: str = "float64") -> Classifier:
    """The classifier that `certify` speaks of: the same frozen layers, in the same precision.

    Args:
        model: what was certified.
        input_shape: shape of one image.
        precision: that of the certificates.

    Raises:
        NotProvedError: a module that `certify` refuses too.
    """
    dtype = PRECISIONS[choose("precision", precision, PRECISIONS)]
    model = unwrap_unchanged(model)
    body, head = split_head(copy.deepcopy(model).float().eval())
    device = device_of(model)
    with full_precision(device), torch.no_grad():
        network = exact_network(model, input_shape, dtype)
        surrogate = freeze(
            nn.Sequential(OrderedDict([*body._modules.items(), ("classes", head)])), input_shape
        )
    return Classifier(network.classifier(), surrogate.requires_grad_(False), dtype, device)


def any_classifier(module: nn.Module, precision: str = "float64") -> Classifier:
    """Any module from images to logits, for claims that `certify` did not make.

    The module is copied, converted to `precision` and put in evaluation mode.
    """
    dtype = PRECISIONS[choose("precision", precision, PRECISIONS)]
    if not isinstance(module, nn.Module):
        raise ArgumentError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    exact, surrogate = (
        copy.deepcopy(module).to(t).eval().requires_grad_(False) for t in (dtype, torch.float32)
    )
    return Classifier(exact, surrogate, dtype, device_of(module))
