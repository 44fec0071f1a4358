r"""How far the float64 forward pass of a network can be from its exact function, for any input in a ball.

Each layer k owns constants with :math:`\|\hat f_k(z) - f_k(z)\| \le \kappa_k \|z\| + \tau_k`, by counting
roundings (`forward_error`). If :math:`\hat z_k` is the computed and :math:`z_k` the exact input of layer k,
then

.. math:: E_{k+1} = L_k E_k + \kappa_k \|\hat z_k\| + \tau_k, \qquad \|\hat z_k - z_k\| \le E_k.

For x' within r of an image x whose computed activations have the norms n_k, the computed activations of x'
have norm at most n_k + 2 E_k + r L_1 ... L_{k-1}: so one forward pass bounds the rounding of all inputs in
the ball. A large bias that cancels later makes n_k large, and with it the bound.
"""

import math
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from lipcert.errors import NotProvedError
from lipcert.functional.rounding import (
    TINY,
    UNIT,
    frobenius_upper_bound,
    gamma,
    product_up,
    sqrt_up,
    sum_up,
)
from lipcert.functional.spectral import matrix_norm_upper_bound
from lipcert.functional.torus import torus_pays, torus_size
from lipcert.nn.activations import (
    GroupSort,
    Householder,
    HouseholderChain,
    HouseholderND,
    HouseholderOrder,
    MaxMin,
)
from lipcert.nn.frozen_circular import CircularConv2d, FrozenLinear, SpectralConv2d
from lipcert.nn.frozen_skew import FrozenMatrix, FrozenSeries
from lipcert.nn.heads import ConstantHead
from lipcert.nn.lipschitz import LipschitzModule, Shape, replaces_forward_without
from lipcert.nn.normalize import Normalize
from lipcert.nn.shape import Flatten


@dataclass(frozen=True)
class ForwardError:
    """The computed output is within relative * ||z|| + absolute of the exact one, in l2."""

    relative: float
    absolute: float


EXACT = ForwardError(0.0, 0.0)


def forward_error(layer: LipschitzModule, input_shape: Shape, norm: float) -> ForwardError:
    """Rounding error of a frozen layer in float64.

    A layer of your own states it by its method `rounding_error`.

    Args:
        layer: a layer with buffers only.
        input_shape: shape of one sample.
        norm: proved Lipschitz constant; for a `FrozenSeries`, proved norm of the skew operator.

    Raises:
        NotProvedError: nobody has analysed the rounding of this layer.
    """
    # Whoever decides what is computed has to speak of its rounding: what it inherits is of another forward.
    if replaces_forward_without(layer, "rounding_error"):
        LipschitzModule.rounding_error(layer, input_shape)  # raises
    if type(layer).rounding_error is LipschitzModule.rounding_error:
        return _analysed(layer, input_shape, norm)
    relative, absolute = layer.rounding_error(input_shape)
    if not (0 <= relative < math.inf and 0 <= absolute < math.inf):
        raise NotProvedError(
            f"{type(layer).__name__} has no finite rounding error, got {(relative, absolute)}"
        )
    return ForwardError(float(relative), float(absolute))


@singledispatch
def _analysed(layer: LipschitzModule, input_shape: Shape, norm: float) -> ForwardError:
    return ForwardError(*layer.rounding_error(input_shape))  # which says that there is none


@_analysed.register(Flatten)
@_analysed.register(MaxMin)
@_analysed.register(GroupSort)
def _moves_only(layer: LipschitzModule, input_shape: Shape, norm: float) -> ForwardError:
    return EXACT


@_analysed.register
def _normalize(layer: Normalize, input_shape: Shape, norm: float) -> ForwardError:
    """Two roundings per pixel, of a result of norm at most L ||z|| + ||mean / std||."""
    channels = (layer.mean.double() / layer.std.double()).flatten().unsqueeze(0)
    offset = product_up(frobenius_upper_bound(channels), 1 + 8 * UNIT, sqrt_up(math.prod(input_shape[1:])))
    return ForwardError(product_up(gamma(3), norm), sum_up(product_up(gamma(3), offset), TINY))


# Activations: the constants are those of docs/layers/activations.md with room to spare.


@_analysed.register
def _householder(layer: Householder, input_shape: Shape, norm: float) -> ForwardError:
    return _per_norm(_largest(layer.theta) + 64)


