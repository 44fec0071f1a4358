"""Polynomials in a skew-symmetric convolution on zero-padded maps: what SOC computes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.skew import SkewOperator
from lipcert.kernels.taps import kernel_from_taps
from lipcert.kernels.torus import torus_pays, torus_size
from lipcert.operators.linear import absolute_norm_upper_bound, add_bias, bias_norm, check_bias
from lipcert.operators.operator import Operator, RoundingError, Shape
from lipcert.proofs.modulus import polynomial_modulus_upper_bound
from lipcert.proofs.rounding import TINY, UNIT, gamma, product_up, sqrt_up, sum_up
from lipcert.proofs.spectral import matrix_norm_upper_bound, zero_padded_convolution_norm_upper_bound


@dataclass(frozen=True, eq=False, repr=False)
class SkewPolynomial(Operator):
    r"""y = p(A) x + b on zero-padded maps, A the convolution of a kernel that is skew by construction.

    The kernel K of A has :math:`K[o, i, t] = -K[i, o, -t]`, so that half of it says all: the upper triangle
    of the tap in the centre, and the taps behind it in raster order. Each has a factor of its own, so that
    the numbers that were trained can be stored in few bits; an entry of K is one rounded product.

    Guarantee: the bound is max |p(iy)| over |y| <= rho for a proved rho >= ||A||, because a polynomial of a
    skew operator is normal; channels of zeros in front and dropped channels behind never increase a norm.

    Args:
        centre: (c (c - 1) / 2,), the upper triangle of the centre tap, row by row.
        taps: ((k^2 - 1) / 2, c, c), the taps behind the centre.
        centre_factor: what `centre` is multiplied by.
        factor: what `taps` are multiplied by.
        coefficients: of p, from the constant term up; degree 1 or more.
        in_channels: channels of the input; those up to c count as zero.
        out_channels: how many of the c channels are kept.
        bias: (out_channels,) or None.
    """

    centre: Tensor
    taps: Tensor
    centre_factor: float
    factor: float
    coefficients: tuple[float, ...]
    in_channels: int
    out_channels: int
    bias: Tensor | None

    def __post_init__(self) -> None:
        if self.taps.dim() != 3 or self.taps.shape[1] != self.taps.shape[2]:
            raise ArgumentError(f"taps: expected (T, c, c), got shape {tuple(self.taps.shape)}")
        c, size = self.channels, self.kernel_size
        if size**2 != 2 * len(self.taps) + 1 or self.centre.shape != (c * (c - 1) // 2,):
            raise ArgumentError(
                f"centre, taps: expected {c * (c - 1) // 2} numbers and (k^2 - 1) / 2 taps, got shapes "
                f"{tuple(self.centre.shape)} and {tuple(self.taps.shape)}"
            )
        if not (0 < self.in_channels <= c and 0 < self.out_channels <= c):
            raise ArgumentError(
                f"in_channels, out_channels: expected 1 to {c}, got {self.in_channels} and "
                f"{self.out_channels}"
            )
        if len(self.coefficients) < 2:
            raise ArgumentError(
                f"coefficients: expected those of a polynomial of degree 1 or more, got {self.coefficients}"
            )
        check_bias(self.bias, self.out_channels)

    @property
    def channels(self) -> int:
        """c, on which A works."""
        return self.taps.shape[1]

    @property
    def kernel_size(self) -> int:
        """K."""
        return math.isqrt(2 * len(self.taps) + 1)

    def held_taps(self) -> Tensor:
        """The taps of A itself, (T + 1, c, c), centre first."""

        def build() -> Tensor:
            c = self.channels
            centre = self.taps.new_zeros(c, c)
            upper = torch.triu_indices(c, c, offset=1, device=self.taps.device)
            centre[tuple(upper)] = self.centre * self.centre_factor
            return torch.cat([(centre - centre.T)[None], self.taps * self.factor])

        return self._make("taps", build)

    def kernel(self) -> Tensor:
        """The full kernel of A, (c, c, k, k)."""
        return kernel_from_taps(self.held_taps())

    def apply(self, x: Tensor) -> Tensor:
        """p(A) x + b by Horner's rule."""
        return add_bias(self.linear(x), self.bias)

    def linear(self, x: Tensor) -> Tensor:
        """p(A) x."""
        return self._polynomial(x, self.coefficients, self.out_channels)

    def adjoint(self, y: Tensor) -> Tensor:
        """p(A)^T y = p(-A) y, from output maps to input maps; without the bias."""
        signed = tuple(c * (-1) ** j for j, c in enumerate(self.coefficients))
        return self._polynomial(y, signed, self.in_channels)

    def _polynomial(self, x: Tensor, coefficients: tuple[float, ...], keep: int) -> Tensor:
        size = tuple(x.shape[2:])
        x = x.to(self.taps.dtype)  # under autocast an operator in front may have made it bfloat16
        operator = self._make(size, lambda: SkewOperator(self.held_taps(), *size, fixed=True))
        return operator.series(x, coefficients, keep)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The map's own size."""
        if len(input_shape) != 3 or input_shape[0] != self.in_channels:
            raise self._refuse(f"maps of {self.in_channels} channels", input_shape)
        return (self.out_channels, *input_shape[1:])

    def operator_norm_bound(self, input_shape: Shape) -> float:
        """A proved rho >= ||A|| on maps of this size."""
        _, height, width = self.output_shape(input_shape)
        return self._make(
            ("norm", height, width),
            lambda: zero_padded_convolution_norm_upper_bound(self.kernel(), height, width),
        )

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Max |p(iy)| over |y| <= rho, a scalar problem that is solved exactly."""
        return polynomial_modulus_upper_bound(self.coefficients, self.operator_norm_bound(input_shape))

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """The larger error of the ways in which `SkewOperator` applies a polynomial, for the size of the
        batch decides between them.
        """
        _, height, width = self.output_shape(input_shape)
        norm, kernel = self.operator_norm_bound(input_shape), self.kernel()
        coefficients = [abs(c) for c in self.coefficients]
        spread = absolute_norm_upper_bound(kernel.flatten(2))
        channels, size = self.channels, self.kernel_size
        error = error_on_maps(coefficients, norm, spread, kernel[0].numel())
        if torus_pays(torch.float64, channels, size, height, width):
            waves = torus_size(size, height, width)
            circular = min(spread, circular_norm_upper_bound(kernel))
            error = max(error, error_on_a_torus(coefficients, norm, spread, circular, channels, size, waves))
        bias, reach = bias_norm(self.bias, height * width), _sizes(coefficients, norm)[0]
        relative = sum_up(error, product_up(gamma(2), sum_up(reach, error)))
        return RoundingError(relative, sum_up(product_up(gamma(2), bias), TINY))


def _sizes(coefficients: list[float], norm: float) -> list[float]:
    """||v_j|| / ||x|| at most, of Horner's terms v_d = c_d x, v_j = A v_{j+1} + c_j x."""
    sizes = [0.0]
    for coefficient in reversed(coefficients):
        sizes.append(sum_up(product_up(norm, sizes[-1]), coefficient))
    return sizes[:0:-1]


