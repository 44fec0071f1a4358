"""Convolutions: zero-padded ones, and circular ones by their kernel or by one matrix per frequency."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError, check_positive
from lipcert.kernels.circular import (
    circular_conv2d,
    circular_conv_transpose2d,
    dense_kernel,
    spectral_conv2d,
)
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.operators.linear import add_bias, affine_error, bias_norm, check_bias
from lipcert.operators.operator import Operator, RoundingError, Shape
from lipcert.proofs.convolutions import convolution_norm_upper_bound
from lipcert.proofs.rounding import TINY, gamma, product_up, sqrt_up, sum_up
from lipcert.proofs.spectral import circular_convolution_norm_upper_bound, spectral_matrices_norm_upper_bound


@dataclass(frozen=True, eq=False, repr=False)
class Convolution(Operator):
    """A cross-correlation with zeros around the map, as `nn.Conv2d` computes it.

    Guarantee: the bound is that of the operator on the map at hand, zeros and stride included.

    Args:
        kernel: (out, in / groups, height, width).
        bias: (out,) or None.
        stride, padding, dilation: for rows and columns; as many rows of zeros above the map as below it.
        groups: channels are split into so many groups, each with its own part of the kernel.

    >>> operator = Convolution(torch.eye(2).view(2, 2, 1, 1), None)
    >>> operator.apply(torch.ones(1, 2, 3, 3)).sum().item(), operator.output_shape((2, 3, 3))
    (18.0, (2, 3, 3))
    """

    kernel: Tensor
    bias: Tensor | None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        shape = tuple(self.kernel.shape)
        if len(shape) != 4 or not self.kernel.numel() or self.groups < 1 or shape[0] % self.groups:
            raise ArgumentError(
                f"kernel: expected (out, in / groups, height, width) with {self.groups} groups, got {shape}"
            )
        if min(*self.stride, *self.dilation) < 1 or min(self.padding) < 0:
            raise ArgumentError(
                "stride, dilation, padding: expected positive numbers, and a padding of at least 0, got "
                f"{self.stride}, {self.dilation} and {self.padding}"
            )
        check_bias(self.bias, shape[0])

    def apply(self, x: Tensor) -> Tensor:
        """Convolve, and add the bias."""
        return F.conv2d(x, self.kernel, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out, rows, columns)."""
        out, per_group, *sides = self.kernel.shape
        if len(input_shape) != 3 or input_shape[0] != per_group * self.groups:
            raise self._refuse(f"maps of {per_group * self.groups} channels", input_shape)
        steps = zip(input_shape[1:], sides, self.stride, self.padding, self.dilation, strict=True)
        made = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps)
        if min(made) < 1:
            raise self._refuse(f"maps that a kernel of {tuple(sides)} fits into", input_shape)
        return (out, *made)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Norm on maps of this size, rounded up."""
        self.output_shape(input_shape)
        return self._make(tuple(input_shape), lambda: convolution_norm_upper_bound(
            self.kernel, input_shape[1:], self.stride, self.padding, self.dilation, self.groups
        ))  # fmt: skip

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Inner products over channels and taps."""
        _, height, width = self.output_shape(input_shape)
        taps = self.kernel.flatten(2).view(self.groups, -1, *self.kernel[0].flatten(1).shape)
        terms, norm = self.kernel[0].numel(), self.lipschitz_bound(input_shape)
        return affine_error(taps, self.bias, terms, height * width, norm)