@_analysed.register
def _householder_order(layer: HouseholderOrder, input_shape: Shape, norm: float) -> ForwardError:
    return _per_norm(4 * _largest(layer.theta) + 80 * layer.order + 400)


@_analysed.register
def _householder_chain(layer: HouseholderChain, input_shape: Shape, norm: float) -> ForwardError:
    return _per_norm((_largest(layer.theta) + 64) * (layer.length + 1))


@_analysed.register
def _householder_nd(layer: HouseholderND, input_shape: Shape, norm: float) -> ForwardError:
    return _per_norm((8 * layer.group_size + 64) * (layer.length + 1))


def _per_norm(units: float) -> ForwardError:
    return ForwardError(product_up(units, UNIT, 1 + 2.0**-20), TINY)


def _largest(values: Tensor) -> float:
    return float(values.double().abs().max()) if values.numel() else 0.0


# Linear layers: an inner product of n terms is off by gamma_n |w| |z|, whatever the order of summation.


@_analysed.register
def _frozen_linear(layer: FrozenLinear, input_shape: Shape, norm: float) -> ForwardError:
    return _affine(layer.weight.unsqueeze(-1), layer.bias, layer.weight.shape[1], 1, norm)


@_analysed.register
def _frozen_matrix(layer: FrozenMatrix, input_shape: Shape, norm: float) -> ForwardError:
    return _affine(layer.matrix.unsqueeze(-1), layer.bias, layer.matrix.shape[1], 1, norm)


@_analysed.register
def _circular(layer: CircularConv2d, input_shape: Shape, norm: float) -> ForwardError:
    _, height, width = layer.output_shape(input_shape)
    return _affine(layer.kernel.flatten(2), layer.bias, layer.kernel[0].numel(), height * width, norm)


@_analysed.register
def _series(layer: FrozenSeries, input_shape: Shape, norm: float) -> ForwardError:
    """The larger error of the ways in which `SkewOperator` applies a polynomial, for the size of the batch
    decides between them.
    """
    _, height, width = layer.output_shape(input_shape)
    coefficients = [abs(c) for c in layer.coefficients]
    spread = absolute_norm_upper_bound(layer.kernel.flatten(2))
    channels, size = layer.kernel.shape[0], layer.kernel.shape[-1]
    error = _error_on_maps(coefficients, norm, spread, layer.kernel[0].numel())
    if torus_pays(torch.float64, channels, size, height, width):
        waves = torus_size(size, height, width)
        circular = min(spread, circular_norm_upper_bound(layer.kernel))
        error = max(error, _error_on_a_torus(coefficients, norm, spread, circular, channels, size, waves))
    bias, reach = _bias_norm(layer.bias, height * width), _sizes(coefficients, norm)[0]
    relative = sum_up(error, product_up(gamma(2), sum_up(reach, error)))
    return ForwardError(relative, sum_up(product_up(gamma(2), bias), TINY))


def _sizes(coefficients: list[float], norm: float) -> list[float]:
    """||v_j|| / ||x|| at most, of Horner's terms v_d = c_d x, v_j = A v_{j+1} + c_j x."""
    sizes = [0.0]
    for coefficient in reversed(coefficients):
        sizes.append(sum_up(product_up(norm, sizes[-1]), coefficient))
    return sizes[:0:-1]


def _error_on_maps(coefficients: list[float], norm: float, spread: float, terms: int) -> float:
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


