"""Layers that move entries and change none."""

import math

from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.operator import Shape
from lipcert.operators.rearrange import Reshape


class Flatten(LipschitzModule):
    """Maps to vectors, (N, C, H, W) -> (N, C * H * W).

    Guarantee: an isometry, exact in every precision.

    >>> import torch
    >>> Flatten()(torch.zeros(2, 3, 4, 4)).shape
    torch.Size([2, 48])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Lay each sample out as one vector."""
        if x.dim() < 2:
            raise ArgumentError(f"Flatten: expected a batch (N, ...), got shape {tuple(x.shape)}")
        return x.flatten(1)

    def output_shape(self, input_shape: Shape) -> Shape:
        """One axis, as long as all axes of the input together."""
        return (math.prod(input_shape),)

    def freeze(self, input_shape: Shape) -> Reshape:
        """The same."""
        return Reshape()
