"""The one table of operators that feeds every test here: small sizes, odd shapes, extreme scales, all kinds.

Numbers are drawn in float32 and then widened, so that `to(float32)` is the same function: the rounding bounds
know the unit roundoff as a number, and with 2^-24 in its place they have to hold for float32.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import Tensor

from lipcert.kernels.circular import kernel_spectrum
from lipcert.nn.contract import LipschitzModule
from lipcert.operators import (
    ChannelAffine,
    ChannelPad,
    ChannelSlice,
    CircularConvolution,
    Concatenation,
    Convolution,
    Elementwise,
    Frame,
    GradientStep,
    GroupSort,
    Householder,
    HouseholderND,
    HouseholderOrder,
    Matrix,
    Mirror,
    Operator,
    Pool,
    Repeat,
    Reshape,
    Sequence,
    Shape,
    SkewPolynomial,
    SpaceToDepth,
    SpectralConvolution,
    Transpose,
    TransposedConvolution,
    WeightedSum,
)
from lipcert.operators.proved import Proved
from lipcert.proofs import rounding as units

CUBIC = (1.0, 1.0, 0.5, 0.125)
"""Coefficients that float32 holds."""


@dataclass(frozen=True)
class Case:
    """One operator, how it is built, and which of the laws are equalities for it.

    Attributes:
        build: the same operator at every call.
        shape: of one input sample.
        wrong: a shape that it does not take; None if it takes every shape.
        kind: "affine", "moved" (numbers change places), "activation" (reflects or sorts), "pointwise"
            (functions of one number, and pooling), "nonlinear" or "tree".
        tight: whether the bound is the norm of the Jacobian to three digits.
        single: whether all its numbers, and its products with them, fit float32.
    """

    build: Callable[[], Operator]
    shape: Shape
    wrong: Shape | None
    kind: str
    tight: bool = True
    single: bool = True


class Frozen(LipschitzModule):
    """A layer that is an operator: the way in for whoever wants to prove one."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.operator = operator

    def freeze(self, input_shape: Shape) -> Operator:
        """The operator."""
        return self.operator


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal numbers of float32, times a power of two."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).double() * scale


def affine(channels: int) -> Operator:
    """Normalisation with a mean and a std for each channel."""
    return ChannelAffine(draw(channels), (draw(channels, seed=1).abs() + 0.25).float().double())


def matrix(outputs: int, inputs: int, *, bias: bool = True, scale: float = 1.0) -> Operator:
    """A random matrix."""
    return Matrix(draw(outputs, inputs, scale=scale), draw(outputs, seed=1, scale=scale) if bias else None)


