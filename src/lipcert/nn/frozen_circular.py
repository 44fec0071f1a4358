"""Inference forms of the orthogonal layers: buffers and plain tensor operations, no orthogonalisation."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.functional.channels import space_to_depth
from lipcert.functional.circular import circular_conv2d, spectral_conv2d
from lipcert.functional.precision import at_least_single, without_autocast
from lipcert.functional.spectral import (
    circular_convolution_norm_upper_bound,
    matrix_norm_upper_bound,
    spectral_matrices_norm_upper_bound,
)
from lipcert.nn.lipschitz import LipschitzModule, Shape


class FrozenConv2d(LipschitzModule):
    """Stride, bias and checks that the frozen convolutions share.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        bias: (out_channels,) or None; copied.
        stride: 1, or 2 for a space-to-depth in front.
    """

    bias: Tensor | None

    def __init__(self, in_channels: int, out_channels: int, bias: Tensor | None, stride: int) -> None:
        super().__init__()
        if stride not in (1, 2):
            raise ArgumentError(f"stride: expected 1 or 2, got {stride!r}")
        self.in_channels, self.out_channels, self.stride = in_channels, out_channels, stride
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @abstractmethod
    def transform(self, x: Tensor) -> Tensor:
        """Apply the linear map to (N, stride^2 * in_channels, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to a batch of maps (N, in_channels, H, W)."""
        if x.dim() != 4:
            name = type(self).__name__
            raise ArgumentError(f"{name}: expected a batch of maps (N, C, H, W), got shape {tuple(x.shape)}")
        self.output_shape(tuple(x.shape[1:]))
        y = self.linear(x)
        if self.bias is None:
            return y
        bias = self.bias.to(y.dtype).view(1, -1, 1, 1)
        return y + bias if y.requires_grad else y.add_(bias)

    def linear(self, x: Tensor) -> Tensor:
        """The layer without its bias; the input is not checked, the output is a new tensor."""
        return self.transform(space_to_depth(x) if self.stride == 2 else x)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, H / stride, W / stride); raises if the layer cannot take `input_shape`."""
        good = len(input_shape) == 3 and input_shape[0] == self.in_channels
        if not good or input_shape[1] % self.stride or input_shape[2] % self.stride:
            raise ArgumentError(
                f"{type(self).__name__}: expected maps of {self.in_channels} channels and a size divisible "
                f"by {self.stride}, got shape {tuple(input_shape)}"
            )
        return (self.out_channels, input_shape[1] // self.stride, input_shape[2] // self.stride)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.in_channels}, {self.out_channels}, stride={self.stride}"


class CircularConv2d(FrozenConv2d):
    """A convolution with circular padding and a fixed kernel, on maps of any size.

    Guarantee: `lipschitz_bound` is proved for the stored kernel on the torus of the given map.

    Args:
        kernel: (out, stride^2 * in, k, k), k odd; copied.
        bias: (out,) or None; copied.
        stride: 1, or 2 for a space-to-depth in front.

    >>> layer = CircularConv2d(torch.eye(2).view(2, 2, 1, 1), None)
    >>> layer(torch.ones(1, 2, 3, 3)).sum().item(), layer.output_shape((2, 3, 3))
    (18.0, (2, 3, 3))
    """

    kernel: Tensor

    def __init__(self, kernel: Tensor, bias: Tensor | None, *, stride: int = 1) -> None:
        if kernel.dim() != 4 or kernel.shape[2] != kernel.shape[3] or not kernel.shape[3] % 2:
            raise ArgumentError(
                f"kernel: expected (out, in, k, k) with k odd, got shape {tuple(kernel.shape)}"
            )
        super().__init__(kernel.shape[1] // stride**2, kernel.shape[0], bias, stride)
        self.register_buffer("kernel", kernel.detach().clone(memory_format=torch.contiguous_format))

    def transform(self, x: Tensor) -> Tensor:
        """Circular cross-correlation."""
        return circular_conv2d(x, self.kernel)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Largest norm over the frequencies of the map, rounded up."""
        _, height, width = self.output_shape(input_shape)
        return circular_convolution_norm_upper_bound(self.kernel, height, width)

    def extra_repr(self) -> str:
        """The sizes, in the form of `nn.Conv2d`."""
        return f"{super().extra_repr()}, kernel_size={self.kernel.shape[-1]}"


class SpectralConv2d(FrozenConv2d):
    """A circular convolution of one map size, held as one matrix per spatial frequency.

    Guarantee: `lipschitz_bound` is proved for the stored matrices. Frequencies on an axis appear twice, as
    conjugates up to rounding; the inverse transform averages the two, which has no larger norm.

    Args:
        spectrum: (height * (width // 2 + 1), out, stride^2 * in), complex or real, frequencies in the order
            of `torch.fft.rfft2`; copied. Held as real numbers (with a last axis of 2 if complex), so that
            `.to(dtype)` and safetensors work as usual.
        bias: (out,) or None; copied.
        map_size: (height, width) of the map after the stride.
        stride: 1, or 2 for a space-to-depth in front.
    """

    spectrum: Tensor

    def __init__(
        self, spectrum: Tensor, bias: Tensor | None, *, map_size: tuple[int, int], stride: int = 1
    ) -> None:
        super().__init__(spectrum.shape[2] // stride**2, spectrum.shape[1], bias, stride)
        self.map_size = map_size
        real = torch.view_as_real(spectrum.resolve_conj()) if spectrum.is_complex() else spectrum
        self.register_buffer("spectrum", real.detach().clone(memory_format=torch.contiguous_format))

    def matrices(self) -> Tensor:
        """The stack (frequencies, out, stride^2 * in), complex or real."""
        return torch.view_as_complex(self.spectrum) if self.spectrum.dim() == 4 else self.spectrum

    def transform(self, x: Tensor) -> Tensor:
        """Product with one matrix per Fourier coefficient, never below single precision."""
        with without_autocast(x):
            return spectral_conv2d(at_least_single(x), self.matrices()).to(x.dtype)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_channels, height, width); raises for maps of another size."""
        shape = super().output_shape(input_shape)
        if shape[1:] != self.map_size:
            height, width = (side * self.stride for side in self.map_size)
            raise ArgumentError(
                f"SpectralConv2d: frozen for maps of {height}x{width}, got "
                f"{input_shape[1]}x{input_shape[2]}; freeze the layer for that size"
            )
        return shape

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Largest norm of the matrices, rounded up."""
        self.output_shape(input_shape)
        return spectral_matrices_norm_upper_bound(self.matrices())

    def extra_repr(self) -> str:
        """The sizes and the map."""
        return f"{super().extra_repr()}, map_size={self.map_size}"


class FrozenLinear(LipschitzModule):
    """y = W x + b with fixed W and b.

    Guarantee: `lipschitz_bound` is proved for the stored matrix.

    Args:
        weight: (out_features, in_features); copied.
        bias: (out_features,) or None; copied.

    >>> FrozenLinear(torch.tensor([[0.0, 2.0]]), None)(torch.tensor([[1.0, 3.0]]))
    tensor([[6.]])
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight.detach().clone(memory_format=torch.contiguous_format))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors (..., in_features) to (..., out_features)."""
        self.output_shape(tuple(x.shape[-1:]))
        return F.linear(x, self.weight, self.bias)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_features,); raises unless the input is a vector of in_features."""
        if input_shape != (self.in_features,):
            raise ArgumentError(
                f"FrozenLinear: expected vectors of {self.in_features} features, "
                f"got shape {tuple(input_shape)}"
            )
        return (self.out_features,)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Norm of the matrix, rounded up."""
        self.output_shape(input_shape)
        return matrix_norm_upper_bound(self.weight)

    def extra_repr(self) -> str:
        """The sizes, in the form of `nn.Linear`."""
        return f"{self.in_features}, {self.out_features}"
