"""The first layer of every model: raw pixels in, normalised channels out."""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.channels import ChannelAffine
from lipcert.operators.operator import Shape


class Normalize(LipschitzModule):
    r"""Channel-wise (x - mean) / std on maps of raw pixels in [0, 1].

    Because the model itself normalises, its certificates are in pixel units: what normalisation stretches is
    part of the network's Lipschitz constant.

    Guarantee: Lipschitz constant 1 / min(std), rounded up; the largest std would give radii that are too
    large.

    Args:
        mean: one number per channel. A single number stands for one channel, or for every channel of `std`.
        std: one positive number per channel, or a single number for every channel of `mean`.

    Shape:
        (N, C, H, W) -> (N, C, H, W), C the number of means.

    Raises:
        ArgumentError: a std that is not positive, numbers that are not finite, lengths that disagree.

    >>> Normalize((0.4914, 0.4822, 0.4465), 0.2507)
    Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2507, 0.2507, 0.2507))
    >>> Normalize(0.5, 0.25).lipschitz_bound((1, 8, 8))
    4.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        means, stds = _numbers("mean", mean), _numbers("std", std)
        if isinstance(mean, Real):
            means = means * len(stds)
        if isinstance(std, Real):
            stds = stds * len(means)
        if len(means) != len(stds):
            raise ArgumentError(
                f"std: expected one number, or one per channel of mean ({len(means)}), got {len(stds)}"
            )
        if min(stds) <= 0:
            raise ArgumentError(f"std: expected positive numbers, got {min(stds)}")
        shape = (1, -1, 1, 1)
        self.register_buffer("mean", torch.tensor(means).view(shape))
        self.register_buffer("std", torch.tensor(stds).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch of images (N, C, H, W)."""
        if x.dim() != 4:
            raise ArgumentError(
                f"Normalize: expected a batch of images (N, C, H, W), got shape {tuple(x.shape)}"
            )
        self.output_shape(tuple(x.shape[1:]))
        if not x.is_floating_point():
            raise ArgumentError(
                f"Normalize: expected floating point pixels in [0, 1], got {x.dtype}; use x.float() / 255"
            )
        return (x - self.mean) / self.std

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own shape; raises if the number of channels is another."""
        channels = self.mean.numel()
        if len(input_shape) != 3 or input_shape[0] != channels:
            raise ArgumentError(
                f"Normalize: expected images of {channels} channels, got shape {tuple(input_shape)}"
            )
        return input_shape

    def freeze(self, input_shape: Shape) -> ChannelAffine:
        """The numbers of the buffers."""
        self.output_shape(input_shape)
        return ChannelAffine(self.mean.flatten().clone(), self.std.flatten().clone())

    def extra_repr(self) -> str:
        """Mean and std as they were given, to the digits that single precision holds."""
        return ", ".join(
            f"{name}=({', '.join(f'{v:.7g}' for v in values.flatten().tolist())})"
            for name, values in (("mean", self.mean), ("std", self.std))
        )


def _numbers(name: str, value: float | Sequence[float]) -> list[float]:
    numbers = [value] if isinstance(value, Real) else list(value)  # type: ignore[arg-type]
    if not numbers or not all(isinstance(v, Real) and math.isfinite(v) for v in numbers):
        raise ArgumentError(f"{name}: expected a finite number or one per channel, got {value!r}")
    return [float(v) for v in numbers]