def error_on_maps(coefficients: list[float], norm: float, spread: float, terms: int) -> float:
    r"""Horner's rule, v_j = A v_{j+1} + c_j x: each step errs by gamma (|| |A| || ||v_{j+1}|| + |c_j| ||x||).

    Where c_d and c_{d-1} are folded into the kernel of the first step, that is two more roundings per entry.
    The error of step j passes through j more applications of A. What a step rounds is the computed v_{j+1},
    no larger than the exact one and its error. The factor 2 is room to spare.
    """
    step = product_up(2.0, gamma(terms + 8))
    sizes = [*_sizes(coefficients, norm), 0.0]
    error = 0.0
    for j in reversed(range(len(coefficients))):
        held = sum_up(sizes[j + 1], error)
        fresh = product_up(step, sum_up(product_up(spread, held), coefficients[j]))
        error = sum_up(product_up(norm, error), fresh)
    return error


def error_on_a_torus(
    coefficients: list[float],
    norm: float,
    spread: float,
    circular: float,
    channels: int,
    size: int,
    waves: int,
) -> float:
    r"""The same with maps held as D coefficients of an orthonormal basis F: v_j = P W v_{j+1} + c_j F x.

    Entries of F are at most sqrt(2 / D) and stored within 64 u / sqrt(D). So F is stored within 64 u sqrt(D)
    in norm, and a product with it adds gamma_D || |F| || with || |F| || <= sqrt(2 D). The same holds for the
    waves R of the padding, and P v = v - R (R^T v) errs by two such products and one more term of a sum.

    Both parts a, b of the spectrum W are sums over the taps with weights of at most 1, stored within 64 u
    each: in absolute value they are at most S, the sum of those of the taps, and off by gamma_{k^2 + 64} S.
    Of a pair, u' = a (u + v) + (b - a) v and v' = a (u + v) - (b + a) u, in absolute values (1, 3; 3, 1)
    times S, hence 4 ||S||, in sums of 2 c terms and four further roundings.

    Errors of the basis may lie outside of the range of P, where W is bounded by `circular` only; the next
    projection takes them back. As above, a step rounds what was computed: no larger than the exact v_{j+1}
    and its error. A factor 2 covers what the errors of c_j F x add to the last two terms.

    Args:
        coefficients: absolute values, from the constant term up.
        norm: bound on ||A||.
        spread: bound on ||S||, the norm of the sum of the absolute values of all taps, and so on || |A| ||.
        circular: bound on ||W||, the convolution of the whole torus.
        channels: c.
        size: k.
        waves: D.
    """
    root = sqrt_up(waves)
    transform = sum_up(product_up(64 * UNIT, root), product_up(gamma(waves), sqrt_up(2 * waves)))
    project = sum_up(product_up(2.0, transform, sum_up(1.0, transform)), gamma(waves + 8))
    multiply = product_up(8.0, spread, sum_up(gamma(size**2 + 64), gamma(2 * channels + 8)))
    sizes = _sizes(coefficients, norm)
    stray = error = product_up(2.0, sizes[-1], transform)
    for j in reversed(range(len(coefficients) - 1)):
        held = sum_up(sizes[j + 1], error)
        passed = sum_up(product_up(norm, error), product_up(circular, stray))
        product = product_up(multiply, held)
        size_here = sum_up(product_up(circular, held), product, coefficients[j])
        basis = sum_up(project if j else transform, gamma(8))
        stray = product_up(2.0, sum_up(product_up(basis, size_here), product_up(coefficients[j], transform)))
        error = sum_up(passed, product, stray)
    return error


def circular_norm_upper_bound(kernel: Tensor) -> float:
    """Bound on the norm of the convolution of a kernel (out, in, k, k) on a torus of any size.

    At a frequency it is R (e kron I), with R the (out, k^2 in) matrix of all taps and e their k^2 phases, a
    vector of length k.
    """
    taps = kernel.permute(0, 2, 3, 1).flatten(1)
    return product_up(float(kernel.shape[-1]), matrix_norm_upper_bound(taps))