def circular(
    outputs: int,
    inputs: int,
    size: int,
    *,
    bias: bool = True,
    scale: float = 1.0,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> Operator:
    """A random kernel."""
    kernel = draw(outputs, inputs // groups, size, size, scale=scale)
    shift = draw(outputs, seed=1, scale=scale) if bias else None
    return CircularConvolution(kernel, shift, stride, dilation, groups)


def transposed(inputs: int, outputs: int, size: int, *, groups: int = 1, **steps: int) -> Operator:
    """The adjoint of a random kernel."""
    kernel = draw(inputs, outputs // groups, size, size)
    return TransposedConvolution(kernel, draw(outputs, seed=1), groups=groups, **steps)


def zero_padded(
    outputs: int,
    inputs: int,
    *size: int,
    bias: bool = True,
    scale: float = 1.0,
    groups: int = 1,
    **how: tuple[int, int],
) -> Operator:
    """A random kernel as `nn.Conv2d` uses it."""
    kernel = draw(outputs, inputs // groups, *size, scale=scale)
    return Convolution(kernel, draw(outputs, seed=1, scale=scale) if bias else None, groups=groups, **how)


def gradient_step(
    hidden: int,
    channels: int,
    size: int,
    inputs: int,
    outputs: int,
    *,
    bias: bool = True,
    scale: float = 0.25,
) -> Operator:
    """A step of a random kernel."""
    kernel = draw(hidden, channels, size, size, scale=scale)
    return GradientStep(kernel, draw(hidden, seed=1) if bias else None, inputs, outputs)


def spectral(outputs: int, inputs: int, height: int, width: int, *, rough: bool = False) -> Operator:
    """The matrices of a random 3x3 kernel, rounded to float32; if rough, matrices of no kernel at all."""
    spectrum = kernel_spectrum(draw(outputs, inputs, 3, 3), height, width)
    stored = torch.view_as_real(spectrum).float().double() if spectrum.is_complex() else spectrum
    stored = draw(*stored.shape) if rough else stored.float().double()
    return SpectralConvolution(stored, draw(outputs, seed=1), (height, width))


def skew(
    channels: int,
    size: int,
    inputs: int,
    outputs: int,
    *,
    coefficients: tuple[float, ...] = CUBIC,
    factors: tuple[float, float] = (0.125, 0.0625),
    bias: bool = True,
) -> Operator:
    """A polynomial in a random skew convolution."""
    return SkewPolynomial(
        centre=draw(channels * (channels - 1) // 2),
        taps=draw((size**2 - 1) // 2, channels, channels, seed=1),
        centre_factor=factors[0],
        factor=factors[1],
        coefficients=coefficients,
        in_channels=inputs,
        out_channels=outputs,
        bias=draw(outputs, seed=2) if bias else None,
    )


def body() -> Operator:
    """A small network of every sort of part, (2, 4, 4) -> 16 features."""
    return Sequence.of(
        affine(2), circular(4, 2, 3), Householder(draw(2)), SpaceToDepth(), skew(16, 3, 16, 4), Reshape()
    )


def residual() -> Operator:
    """x / 2 + f(x) / 2."""
    return WeightedSum((Sequence(()), Sequence.of(circular(4, 4, 3), GroupSort(2))), (0.5, 0.5))


def joined() -> Operator:
    """Two branches side by side, one of them mirrored."""
    return Concatenation((Sequence.of(Mirror(), circular(2, 3, 3)), ChannelSlice(1, 2), affine(3)))


CASES = {
    "matrix": Case(lambda: matrix(7, 30), (30,), (29,), "affine"),
    "matrix of one column": Case(lambda: matrix(3, 1), (1,), (3,), "affine"),
    "matrix of one row": Case(lambda: matrix(1, 5, bias=False), (5,), (5, 1, 1), "affine"),
    "matrix of zeros": Case(lambda: Matrix(torch.zeros(3, 4).double(), None), (4,), (3,), "affine"),
    "large matrix": Case(lambda: matrix(4, 6, scale=2.0**300), (6,), (4,), "affine", single=False),
    "small matrix": Case(lambda: matrix(4, 6, scale=2.0**-300), (6,), (4,), "affine", single=False),
    "affine": Case(lambda: affine(3), (3, 4, 5), (4, 4, 5), "affine"),
    "affine of vectors": Case(lambda: affine(4), (4,), (4, 2), "affine"),
    "affine of all scales": Case(
        lambda: ChannelAffine(draw(3), torch.tensor([2.0**-20, -3.0, 2.0**20]).double()),
        (3, 2, 1),
        (2, 2, 1),
        "affine",
    ),
    "circular": Case(lambda: circular(4, 3, 3), (3, 5, 3), (4, 5, 3), "affine"),
    "circular, no bias": Case(lambda: circular(2, 5, 3, bias=False), (5, 2, 4), (2, 2, 4), "affine"),
    "circular 5x5, wrapped": Case(lambda: circular(3, 2, 5), (2, 3, 2), (2, 6), "affine"),
    "circular 5x5, one row": Case(lambda: circular(2, 2, 5), (2, 1, 3), (1, 2, 3), "affine"),
    "circular 1x1": Case(lambda: circular(5, 3, 1), (3, 2, 3), (3,), "affine"),
    "circular, one pixel": Case(lambda: circular(3, 4, 3), (4, 1, 1), (4,), "affine"),
    "circular, stride 2": Case(lambda: circular(4, 3, 3, stride=2), (3, 4, 6), (3, 4, 5), "affine"),
    "circular 1x1, stride 3": Case(lambda: circular(2, 3, 1, stride=3), (3, 3, 6), (3, 4, 6), "affine"),
    "circular, dilated": Case(lambda: circular(3, 2, 3, dilation=2), (2, 5, 4), (3, 5, 4), "affine"),
    "circular, groups": Case(lambda: circular(6, 4, 3, groups=2), (4, 4, 3), (2, 4, 3), "affine"),
    "circular, all at once": Case(
        lambda: circular(4, 6, 5, stride=2, dilation=3, groups=2), (6, 4, 2), (6, 3, 2), "affine"
    ),
    "transposed": Case(lambda: transposed(4, 3, 3, stride=2), (4, 2, 3), (3, 2, 3), "affine"),
    "transposed 1x1, stride 3": Case(lambda: transposed(2, 3, 1, stride=3), (2, 1, 2), (2, 2), "affine"),
    "transposed, dilated": Case(lambda: transposed(3, 4, 3, dilation=2), (3, 4, 3), (4, 4, 3), "affine"),
    "transposed, all at once": Case(
        lambda: transposed(4, 6, 5, stride=2, dilation=3, groups=2), (4, 2, 1), (6, 2, 1), "affine"
    ),
    "large circular": Case(
        lambda: circular(2, 2, 3, scale=2.0**300), (2, 3, 3), (3, 3, 3), "affine", single=False
    ),
    "small circular": Case(
        lambda: circular(2, 2, 3, scale=2.0**-300), (2, 3, 3), (3, 3, 3), "affine", single=False
    ),
    "convolution": Case(lambda: zero_padded(4, 3, 3, 3, padding=(1, 1)), (3, 5, 3), (4, 5, 3), "affine"),
    "convolution, no padding": Case(lambda: zero_padded(2, 3, 3, 2), (3, 4, 5), (3, 2, 5), "affine"),
    "convolution, all options": Case(
        lambda: zero_padded(4, 6, 3, 2, stride=(2, 1), padding=(2, 1), dilation=(1, 2), groups=2),
        (6, 5, 4),
        (3, 5, 4),
        "affine",
    ),
    "convolution, one pixel": Case(lambda: zero_padded(3, 4, 1, 1, bias=False), (4, 2, 3), (4,), "affine"),
    "convolution in strips": Case(
        lambda: zero_padded(3, 5, 3, 3, padding=(1, 1)), (5, 15, 14), (3, 15, 14), "affine"
    ),
    "affine in channels": Case(lambda: zero_padded(5, 5, 1, 1, groups=5), (5, 3, 2), (4, 3, 2), "affine"),
    "large convolution": Case(
        lambda: zero_padded(2, 2, 3, 3, scale=2.0**300), (2, 3, 3), (3, 3, 3), "affine", single=False
    ),
    "gradient step": Case(
        lambda: gradient_step(4, 3, 3, 3, 3), (3, 5, 3), (4, 5, 3), "nonlinear", tight=False
    ),
    "long gradient step": Case(
        lambda: gradient_step(5, 5, 1, 5, 5, bias=False, scale=2.0), (5, 2, 2), (5,), "nonlinear", tight=False
    ),
    "gradient step, few outputs": Case(
        lambda: gradient_step(6, 6, 3, 6, 2), (6, 3, 3), (2, 3, 3), "nonlinear", tight=False
    ),
    "gradient step 5x5": Case(
        lambda: gradient_step(2, 4, 5, 3, 4, scale=2.0**-4), (3, 2, 3), (2, 2, 3), "nonlinear", tight=False
    ),
    "spectral": Case(lambda: spectral(4, 3, 5, 6), (3, 5, 6), (3, 6, 5), "affine"),
    "spectral, odd": Case(lambda: spectral(2, 4, 4, 3), (4, 4, 3), (4, 4, 4), "affine"),
    "spectral, real": Case(lambda: spectral(3, 3, 2, 2), (3, 2, 2), (3, 2, 3), "affine"),
    "spectral, one row": Case(lambda: spectral(3, 2, 1, 5), (2, 1, 5), (2, 5, 1), "affine"),
    # Matrices that are no conjugates of each other: the inverse transform averages them.
    "spectral, rough": Case(
        lambda: spectral(3, 2, 4, 4, rough=True), (2, 4, 4), (3, 4, 4), "affine", tight=False
    ),
    "skew 1x1": Case(lambda: skew(6, 1, 6, 6), (6, 3, 2), (5, 3, 2), "affine"),
    "skew 3x3": Case(lambda: skew(4, 3, 4, 4), (4, 5, 3), (3, 5, 3), "affine"),
    "skew 5x5": Case(lambda: skew(3, 5, 3, 3), (3, 4, 5), (4, 4, 5), "affine"),
    "skew, few inputs": Case(lambda: skew(5, 3, 2, 5), (2, 4, 4), (5, 4, 4), "affine", tight=False),
    "skew, few outputs": Case(lambda: skew(5, 3, 5, 2), (5, 3, 4), (2, 3, 4), "affine", tight=False),
    "skew, no bias": Case(lambda: skew(4, 3, 4, 4, bias=False), (4, 3, 3), (4, 3), "affine"),
    "skew as a matrix": Case(lambda: skew(6, 3, 6, 6), (6, 2, 2), (5, 2, 2), "affine"),
    "skew as a matrix, few inputs": Case(
        lambda: skew(6, 3, 2, 4), (2, 2, 1), (4, 2, 1), "affine", tight=False
    ),
    "skew, one pixel": Case(lambda: skew(3, 5, 3, 3), (3, 1, 1), (3,), "affine"),
    "skew, one channel": Case(lambda: skew(1, 3, 1, 1), (1, 3, 4), (2, 3, 4), "affine"),
    "skew on a torus": Case(lambda: skew(8, 3, 8, 8), (8, 4, 3), (8, 12), "affine"),
    "skew on a torus, few channels": Case(
        lambda: skew(8, 3, 5, 6), (5, 4, 3), (8, 4, 3), "affine", tight=False
    ),
    "skew of degree 1": Case(
        lambda: skew(4, 3, 4, 4, coefficients=(0.5, -2.0)), (4, 3, 3), (3, 3, 3), "affine"
    ),
    "skew with rounded factors": Case(
        lambda: skew(4, 3, 4, 4, factors=(0.1, 0.07)), (4, 4, 3), (3, 4, 3), "affine", single=False
    ),
    "large and small skew": Case(
        lambda: skew(4, 3, 4, 4, coefficients=(2.0**-40, 2.0**40), factors=(2.0**-20, 2.0**-60)),
        (4, 3, 3),
        (3, 3, 3),
        "affine",
        single=False,
    ),
    "maxmin": Case(lambda: GroupSort(2), (8, 3, 3), (7, 3, 3), "activation"),
    "groupsort": Case(lambda: GroupSort(4), (8, 1, 2), (6, 1, 2), "activation"),
    "groupsort of vectors": Case(lambda: GroupSort(5), (5,), (5, 5), "activation"),
    "householder": Case(lambda: Householder(draw(4)), (8, 3, 3), (6, 3, 3), "activation"),
    "one pair": Case(lambda: Householder(draw(1)), (2,), (4,), "activation"),
    "householder, large angles": Case(lambda: Householder(draw(3, scale=2.0**10)), (6,), (3,), "activation"),
    "order 2": Case(lambda: HouseholderOrder(draw(4), draw(2, 1, 4)), (8, 3, 1), (2, 3, 1), "activation"),
    "order 3": Case(lambda: HouseholderOrder(draw(3), draw(2, 2, 3)), (6,), (8,), "activation"),
    "reflections": Case(lambda: HouseholderND(draw(2, 4, 2)), (8, 3, 3), (4, 3, 3), "activation"),
    "one reflection": Case(lambda: HouseholderND(draw(1, 3, 1)), (3,), (6,), "activation"),
    "reflections of any length": Case(
        lambda: HouseholderND(draw(3, 2, 3) * torch.tensor([2.0**-90, 1.0, 2.0**90]).double()),
        (6, 2, 1),
        (6, 2),
        "activation",
    ),
    "relu": Case(lambda: Elementwise("relu"), (3, 2, 2), None, "pointwise"),
    "leaky relu": Case(lambda: Elementwise("leaky relu", 0.3), (5,), None, "pointwise"),
    "steep leaky relu": Case(lambda: Elementwise("leaky relu", -3.3), (3, 2, 2), None, "pointwise"),
    "abs": Case(lambda: Elementwise("abs"), (3, 2, 2), None, "pointwise"),
    "tanh": Case(lambda: Elementwise("tanh"), (3, 2, 2), None, "pointwise"),
    "sigmoid": Case(lambda: Elementwise("sigmoid"), (7,), None, "pointwise"),
    "softplus": Case(lambda: Elementwise("softplus"), (3, 2, 2), None, "pointwise"),
    "average pooling": Case(lambda: Pool("average", (2, 2), (2, 2), (0, 0)), (3, 4, 5), (3, 1, 4), "affine"),
    "average pooling, overlapping": Case(
        lambda: Pool("average", (3, 2), (2, 1), (1, 1)), (2, 5, 4), (4,), "affine"
    ),
    "max pooling": Case(lambda: Pool("max", (2, 2), (2, 2), (0, 0)), (3, 4, 6), (3, 4), "pointwise"),
    "max pooling, overlapping": Case(
        lambda: Pool("max", (3, 3), (2, 2), (1, 1)), (2, 5, 6), (2, 0, 6), "pointwise"
    ),
    "norm pooling": Case(lambda: Pool("norm", (2, 3), (2, 3), (0, 0)), (2, 4, 6), (2, 1, 6), "pointwise"),
    "norm pooling, overlapping": Case(
        lambda: Pool("norm", (3, 3), (1, 1), (1, 1)), (2, 4, 3), (2, 4), "pointwise"
    ),
    "repeated pixels": Case(lambda: Repeat((2, 3)), (2, 3, 2), (6,), "affine"),
    "space to depth": Case(SpaceToDepth, (3, 4, 6), (3, 4, 5), "moved"),
    "flattening": Case(Reshape, (2, 3, 3), None, "moved"),
    "reshape": Case(lambda: Reshape((3, 2, 3)), (2, 3, 3), (2, 3, 4), "moved"),
    "transpose": Case(lambda: Transpose((1, 2, 0)), (2, 3, 4), (2, 3), "moved"),
    "mirror": Case(Mirror, (2, 3, 5), (6,), "moved"),
    "channel pad": Case(lambda: ChannelPad(5), (3, 2, 2), (6, 2, 2), "moved"),
    "channel pad of vectors": Case(lambda: ChannelPad(7), (7,), (8,), "moved"),
    "channel slice": Case(lambda: ChannelSlice(1, 3), (4, 2, 1), (2, 2, 1), "moved"),
    "frame": Case(lambda: Frame(2), (2, 1, 3), (6,), "moved"),
    "cropping": Case(lambda: Frame(-1), (2, 3, 4), (2, 2, 4), "moved"),
    "channel slice of vectors": Case(lambda: ChannelSlice(0, 2), (5,), (1,), "moved"),
    "nothing": Case(lambda: Sequence(()), (3, 2), None, "tree"),
    "network": Case(lambda: Sequence.of(body(), matrix(3, 16)), (2, 4, 4), (3, 4, 4), "tree"),
    "residual": Case(residual, (4, 3, 2), (3, 3, 2), "tree"),
    "joined": Case(joined, (3, 2, 3), (4, 2, 3), "tree"),
    "weighted": Case(
        lambda: WeightedSum((matrix(3, 4), Sequence.of(affine(4), matrix(3, 4, scale=2.0))), (-1.5, 0.75)),
        (4,),
        (3,),
        "tree",
    ),
    "two networks": Case(
        lambda: WeightedSum(
            (
                Sequence.of(body(), matrix(3, 16)),
                Sequence.of(Mirror(), body(), matrix(3, 16, scale=0.5)),
            ),
            (0.5, 0.5),
        ),
        (2, 4, 4),
        (2, 4, 2),
        "tree",
    ),
    "proved": Case(lambda: Proved.of(matrix(3, 4), "head", "Linear", (4,)), (4,), (5,), "affine"),
}


def every_case(choose: Callable[[Case], bool] = lambda case: True) -> pytest.MarkDecorator:
    """Parametrize a test with the names of the cases that fit."""
    return pytest.mark.parametrize("name", [name for name, case in CASES.items() if choose(case)])


def inputs(shape: Shape, count: int = 3, size: float = 1.0) -> Tensor:
    """Samples of float32 in float64; different ones at every call."""
    return (torch.randn(count, *shape) * size).double()


def norms(x: Tensor) -> Tensor:
    """One l2 norm per sample."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def dense_jacobian(operator: Operator, shape: Shape) -> Tensor:
    """(outputs, inputs) at a random point, row by row by backward passes, in float64."""
    point = torch.randn(1, *shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(operator.apply, point)
    return jacobian.detach().reshape(-1, point.numel())


def dense_matrix(operator: Operator, shape: Shape) -> Tensor:
    """The matrix of an affine operator, column by column by forward passes: the second way."""
    size = torch.Size(shape).numel()
    with torch.no_grad():
        columns = operator.apply(torch.eye(size, dtype=torch.float64).reshape(size, *shape))
        return (columns - operator.apply(torch.zeros(1, *shape, dtype=torch.float64))).flatten(1).T


def jacobian_error(operator: Operator, jacobian: Tensor, shape: Shape) -> float:
    """What float64 may add to the norm of a dense Jacobian: of its columns, and of its singular values."""
    size, eps = max(jacobian.shape), torch.finfo(torch.float64).eps
    norm = float(torch.linalg.vector_norm(jacobian))
    return operator.rounding_error(shape).relative * jacobian.shape[1] ** 0.5 + 64 * eps * size * norm


@contextmanager
def roundings_of_float32() -> Iterator[None]:
    """The error analysis with the unit roundoff of float32 in place of that of float64."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _modules_with_a_unit():
            patch.setattr(module, "UNIT", 2.0**-24)
        yield


def _modules_with_a_unit() -> list[ModuleType]:
    found = [
        m for name, m in sys.modules.items() if name.startswith("lipcert.operators") and hasattr(m, "UNIT")
    ]
    return [units, *found]
