"""Layers that rearrange entries without changing them."""

import math

from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.channels import space_to_depth
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.operator import Shape
from lipcert.operators.rearrange import Reshape
from lipcert.operators.rearrange import SpaceToDepth as SpaceToDepthOperator


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


class SpaceToDepth(LipschitzModule):
    """Every 2x2 block of pixels as channels, (N, C, H, W) -> (N, 4 C, H / 2, W / 2).

    Guarantee: an isometry, exact in every precision.

    >>> import torch
    >>> SpaceToDepth()(torch.zeros(2, 3, 4, 6)).shape
    torch.Size([2, 12, 2, 3])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Move pixels to channels."""
        self.output_shape(tuple(x.shape[1:]))
        return space_to_depth(x)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Four times the channels, half of both sides."""
        return self.freeze(input_shape).output_shape(input_shape)

    def freeze(self, input_shape: Shape) -> SpaceToDepthOperator:
        """The same."""
        return SpaceToDepthOperator()
