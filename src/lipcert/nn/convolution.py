"""Arguments, checks and bookkeeping that all convolutions share."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from lipcert.errors import ArgumentError, check_positive
from lipcert.kernels.channels import space_to_depth
from lipcert.kernels.eager import eager
from lipcert.kernels.precision import without_autocast
from lipcert.nn.bias import copied_bias, new_bias
from lipcert.nn.cache import WeightCache
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.operator import Operator, Shape
from lipcert.operators.rearrange import SpaceToDepth
from lipcert.operators.tree import Sequence

Device = torch.device | str | None
Value = TypeVar("Value")


class LipschitzConv2d(LipschitzModule):
    """A 1-Lipschitz layer in the place of `nn.Conv2d`, padded to keep the size.

    A subclass implements `make_weights`, `transform` on stride-1 maps and `freeze_transform` (the same map as
    an operator); it has an `__init__` only if it takes further arguments. Stride 2 is a 2x2 space-to-depth
    (an isometry) in front, so the map sees 4 * in_channels channels of half the size.

    Attributes:
        kernel_sizes: the kernel sizes that the layer takes.
        matrices: parameter -> layout (see `lipcert.optim.layouts`) of the parameters that Muon may train:
            those whose length the layer does not see.
        linear: whether the layer is an affine map; one with an activation of its own is not.
        head_method: how the orthogonal head of a network of such layers is made (see `OrthogonalLinear`).
        map_channels: channels that the map sees, behind the space-to-depth.
        channels: the larger one of map_channels and out_channels.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: side of the square kernel, odd.
        stride: 1 or 2; stride 2 needs a map of even height and width.
        bias: add a learnable bias per output channel, uniform in +-1/sqrt(out_channels) at first.
    """

    kernel_sizes: ClassVar[tuple[int, ...]] = (1, 3)
    matrices: ClassVar[dict[str, str]] = {}
    linear: ClassVar[bool] = True
    head_method: ClassVar[str] = "soc"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        device: Device = None,
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
        self.map_channels = 4 * in_channels if self.rearranges else in_channels
        self.channels = max(self.map_channels, out_channels)
        self.cache = WeightCache()
        count = self.bias_size
        self.bias = new_bias(count, count**-0.5, device, dtype) if bias else None
        self.make_weights(device, dtype)

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        """Set the parameters beside the bias; channels, kernel size and stride are known here."""

    @property
    def bias_size(self) -> int:
        """Numbers in the bias: one per output channel, unless the subclass adds it elsewhere."""
        return self.out_channels

    @property
    def rearranges(self) -> bool:
        """Whether a space-to-depth comes in front: at stride 2, unless the subclass strides by itself."""
        return self.stride == 2

    @abstractmethod
    def transform(self, x: Tensor) -> Tensor:
        """Apply the map to (N, map_channels, H, W); returns (N, out_channels, H, W)."""

    @abstractmethod
    def freeze_transform(self, height: int, width: int) -> Operator:
        """`transform` and the bias as an operator, on maps (map_channels, height, width)."""

    def freeze(self, input_shape: Shape) -> Operator:
        """The operator of the subclass, behind the space-to-depth if there is one."""
        self.output_shape(input_shape)
        height, width = (side // 2 if self.rearranges else side for side in input_shape[1:])
        like = next(iter((*self.parameters(), *self.buffers())), torch.empty(0, device="cpu"))
        with torch.inference_mode(False), torch.no_grad(), without_autocast(like):
            operator = self.freeze_transform(height, width)
        return Sequence.of(SpaceToDepth(), operator) if self.rearranges else operator

    def frozen_bias(self) -> Tensor | None:
        """A copy of the bias."""
        return copied_bias(self.bias)

    @eager
    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to a batch of maps (N, in_channels, H, W)."""
        if x.dim() != 4:
            raise ArgumentError(
                f"{type(self).__name__}: expected a batch of maps (N, C, H, W), got shape {tuple(x.shape)}"
            )
        self.output_shape(tuple(x.shape[1:]))
        if not x.is_floating_point():
            raise ArgumentError(f"{type(self).__name__}: expected floating point input, got {x.dtype}")
        return self.add_bias(self.transform(space_to_depth(x) if self.rearranges else x))

    def add_bias(self, y: Tensor) -> Tensor:
        """What `transform` made, plus the bias."""
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
        trainable = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        return not self.training and not trainable

    def derived(self, make: Callable[[], Value], key: object = None) -> Value:
        """What `make` computes from the weights; cached, one value of one key, while they are constant.

        Weights are all parameters and buffers but the bias.
        """
        if not self.weights_are_constant():
            return make()
        tensors = (*self.named_parameters(), *self.named_buffers())
        return self.cache.get(tuple(t for name, t in tensors if name != "bias"), make, key)

    def extra_repr(self) -> str:
        """The arguments, in the order and form of `nn.Conv2d`."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        return text if self.bias is not None else f"{text}, bias=False"


class OrthogonalConv2d(LipschitzConv2d):
    """A convolution whose Jacobian has orthonormal columns, or rows where it has fewer outputs than inputs.

    A subclass implements `orthogonality_error` beside what `LipschitzConv2d` asks for.
    """

    @property
    @abstractmethod
    def orthogonality_error(self) -> float:
        """Largest possible |s - 1| over the singular values s of the layer in evaluation mode."""
