"""Arguments, checks and bookkeeping that the orthogonal convolutions share."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive
from lipcert.kernels.channels import space_to_depth
from lipcert.nn.cache import WeightCache
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.operator import Operator, Shape
from lipcert.operators.rearrange import SpaceToDepth
from lipcert.operators.tree import Sequence


class OrthogonalConv2d(LipschitzModule):
    """An orthogonal convolution in the place of `nn.Conv2d`, padded to keep the size.

    A subclass implements `transform` on stride-1 maps, `freeze_transform` (the same map as an operator) and
    `orthogonality_error`. Stride 2 is a 2x2 space-to-depth (an isometry) in front, so the map sees 4 *
    in_channels channels of half the size.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output. With more outputs than (after stride) inputs the Jacobian has
            orthonormal columns, with fewer it has orthonormal rows.
        kernel_size: side of the square kernel, odd.
        stride: 1 or 2; stride 2 needs a map of even height and width.
        bias: add a learnable bias per output channel, uniform in +-1/sqrt(out_channels) at first.
    """

    kernel_sizes: tuple[int, ...] = (1, 3)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels)
        if kernel_size not in self.kernel_sizes:
            sizes = ", ".join(map(str, self.kernel_sizes))
            raise ArgumentError(f"kernel_size: {type(self).__name__} takes {sizes}, got {kernel_size!r}")
        if stride not in (1, 2):
            raise ArgumentError(f"stride: expected 1 or 2, got {stride!r}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = kernel_size, stride
        self.map_channels = stride**2 * in_channels
        self.cache = WeightCache()
        self.bias: nn.Parameter | None = None
        if bias:
            limit = out_channels**-0.5
            self.bias = nn.Parameter(
                torch.empty(out_channels, device=device, dtype=dtype).uniform_(-limit, limit)
            )

    @property
    @abstractmethod
    def orthogonality_error(self) -> float:
        """Largest possible |s - 1| over the singular values s of the layer in evaluation mode."""

    @abstractmethod
    def transform(self, x: Tensor) -> Tensor:
        """Apply the orthogonal map to (N, map_channels, H, W); returns (N, out_channels, H, W)."""

    @abstractmethod
    def freeze_transform(self, height: int, width: int) -> Operator:
        """`transform` and the bias as an operator, on maps (map_channels, height, width)."""

    def freeze(self, input_shape: Shape) -> Operator:
        """The operator of the subclass, behind a space-to-depth if the stride is 2."""
        _, height, width = self.output_shape(input_shape)
        with torch.inference_mode(False), torch.no_grad():
            operator = self.freeze_transform(height, width)
        return Sequence.of(SpaceToDepth(), operator) if self.stride == 2 else operator

    def frozen_bias(self) -> Tensor | None:
        """A copy of the bias."""
        return None if self.bias is None else self.bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to a batch of maps (N, in_channels, H, W)."""
        if x.dim() != 4:
            raise ArgumentError(
                f"{type(self).__name__}: expected a batch of maps (N, C, H, W), got shape {tuple(x.shape)}"
            )
        self.output_shape(tuple(x.shape[1:]))
        if not x.is_floating_point():
            raise ArgumentError(f"{type(self).__name__}: expected floating point input, got {x.dtype}")
        y = self.transform(space_to_depth(x) if self.stride == 2 else x)
        return y if self.bias is None else y + self.bias.to(y.dtype).view(1, -1, 1, 1)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, H / stride, W / stride); raises if the layer cannot take `input_shape`."""
        if len(input_shape) != 3 or input_shape[0] != self.in_channels:
            raise ArgumentError(
                f"{type(self).__name__}: expected maps of {self.in_channels} channels, "
                f"got shape {tuple(input_shape)}"
            )
        height, width = input_shape[1:]
        if self.stride == 2 and (height % 2 or width % 2):
            raise ArgumentError(
                f"{type(self).__name__}: stride 2 needs a map of even height and width, got "
                f"{height}x{width}; pad or crop it, or use stride 1"
            )
        return (self.out_channels, height // self.stride, width // self.stride)

    def weights_are_constant(self) -> bool:
        """Whether a value computed from the weights may be remembered: evaluation, and no gradient wanted."""
        trainable = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters(recurse=False))
        return not self.training and not trainable

    def extra_repr(self) -> str:
        """The arguments, in the order and form of `nn.Conv2d`."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        return text if self.bias is not None else f"{text}, bias=False"
