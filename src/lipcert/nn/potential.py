"""CPL and SLL: residual layers that are steps of gradient descent on a convex potential."""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from lipcert.kernels.gram import absolute_sums
from lipcert.kernels.potential import gradient_step
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import Device, LipschitzConv2d
from lipcert.nn.explicit import near_orthogonal
from lipcert.nn.norm import KernelNorm
from lipcert.operators.potential import GradientStep


class PotentialConv2d(LipschitzConv2d):
    r"""y = x - V^T relu(V x + b), with zeros around the map.

    x has c = max(stride^2 in, out) channels: zeros are added to fewer, and of the result the first `out` are
    kept. The Jacobian is I - V^T S V with 0 <= S <= I diagonal, symmetric, between I - V^T V and I: so the
    layer is 1-Lipschitz where ||V||^2 <= 2. A subclass makes V of `weight` by `step_kernel`.
    """

    kernel_sizes = (1, 3, 5)
    matrices: ClassVar = {"weight": "kernel"}
    linear = False

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """A kernel near an orthogonal matrix in its middle."""
        c = self.channels
        self.weight = near_orthogonal(c, c, self.kernel_size, device=device, dtype=dtype)

    @property
    def bias_size(self) -> int:
        """The bias stands inside the relu, one number per channel of the step."""
        return self.channels

    def add_bias(self, y: Tensor) -> Tensor:
        """Nothing to add: `transform` has it inside the relu."""
        return y

    @abstractmethod
    def step_kernel(self, height: int, width: int, *, training: bool = False) -> Tensor:
        """V, (c, c, k, k), for maps of this size."""

    def transform(self, x: Tensor) -> Tensor:
        """The step, in as many channels as it takes."""
        size = tuple(x.shape[2:])
        kernel = self.derived(lambda: self.step_kernel(*size, training=self.training), size)
        return gradient_step(x, kernel.to(self.weight.dtype), self.bias, self.out_channels)

    def freeze_transform(self, height: int, width: int) -> GradientStep:
        """The step with the finished kernel."""
        kernel = self.step_kernel(height, width).to(self.weight.dtype).contiguous()
        return GradientStep(kernel, self.frozen_bias(), self.map_channels, self.out_channels)


@register_convolution("cpl")
class CPL(PotentialConv2d):
    r"""Convex potential layer: y = x - (2 / ||W||^2) W^T relu(W x + b).

    `step_kernel` is sqrt(2) W / ||W||, the norm that of the convolution on the map at hand, by power
    iteration: V = sqrt(2) W / ||W|| and a bias scaled alike make the same layer, since relu is positively
    homogeneous.

    Guarantee: what `lipschitz_bound` states, proved for V as it is: 1, or what an estimate of ||W|| that is
    too small leaves above it.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1, 3 or 5.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias inside the relu.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    >>> layer = CPL(3, 8, 3, stride=2)
    >>> layer, layer(torch.zeros(1, 3, 32, 32)).shape
    (CPL(
      3, 8, kernel_size=3, stride=2
      (norm): KernelNorm()
    ), torch.Size([1, 8, 16, 16]))

    Reference: L. Meunier, B. Delattre, A. Araujo, A. Allauzen, A dynamical system perspective for Lipschitz
    neural networks, ICML 2022.
    """

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """The kernel, and where its norm is kept."""
        super().make_weights(device, dtype)
        self.norm = KernelNorm()

    def step_kernel(self, height: int, width: int, *, training: bool = False) -> Tensor:
        """sqrt(2) W / ||W||."""
        with without_autocast(self.weight):
            weight = at_least_single(self.weight)
            norm = self.norm(weight, height, width, training=training)
            scaled: Tensor = weight * (math.sqrt(2) / norm.clamp_min(torch.finfo(norm.dtype).tiny))
            return scaled


@register_convolution("sll")
class SLL(PotentialConv2d):
    r"""SDP-based Lipschitz layer: y = x - 2 W T^-1 relu(W^T x + b), T diagonal.

    .. math:: T_a = \sum_b |W^T W|_{ab}\, q_b / q_a, \qquad q_a = e^{\text{log\_weights}_a},

    sums over taps too. `step_kernel` is the convolution sqrt(2) T^(-1/2) W^T, whose square has norm at most
    2 for all weights.

    Guarantee: 1-Lipschitz by construction; `lipschitz_bound` proves it again for the finished kernel.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1, 3 or 5.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias inside the relu.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    >>> layer = SLL(3, 8, 3, stride=2)
    >>> layer, layer(torch.zeros(1, 3, 32, 32)).shape
    (SLL(3, 8, kernel_size=3, stride=2), torch.Size([1, 8, 16, 16]))

    Reference: A. Araujo, A. Havens, B. Delattre, A. Allauzen, B. Hu, A unified algebraic perspective on
    Lipschitz neural networks, ICLR 2023.
    """

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """The kernel, and q = 1."""
        super().make_weights(device, dtype)
        self.log_weights = nn.Parameter(self.weight.new_zeros(self.channels).detach())

    def step_kernel(self, height: int, width: int, *, training: bool = False) -> Tensor:
        """sqrt(2) T^(-1/2) W^T, the same for maps of every size."""
        with without_autocast(self.weight):
            weight = at_least_single(self.weight)
            sums = absolute_sums(weight, at_least_single(self.log_weights).exp())
            scale = (sums.clamp_min(torch.finfo(sums.dtype).tiny) / 2).rsqrt()
            return weight * scale.view(-1, 1, 1, 1)