@dataclass(frozen=True, eq=False, repr=False)
class CircularConvolution(Operator):
    """A cross-correlation with circular padding, on maps of any size that the stride divides.

    Args:
        kernel: (out, in / groups, k, k), k odd.
        bias: (out,) or None.
        stride: pixels from one output to the next.
        dilation: pixels from one tap to the next.
        groups: channels are split into so many groups, each with its own part of the kernel.

    >>> operator = CircularConvolution(torch.eye(2).view(2, 2, 1, 1), None)
    >>> operator.apply(torch.ones(1, 2, 3, 3)).sum().item(), operator.output_shape((2, 3, 3))
    (18.0, (2, 3, 3))
    """

    kernel: Tensor
    bias: Tensor | None
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        shape = tuple(self.kernel.shape)
        if len(shape) != 4 or shape[2] != shape[3] or not shape[3] % 2:
            raise ArgumentError(f"kernel: expected (out, in, k, k) with k odd, got shape {shape}")
        check_positive(stride=self.stride, dilation=self.dilation, groups=self.groups)
        if shape[0] % self.groups:
            raise ArgumentError(f"groups: expected a divisor of {shape[0]} channels, got {self.groups}")
        check_bias(self.bias, shape[0])

    def apply(self, x: Tensor) -> Tensor:
        """Convolve, and add the bias."""
        y = circular_conv2d(x, self.kernel, stride=self.stride, dilation=self.dilation, groups=self.groups)
        return add_bias(y, self.bias)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The map's own size, divided by the stride."""
        channels = self.groups * self.kernel.shape[1]
        if len(input_shape) != 3 or input_shape[0] != channels:
            raise self._refuse(f"maps of {channels} channels", input_shape)
        _, height, width = input_shape
        if height % self.stride or width % self.stride:
            raise self._refuse(f"a height and a width that {self.stride} divides", input_shape)
        return (self.kernel.shape[0], height // self.stride, width // self.stride)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Largest norm over the frequencies of the map and the groups, rounded up."""
        _, height, width = self.output_shape(input_shape)
        return self._make((height, width), lambda: self._norm(height, width))

    def _norm(self, height: int, width: int) -> float:
        kernels = dense_kernel(self.kernel.detach(), self.stride, self.dilation).chunk(self.groups)
        return max(circular_convolution_norm_upper_bound(kernel, height, width) for kernel in kernels)

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Inner products over channels and taps."""
        _, height, width = self.output_shape(input_shape)
        norm, terms = self.lipschitz_bound(input_shape), self.kernel[0].numel()
        # The columns of all groups are added up, which only makes the bound larger.
        return affine_error(self.kernel.flatten(2), self.bias, terms, height * width, norm)


@dataclass(frozen=True, eq=False, repr=False)
class TransposedConvolution(Operator):
    """The adjoint of a `CircularConvolution`: maps grow by the stride.

    Guarantee: an operator and its adjoint have one norm, so the bound is that of the convolution.

    Args:
        kernel: (in, out / groups, k, k), k odd, as `nn.ConvTranspose2d` holds it.
        bias: (out,) or None.
        stride: pixels of the output from one pixel of the input to the next.
        dilation: pixels from one tap to the next.
        groups: channels are split into so many groups, each with its own part of the kernel.
    """

    kernel: Tensor
    bias: Tensor | None
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        check_bias(self.bias, self.groups * self.adjoint.kernel.shape[1])

    @property
    def adjoint(self) -> CircularConvolution:
        """The convolution itself, without a bias."""
        return self._make(
            "adjoint",
            lambda: CircularConvolution(self.kernel, None, self.stride, self.dilation, self.groups),
        )

    def apply(self, x: Tensor) -> Tensor:
        """Spread every pixel, and add the bias."""
        y = circular_conv_transpose2d(
            x, self.kernel, stride=self.stride, dilation=self.dilation, groups=self.groups
        )
        return add_bias(y, self.bias)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The map's own size times the stride."""
        channels, made = self.kernel.shape[:2]
        if len(input_shape) != 3 or input_shape[0] != channels:
            raise self._refuse(f"maps of {channels} channels", input_shape)
        return (made * self.groups, self.stride * input_shape[1], self.stride * input_shape[2])

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """That of the convolution back to the input."""
        return self.adjoint.lipschitz_bound(self.output_shape(input_shape))

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Inner products over channels and at most all taps; absolute values have one norm both ways, too."""
        _, height, width = self.output_shape(input_shape)
        norm, terms = self.lipschitz_bound(input_shape), self.kernel[:, 0].numel() // self.groups
        return affine_error(self.kernel.flatten(2), self.bias, terms, height * width, norm)


@dataclass(frozen=True, eq=False, repr=False)
class SpectralConvolution(Operator):
    """A circular convolution of one map size, held as one matrix per spatial frequency.

    Guarantee: the bound is proved for the stored matrices. Frequencies on an axis appear twice, as conjugates
    up to rounding; the inverse transform averages the two, which has no larger norm.

    Args:
        spectrum: (height * (width // 2 + 1), out, in, 2), real and imaginary parts, frequencies in the order
            of `torch.fft.rfft2`; without the last axis on maps of up to 2x2, where all of them are real.
        bias: (out,) or None.
        map_size: (height, width).
    """

    spectrum: Tensor
    bias: Tensor | None
    map_size: tuple[int, int]

    def __post_init__(self) -> None:
        shape, (height, width) = tuple(self.spectrum.shape), self.map_size
        parts = () if max(height, width) <= 2 and len(shape) == 3 else (2,)
        if len(shape) < 3 or shape[0] != height * (width // 2 + 1) or shape[3:] != parts:
            raise ArgumentError(
                f"spectrum: expected ({height * (width // 2 + 1)}, out, in, 2) for maps of {height}x{width}, "
                f"got shape {shape}"
            )
        check_bias(self.bias, shape[1])

    def matrices(self) -> Tensor:
        """The stack (frequencies, out, in), complex or real."""
        spectrum = at_least_single(self.spectrum)
        return torch.view_as_complex(spectrum) if spectrum.dim() == 4 else spectrum

    def apply(self, x: Tensor) -> Tensor:
        """Product with one matrix per Fourier coefficient."""
        if x.shape[0] == 0:  # of which there is no Fourier transform
            return x.new_empty(0, self.spectrum.shape[1], *self.map_size)
        with without_autocast(x):  # Fourier transforms have no half precision
            y = spectral_conv2d(at_least_single(x), self.matrices())
        return add_bias(y.to(x.dtype), self.bias)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out, height, width)."""
        expected = (self.spectrum.shape[2], *self.map_size)
        if tuple(input_shape) != expected:
            raise self._refuse(f"maps of shape {expected}, which it was frozen for", input_shape)
        return (self.spectrum.shape[1], *self.map_size)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Largest norm of the matrices, rounded up."""
        self.output_shape(input_shape)
        return self._make("norm", lambda: spectral_matrices_norm_upper_bound(self.matrices()))

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        r"""A Fourier transform, one complex matrix product per frequency, and a transform back.

        Transforms are orthogonal up to scale, so relative l2 errors add; the half spectrum of a real map
        holds at least half of its energy, hence the factor 2 on the products.
        """
        _, height, width = self.output_shape(input_shape)
        norm, size = self.lipschitz_bound(input_shape), self.matrices().abs().double()
        rows, columns = float(size.sum(dim=2).max()), float(size.sum(dim=1).max())
        # The largest row and column may be of different frequencies, which only makes the bound larger.
        spread = product_up(sqrt_up(product_up(rows, columns)), 1 + 2.0**-20)
        product = product_up(2.0, sqrt_up(2.0), gamma(2 * self.spectrum.shape[2] + 8), spread)
        transform = product_up(2.0, fourier_error(height, width), sum_up(norm, product))
        linear = sum_up(product, transform, product_up(2.0, fourier_error(height, width), norm))
        relative = sum_up(linear, product_up(gamma(2), sum_up(norm, linear)))
        bias = bias_norm(self.bias, height * width)
        return RoundingError(relative, sum_up(product_up(gamma(2), bias), TINY))


def fourier_error(height: int, width: int) -> float:
    r"""Relative l2 error of a two-dimensional fast Fourier transform in float64.

    A stage of prime length p is an inner product of p terms, off by sqrt(2p) gamma_2p relative to its
    result, and a product with a computed phase, off by 4 u. A factor of 4 leaves room for other arrangements
    of the same sums.
    """
    error = 0.0
    for length in (height, width):
        for prime in _prime_factors(length):
            error = sum_up(error, product_up(4.0, sqrt_up(2.0 * prime), gamma(2 * prime + 8)))
    return error


def _prime_factors(n: int) -> list[int]:
    factors, p = [], 2
    while p <= math.isqrt(n):
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return factors + [n] * (n > 1)