def _error_on_a_torus(
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


@_analysed.register
def _spectral(layer: SpectralConv2d, input_shape: Shape, norm: float) -> ForwardError:
    r"""A Fourier transform, one complex matrix product per frequency, and a transform back.

    Transforms are orthogonal up to scale, so relative l2 errors add; the half spectrum of a real map holds
    at least half of its energy, hence the factor 2 on the products.
    """
    _, height, width = layer.output_shape(input_shape)
    matrices = layer.matrices()
    size = matrices.abs().double()
    rows, columns = float(size.sum(dim=2).max()), float(size.sum(dim=1).max())
    # The largest row and column may be of different frequencies, which only makes the bound larger.
    spread = product_up(sqrt_up(product_up(rows, columns)), 1 + 2.0**-20)
    product = product_up(2.0, sqrt_up(2.0), gamma(2 * matrices.shape[2] + 8), spread)
    transform = product_up(2.0, fourier_error(height, width), sum_up(norm, product))
    linear = sum_up(product, transform, product_up(2.0, fourier_error(height, width), norm))
    bias = _bias_norm(layer.bias, height * width)
    relative = sum_up(linear, product_up(gamma(2), sum_up(norm, linear)))
    return ForwardError(relative, sum_up(product_up(gamma(2), bias), TINY))


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
    while n > 1:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return factors


def _affine(taps: Tensor, bias: Tensor | None, terms: int, pixels: int, norm: float) -> ForwardError:
    """Error of W z + b, `terms` products per entry, W given as (out, in, taps).

    A library may begin the sum with the bias, which then takes part in the rounding of every term.
    """
    product = product_up(gamma(terms + 4), absolute_norm_upper_bound(taps))
    relative = sum_up(product, product_up(gamma(2), sum_up(norm, product)))
    return ForwardError(relative, sum_up(product_up(gamma(terms + 4), _bias_norm(bias, pixels)), TINY))


def _bias_norm(bias: Tensor | None, pixels: int) -> float:
    return (
        0.0
        if bias is None
        else product_up(frobenius_upper_bound(bias.double().unsqueeze(0)), sqrt_up(pixels))
    )


def absolute_norm_upper_bound(taps: Tensor) -> float:
    r"""Bound on the norm of the operator whose entries are the absolute values of those of (out, in, taps).

    :math:`\| |W| \| \le \sqrt{\|W\|_1 \|W\|_\infty}`, the largest absolute column and row sums; padding of
    either kind only drops or moves entries of a row.
    """
    size = taps.double().abs()
    rows, columns = float(size.sum(dim=(1, 2)).max()), float(size.sum(dim=(0, 2)).max())
    slack = sum_up(1.0, gamma(2 * max(size[0].numel(), size.shape[0] * size.shape[2])))
    return product_up(sqrt_up(product_up(rows, columns)), slack)


def circular_norm_upper_bound(kernel: Tensor) -> float:
    """Bound on the norm of the convolution of a kernel (out, in, k, k) on a torus of any size.

    At a frequency it is R (e kron I), with R the (out, k^2 in) matrix of all taps and e their k^2 phases, a
    vector of length k.
    """
    taps = kernel.permute(0, 2, 3, 1).flatten(1)
    return product_up(float(kernel.shape[-1]), matrix_norm_upper_bound(taps))


def body_error(
    layers: list[tuple[float, ForwardError]], norms: list[Tensor], radius: Tensor
) -> tuple[Tensor, Tensor]:
    """Rounding error of the features, and a bound on their norm, for all inputs within `radius`.

    Args:
        layers: Lipschitz constant and rounding error of each layer.
        norms: computed norm of each layer's input at the image, (N,) each, and last that of the features.
        radius: (N,), finite.

    Returns:
        (N,) and (N,), float64.
    """
    error, reach = torch.zeros_like(radius), radius
    for (lipschitz, own), norm in zip(layers, norms[:-1], strict=True):
        size = _inflate(norm + 2 * error + reach)
        error = _inflate(lipschitz * error + own.relative * size + own.absolute)
        reach = _inflate(reach * lipschitz)
    return error, _inflate(norms[-1] + 2 * error + reach)


def _inflate(x: Tensor) -> Tensor:
    # Covers the rounding of these few operations, and of norms of up to 2^30 numbers.
    return x * (1 + 2.0**-20)


def head_error(
    head: ConstantHead, prediction: Tensor, error: Tensor, size: Tensor, distances: Tensor
) -> Tensor:
    """Rounding error of every logit difference f_l - f_i, (N, K).

    The error of the features enters through the distance of the rows, the head's own through gamma_n.

    Args:
        head: the head in float64.
        prediction: (N,), the class l.
        error: (N,), rounding error of the features.
        size: (N,), bound on their norm.
        distances: (K, K), bounds on the distances of the rows.
    """
    weight = head.weight.double().cpu()
    # Squares of entries below 2^-511 vanish: their part of the norm is added.
    rows = torch.linalg.vector_norm(weight, dim=1) + math.sqrt(weight.shape[1]) * 2.0**-510
    bias = (
        torch.zeros(len(rows), dtype=torch.float64, device="cpu")
        if head.bias is None
        else head.bias.double().cpu().abs()
    )
    own = gamma(weight.shape[1] + 4) * (size[:, None] * rows + bias) + TINY
    pairs = own + own.gather(1, prediction[:, None])
    return _inflate(_inflate(pairs) + error[:, None] * distances[prediction])
