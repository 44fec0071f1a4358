"""Small examples of every layer, and their contracts on a device."""

from collections.abc import Iterator

import torch

from lipcert.nn.checks import ContractReport, contract
from lipcert.nn.contract import ACTIVATIONS, CONVOLUTIONS, LipschitzModule
from lipcert.nn.heads import NormalizedLinear, OrthogonalHead
from lipcert.nn.linear import METHODS
from lipcert.nn.normalize import Normalize
from lipcert.operators.operator import Shape

CHANNELS = 12
"""A multiple of every group size of lipcert's own activations."""


def examples() -> Iterator[tuple[LipschitzModule, Shape]]:
    """One of each layer that is known, registered ones of other packages too, with the shape of an input."""
    yield Normalize((0.4, 0.5, 0.6), 0.25), (3, 4, 4)
    for build in CONVOLUTIONS.values():
        for stride in (1, 2):
            yield build(3, 8, max(k for k in build.kernel_sizes if k <= 3), stride=stride), (3, 4, 4)
    for activation in ACTIVATIONS.values():
        yield activation(CHANNELS), (CHANNELS, 4, 4)
    yield NormalizedLinear(6, 4), (6,)
    for method in METHODS:
        yield OrthogonalHead(6, 4, method=method), (6,)


def selftest(device: torch.device | str) -> Iterator[ContractReport]:
    """The contract of every layer on one device, one after the other."""
    for layer, shape in examples():
        yield contract(layer, shape, device=device)
