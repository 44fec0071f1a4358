"""Float64 against 80-bit and rational arithmetic in numpy: the bounds hold for float64 itself."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.fft
import torch
from torch import Tensor

from lipcert.operators import (
    ChannelAffine,
    CircularConvolution,
    Convolution,
    Elementwise,
    GroupSort,
    Householder,
    HouseholderND,
    Matrix,
    Operator,
    Pool,
    Sequence,
    Shape,
    SkewPolynomial,
    SpectralConvolution,
    TransposedConvolution,
    WeightedSum,
)
from tests.operators.cases import CASES, norms

Long = npt.NDArray[np.longdouble]

needs_long_doubles = pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 2.0**-63, reason="long double has no more digits than float64 here"
)


def full_digits(shape: Shape, count: int) -> Tensor:
    """Samples that use all 53 bits, so that every product rounds."""
    return torch.randn(count, *shape, dtype=torch.float64)


def long(tensor: Tensor) -> Long:
    return tensor.numpy().astype(np.longdouble)


def along_channels(values: Tensor | None, like: Long) -> Long:
    numbers = np.zeros(1, dtype=np.longdouble) if values is None else long(values)
    return numbers.reshape(-1, *(1,) * (like.ndim - 2))


def matrix(operator: Matrix, x: Long) -> Long:
    return x @ long(operator.weight).T + along_channels(operator.bias, x)


def channel_affine(operator: ChannelAffine, x: Long) -> Long:
    return (x - along_channels(operator.mean, x)) / along_channels(operator.std, x)


def circular(operator: CircularConvolution, x: Long) -> Long:
    kernels = np.split(long(operator.kernel), operator.groups)
    (step, far), reach = (operator.stride, operator.dilation), operator.kernel.shape[-1] // 2
    made = []
    for kernel, group in zip(kernels, np.split(x, operator.groups, axis=1), strict=True):
        y = np.zeros(1, dtype=np.longdouble)
        for dy in range(-reach, reach + 1):
            for dx in range(-reach, reach + 1):
                moved = np.roll(group, (-far * dy, -far * dx), axis=(2, 3))[:, :, ::step, ::step]
                y = y + np.einsum("oi,nihw->nohw", kernel[:, :, dy + reach, dx + reach], moved)
        made.append(y)
    return np.concatenate(made, axis=1) + along_channels(operator.bias, x)


def transposed(operator: TransposedConvolution, x: Long) -> Long:
    """Every pixel and tap by itself."""
    step, far, reach = operator.stride, operator.dilation, operator.kernel.shape[-1] // 2
    kernels, made = np.split(long(operator.kernel), operator.groups), []
    height, width = (step * side for side in x.shape[2:])
    for kernel, group in zip(kernels, np.split(x, operator.groups, axis=1), strict=True):
        y = np.zeros((len(x), kernel.shape[1], height, width), dtype=np.longdouble)
        for row, column, ty, tx in np.ndindex(*x.shape[2:], *kernel.shape[2:]):
            place = ((step * row + far * (ty - reach)) % height, (step * column + far * (tx - reach)) % width)
            y[:, :, place[0], place[1]] += group[:, :, row, column] @ kernel[:, :, ty, tx]
        made.append(y)
    return np.concatenate(made, axis=1) + along_channels(operator.bias, x)


def spectral(operator: SpectralConvolution, x: Long) -> Long:
    height, width = operator.map_size
    parts = long(operator.spectrum)
    matrices = parts if parts.ndim == 3 else parts[..., 0] + 1j * parts[..., 1]
    coefficients = scipy.fft.rfft2(x).reshape(len(x), x.shape[1], -1)
    product = np.einsum("foi,nif->nof", matrices, coefficients).reshape(len(x), -1, height, width // 2 + 1)
    y = scipy.fft.irfft2(product, s=(height, width))
    assert y.dtype == np.longdouble, "the reference has lost its digits"
    return y + along_channels(operator.bias, x)


def skew(operator: SkewPolynomial, x: Long) -> Long:
    """p(A) x term by term, not by Horner's rule."""
    kernel = long(operator.kernel())
    reach, (height, width) = operator.kernel_size // 2, x.shape[2:]
    power = np.zeros((len(x), operator.channels, height, width), dtype=np.longdouble)
    power[:, : x.shape[1]] = x
    total = np.zeros_like(power)
    for coefficient in operator.coefficients:
        total = total + np.longdouble(coefficient) * power
        padded = np.pad(power, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
        power = np.zeros_like(power)
        for dy in range(2 * reach + 1):
            for dx in range(2 * reach + 1):
                window = padded[:, :, dy : dy + height, dx : dx + width]
                power += np.einsum("oi,nihw->nohw", kernel[:, :, dy, dx], window)
    return total[:, : operator.out_channels] + along_channels(operator.bias, x)


def zero_padded(operator: Convolution, x: Long) -> Long:
    """Output by output, pixel by pixel of the window."""
    kernel = long(operator.kernel)
    (py, px), (sy, sx), (dy, dx) = operator.padding, operator.stride, operator.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)))
    _, height, width = operator.output_shape(x.shape[1:])
    y = np.zeros((len(x), len(kernel), height, width), dtype=np.longdouble)
    per_group, out = kernel.shape[1], len(kernel) // operator.groups
    for o, row, column in np.ndindex(len(kernel), height, width):
        first = o // out * per_group
        top, left = row * sy, column * sx
        window = padded[:, first : first + per_group, top:, left:][:, :, ::dy, ::dx]
        window = window[:, :, : kernel.shape[2], : kernel.shape[3]]
        y[:, o, row, column] = (window * kernel[o]).sum(axis=(1, 2, 3))
    return y + along_channels(operator.bias, x)


