"""Circular convolutions, by their kernel or by one matrix per frequency."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.circular import circular_conv2d, spectral_conv2d
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.operators.linear import add_bias, affine_error, bias_norm, check_bias
from lipcert.operators.operator import Operator, RoundingError, Shape
from lipcert.proofs.rounding import TINY, gamma, product_up, sqrt_up, sum_up
from lipcert.proofs.spectral import circular_convolution_norm_upper_bound, spectral_matrices_norm_upper_bound


@dataclass(frozen=True, eq=False, repr=False)
class CircularConvolution(Operator):
    """A cross-correlation with circular padding, on maps of any size.

    Args:
        kernel: (out, in, k, k), k odd.
        bias: (out,) or None.

    >>> operator = CircularConvolution(torch.eye(2).view(2, 2, 1, 1), None)
    >>> operator.apply(torch.ones(1, 2, 3, 3)).sum().item(), operator.output_shape((2, 3, 3))
    (18.0, (2, 3, 3))
    """

    kernel: Tensor
    bias: Tensor | None

    def __post_init__(self) -> None:
        shape = tuple(self.kernel.shape)
        if len(shape) != 4 or shape[2] != shape[3] or not shape[3] % 2:
            raise ArgumentError(f"kernel: expected (out, in, k, k) with k odd, got shape {shape}")
        check_bias(self.bias, shape[0])

    def apply(self, x: Tensor) -> Tensor:
        """Convolve, and add the bias."""
        return add_bias(circular_conv2d(x, self.kernel), self.bias)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The map's own size."""
        if len(input_shape) != 3 or input_shape[0] != self.kernel.shape[1]:
            raise self._refuse(f"maps of {self.kernel.shape[1]} channels", input_shape)
        return (self.kernel.shape[0], *input_shape[1:])

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Largest norm over the frequencies of the map, rounded up."""
        _, height, width = self.output_shape(input_shape)
        return self._make(
            (height, width), lambda: circular_convolution_norm_upper_bound(self.kernel, height, width)
        )

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Inner products over channels and taps."""
        _, height, width = self.output_shape(input_shape)
        norm, terms = self.lipschitz_bound(input_shape), self.kernel[0].numel()
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
        if not len(x):  # of which there is no Fourier transform
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
