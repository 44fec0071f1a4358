"""Networks from networks: centred channels, residual blocks, mirror images and averages.

`Center` is a layer. The others are ordinary modules, which `lipcert.prove` traces: their constants follow
from those of the branches.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.channels import ChannelAffine
from lipcert.operators.operator import Shape


class Center(LipschitzModule):
    """Subtracts from every channel its mean: that of the batch in training, a running mean in evaluation.

    What batch normalisation does, without the division, which has no bounded constant.

    Guarantee: Lipschitz constant 1.

    Args:
        channels: of the input.
        momentum: share of a batch's mean in the running mean; between 0 and 1.

    Shape:
        (N, C, ...) -> (N, C, ...).

    >>> layer = Center(2)
    >>> layer(torch.tensor([[1.0, 4.0], [3.0, 8.0]]))
    tensor([[-1., -2.],
            [ 1.,  2.]])
    >>> layer.mean
    tensor([0.2000, 0.6000])
    """

    mean: Tensor

    def __init__(self, channels: int, *, momentum: float = 0.1) -> None:
        super().__init__()
        check_positive(channels=channels)
        self.momentum = _share("momentum", momentum)
        self.register_buffer("mean", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean of every channel."""
        self.output_shape(tuple(x.shape[1:]))
        mean = self.mean.to(x.dtype)
        if self.training:
            mean = x.mean(dim=(0, *range(2, x.dim())))
            with torch.no_grad():
                self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
        return x - mean.view(1, -1, *(1,) * (x.dim() - 2))

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own shape; raises if the number of channels is another."""
        if len(input_shape) not in (1, 3) or input_shape[0] != len(self.mean):
            raise ArgumentError(f"Center: expected {len(self.mean)} channels, got shape {tuple(input_shape)}")
        return input_shape

    def freeze(self, input_shape: Shape) -> ChannelAffine:
        """The running mean, subtracted."""
        self.output_shape(input_shape)
        return ChannelAffine(self.mean.clone(), torch.ones_like(self.mean))

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{len(self.mean)}, momentum={self.momentum:g}"


class Residual(nn.Module):
    """The mean of an input and a function of it: (1 - weight) x + weight f(x).

    Guarantee: 1-Lipschitz if f is; in general (1 - weight) + weight L.

    Args:
        body: f, any module that keeps the shape.
        weight: of f; between 0 and 1.

    >>> Residual(nn.ReLU(), weight=0.25)(torch.tensor([[-4.0, 4.0]]))
    tensor([[-3.,  4.]])
    """

    def __init__(self, body: nn.Module, *, weight: float = 0.5) -> None:
        super().__init__()
        if not isinstance(body, nn.Module):
            raise ArgumentError(f"body: expected a torch.nn.Module, got {type(body).__name__}")
        self.body, self.weight = body, _share("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add both."""
        mean: Tensor = (1 - self.weight) * x + self.weight * self.body(x)
        return mean

    def extra_repr(self) -> str:
        """The weight."""
        return f"weight={self.weight:g}"


class Mirrored(nn.Module):
    """The mean of a network's outputs for an image and for its mirror image; see `lipcert.mirrored`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Run the network twice."""
        mean: Tensor = 0.5 * self.model(x) + 0.5 * self.model(x.flip(-1))
        return mean


class Average(nn.Module):
    """A weighted sum of the outputs of several networks; see `lipcert.average`."""

    def __init__(self, models: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        self.models, self.weights = nn.ModuleList(models), tuple(weights)

    def forward(self, x: Tensor) -> Tensor:
        """Run all networks."""
        total: Tensor = self.weights[0] * self.models[0](x)
        for weight, model in zip(self.weights[1:], list(self.models)[1:], strict=True):
            total = total + weight * model(x)
        return total

    def extra_repr(self) -> str:
        """The weights."""
        return f"weights=({', '.join(f'{weight:g}' for weight in self.weights)})"


def _share(name: str, value: float) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ArgumentError(f"{name}: expected a number between 0 and 1, got {value!r}")
    return float(value)
