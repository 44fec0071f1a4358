"""The certified classifier, and a differentiable copy of it for gradient attacks."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipcert.certify.network import ProvedNetwork
from lipcert.errors import ArgumentError
from lipcert.nn.wrappers import device_of


@dataclass(frozen=True)
class Classifier:
    """The exact classifier, and a fast, differentiable copy for the search.

    Attributes:
        exact: from points to the logits that the claims are about.
        surrogate: nearly the same function in float32, fast and differentiable in its input. Its results are
            never trusted.
        device: of both.
        dtype: of `exact`; float64 except for claims about networks that lipcert did not prove.
    """

    exact: Callable[[Tensor], Tensor]
    surrogate: nn.Module
    device: torch.device
    dtype: torch.dtype = torch.float64

    @torch.no_grad()
    def logits(self, points: Tensor) -> Tensor:
        """Logits of `exact` in float64, (N, K)."""
        return self.exact(points.to(self.device, self.dtype)).double()


def certified_classifier(network: ProvedNetwork) -> Classifier:
    """The operators of a proved network, in float64 and in float32."""
    return Classifier(network.operator.apply, network.module(), network.device)


def any_classifier(module: nn.Module, dtype: torch.dtype = torch.float64) -> Classifier:
    """Any module from images to logits, for claims that `certify` did not make.

    The module is copied, converted to `dtype` and put in evaluation mode.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    exact, surrogate = (
        copy.deepcopy(module).to(t).eval().requires_grad_(False) for t in (dtype, torch.float32)
    )
    return Classifier(exact, surrogate, device_of(module), dtype)