def elementwise(operator: Elementwise, x: Long) -> Long:
    one = np.longdouble(1)
    functions = {
        "relu": lambda z: np.maximum(z, 0),
        "leaky relu": lambda z: np.where(z < 0, np.longdouble(operator.slope) * z, z),
        "abs": np.abs,
        "tanh": np.tanh,
        "sigmoid": lambda z: one / (one + np.exp(-z)),
        "softplus": lambda z: np.logaddexp(z, np.longdouble(0)),
    }
    return np.asarray(functions[operator.function](x))


def pool(operator: Pool, x: Long) -> Long:
    (py, px), (sy, sx), (ky, kx) = operator.padding, operator.stride, operator.window
    outside = -np.inf if operator.function == "max" else 0.0
    padded = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)), constant_values=outside)
    y = np.zeros((len(x), *operator.output_shape(x.shape[1:])), dtype=np.longdouble)
    for row, column in np.ndindex(*y.shape[2:]):
        window = padded[:, :, row * sy : row * sy + ky, column * sx : column * sx + kx]
        if operator.function == "max":
            y[:, :, row, column] = window.max(axis=(2, 3))
        elif operator.function == "average":
            y[:, :, row, column] = window.sum(axis=(2, 3)) / (ky * kx)
        else:
            y[:, :, row, column] = np.sqrt((window**2).sum(axis=(2, 3)))
    return y


def householder(operator: Householder, x: Long) -> Long:
    """Pairs above the line of angle theta / 2 are mirrored at it."""
    z1, z2 = np.split(x, 2, axis=1)
    theta = along_channels(operator.theta, x)
    above = z2 * np.cos(theta / 2) > z1 * np.sin(theta / 2)
    y1 = np.where(above, z1 * np.cos(theta) + z2 * np.sin(theta), z1)
    y2 = np.where(above, z1 * np.sin(theta) - z2 * np.cos(theta), z2)
    return np.concatenate((y1, y2), axis=1)


def reflections(operator: HouseholderND, x: Long) -> Long:
    _, group, count = operator.vectors.shape
    z = x.reshape(len(x), group, count, *x.shape[2:])
    for v in long(operator.vectors):
        v = (v / np.abs(v).max(axis=0)).reshape(1, group, count, *(1,) * (x.ndim - 2))
        side = np.minimum((v * z).sum(axis=1, keepdims=True), 0)
        z = z - 2 * side * v / (v * v).sum(axis=1, keepdims=True)
    return z.reshape(x.shape)


def groupsort(operator: GroupSort, x: Long) -> Long:
    grouped = x.reshape(len(x), operator.group, -1, *x.shape[2:])
    return np.flip(np.sort(grouped, axis=1), axis=1).reshape(x.shape)


def sequence(operator: Sequence, x: Long) -> Long:
    for part in operator.parts:
        x = reference(part, x)
    return x


def weighted(operator: WeightedSum, x: Long) -> Long:
    terms = zip(operator.branches, operator.weights, strict=True)
    return np.sum([np.longdouble(weight) * reference(branch, x) for branch, weight in terms], axis=0)


REFERENCES: dict[type[Operator], Callable[[Any, Long], Long]] = {
    Matrix: matrix,
    ChannelAffine: channel_affine,
    CircularConvolution: circular,
    Convolution: zero_padded,
    Elementwise: elementwise,
    Pool: pool,
    SpectralConvolution: spectral,
    TransposedConvolution: transposed,
    SkewPolynomial: skew,
    Householder: householder,
    HouseholderND: reflections,
    GroupSort: groupsort,
    Sequence: sequence,
    WeightedSum: weighted,
}


