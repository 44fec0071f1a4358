"""Steps of gradient descent on a convex potential, 1-Lipschitz where they are short enough."""

import math
from dataclasses import dataclass

from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.potential import gradient_step
from lipcert.operators.linear import affine_error, bias_norm, check_bias
from lipcert.operators.operator import Operator, RoundingError, Shape
from lipcert.proofs.convolutions import convolution_norm_upper_bound
from lipcert.proofs.rounding import TINY, UNIT, product_up, sum_up


@dataclass(frozen=True, eq=False, repr=False)
class GradientStep(Operator):
    r"""y = x - V^T relu(V x + b), V a convolution with zeros around the map.

    Where it is differentiable the Jacobian is :math:`I - V^T S V` with S diagonal, of zeros and ones. It is
    symmetric and lies between :math:`I - V^T V` and I, so its norm is at most
    :math:`\max(1, \|V\|^2 - 1)`.

    x has the channels of V: zeros are added to `in_channels`, and the first `out_channels` of y are kept.

    Args:
        kernel: (hidden, channels, k, k), k odd.
        bias: (hidden,) or None.
        in_channels: channels of the input.
        out_channels: channels of the output.

    >>> import torch
    >>> step = GradientStep(torch.eye(2).view(2, 2, 1, 1), None, 2, 2)
    >>> step.apply(torch.tensor([[[[-1.0]], [[3.0]]]])).flatten()
    tensor([-1.,  0.])
    """

    kernel: Tensor
    bias: Tensor | None
    in_channels: int
    out_channels: int

    def __post_init__(self) -> None:
        shape = tuple(self.kernel.shape)
        if len(shape) != 4 or shape[2] != shape[3] or not shape[3] % 2:
            raise ArgumentError(f"kernel: expected (hidden, channels, k, k) with k odd, got shape {shape}")
        if not (0 < self.in_channels <= shape[1] and 0 < self.out_channels <= shape[1]):
            raise ArgumentError(
                f"in_channels, out_channels: expected 1 to {shape[1]}, the channels of the kernel, got "
                f"{self.in_channels} and {self.out_channels}"
            )
        check_bias(self.bias, shape[0])

    def apply(self, x: Tensor) -> Tensor:
        """The step."""
        return gradient_step(x, self.kernel, self.bias, self.out_channels)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The map's own size."""
        if len(input_shape) != 3 or input_shape[0] != self.in_channels:
            raise self._refuse(f"maps of {self.in_channels} channels", input_shape)
        return (self.out_channels, *input_shape[1:])

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """max(1, ||V||^2 - 1), rounded up."""
        norm = self._norm(input_shape)
        return max(1.0, math.nextafter(product_up(norm, norm) - 1, math.inf))

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        r"""Two convolutions and a difference; relu rounds nothing.

        With z = V x + b computed to within :math:`r \|x\| + a`, its relu has at most the length
        :math:`(\|V\| + r) \|x\| + \|b\| + a`. What is off in z reaches the result times :math:`\|V\|`.
        """
        _, height, width = self.output_shape(input_shape)
        norm, pixels = self._norm(input_shape), height * width
        taps, terms = self.kernel.flatten(2), self.kernel.shape[-1] ** 2
        first = affine_error(taps, self.bias, terms * taps.shape[1], pixels, norm)
        second = affine_error(taps.transpose(0, 1), None, terms * taps.shape[0], pixels, norm)
        shift = bias_norm(self.bias, pixels)
        relative = sum_up(
            product_up(norm, first.relative), product_up(second.relative, sum_up(norm, first.relative))
        )
        absolute = sum_up(
            product_up(norm, first.absolute),
            product_up(second.relative, sum_up(shift, first.absolute)),
            second.absolute,
        )
        # The difference is off by u times its size, which is at most that of its two parts.
        size = sum_up(1.0, product_up(norm, norm), relative)
        rest = sum_up(product_up(norm, shift), absolute)
        return RoundingError(
            sum_up(relative, product_up(UNIT, size)), sum_up(absolute, product_up(UNIT, rest), TINY)
        )

    def _norm(self, input_shape: Shape) -> float:
        size = self.output_shape(input_shape)[1:]
        padding = (self.kernel.shape[-1] // 2,) * 2
        return self._make(
            size, lambda: convolution_norm_upper_bound(self.kernel, size, (1, 1), padding, (1, 1), 1)
        )