def reference(operator: Operator, x: Long) -> Long:
    """What the operator is, to 19 digits."""
    return REFERENCES[type(operator)](operator, x)


KNOWN = [
    name
    for name, case in CASES.items()
    if type(case.build()) in REFERENCES and name not in ("network", "two networks")
]


@needs_long_doubles
@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("count", [1, 64])
@torch.no_grad()
def test_float64_is_within_its_bound_of_a_reference_of_19_digits(name: str, count: int) -> None:
    case = CASES[name]
    operator, x = case.build(), full_digits(case.shape, count)
    error = operator.rounding_error(case.shape)
    y = reference(operator, long(x))
    off = np.linalg.norm((long(operator.apply(x)) - y).reshape(count, -1).astype(np.float64), axis=1)
    allowed = error.relative * norms(x).numpy() + error.absolute
    assert (off <= allowed).all()
    if count > 1 and error.relative:
        assert off.max() > 0 or not y.any(), "the test sees no rounding at all"


def exact(tensor: Tensor) -> npt.NDArray[Any]:
    """The same numbers as fractions."""
    return np.vectorize(Fraction, otypes=[object])(tensor.numpy())


def squared_length(values: npt.NDArray[Any]) -> Fraction:
    return sum((v * v for v in values.flatten()), Fraction(0))


@pytest.mark.parametrize("name", ["matrix", "matrix of one column", "large matrix", "small matrix"])
@torch.no_grad()
def test_a_matrix_is_within_its_bound_in_rational_arithmetic(name: str) -> None:
    case = CASES[name]
    operator, x = case.build(), full_digits(case.shape, 4)
    assert isinstance(operator, Matrix)
    assert operator.bias is not None
    error = operator.rounding_error(case.shape)
    y = exact(x) @ exact(operator.weight).T + exact(operator.bias)
    for sample, truth, computed in zip(x, y, exact(operator.apply(x)), strict=True):
        # (a |x| + b)^2 >= a^2 |x|^2 + b^2, without a root.
        allowed = (
            Fraction(error.relative) ** 2 * squared_length(exact(sample)) + Fraction(error.absolute) ** 2
        )
        assert 0 < squared_length(computed - truth) <= allowed


@pytest.mark.parametrize("name", ["affine", "affine of vectors", "affine of all scales"])
@torch.no_grad()
def test_an_affine_map_is_within_its_bound_in_rational_arithmetic(name: str) -> None:
    case = CASES[name]
    operator, x = case.build(), full_digits(case.shape, 4)
    assert isinstance(operator, ChannelAffine)
    error = operator.rounding_error(case.shape)
    column = (-1, *(1,) * (x.dim() - 2))
    mean, std = (exact(values).reshape(column) for values in (operator.mean, operator.std))
    y = (exact(x) - mean) / std
    for sample, truth, computed in zip(x, y, exact(operator.apply(x)), strict=True):
        allowed = (
            Fraction(error.relative) ** 2 * squared_length(exact(sample)) + Fraction(error.absolute) ** 2
        )
        assert squared_length(computed - truth) <= allowed


@pytest.mark.parametrize(
    ("std", "expected"),
    [([0.25], 4.0), ([-0.5, 2.0], 2.0), ([3.0], 1 / 3), ([0.2507, 0.3], 1 / 0.2507)],
)
def test_the_constant_of_an_affine_map_is_exact_or_the_next_float_above(
    std: list[float], expected: float
) -> None:
    values = torch.tensor(std, dtype=torch.float64)
    bound = ChannelAffine(0 * values, values).lipschitz_bound((len(std),))
    truth = 1 / min(abs(Fraction(s)) for s in std)
    assert Fraction(bound) >= truth
    assert bound == pytest.approx(expected, rel=1e-15)
    assert Fraction(bound) == truth or truth.denominator & (truth.denominator - 1)


@torch.no_grad()
def test_a_weighted_sum_is_within_its_bound_in_rational_arithmetic() -> None:
    """Weights whose products round, on branches that do not."""
    weights = (1 / 3, -0.7, 1.1)
    operator = WeightedSum((Sequence(()), GroupSort(2), GroupSort(4)), weights)
    x = full_digits((4,), 200)
    error = operator.rounding_error((4,))
    branches = [branch.apply(x) for branch in operator.branches]
    y = sum(Fraction(w) * exact(branch) for w, branch in zip(weights, branches, strict=True))
    off = np.array([float(squared_length(row)) ** 0.5 for row in exact(operator.apply(x)) - y])
    allowed = error.relative * norms(x).numpy() + error.absolute
    assert (off <= allowed).all()
    assert 0 < off.max() <= allowed.max() <= 100 * off.max()
