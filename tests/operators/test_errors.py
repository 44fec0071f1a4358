"""Operators that do not exist: each refusal names the argument, what was expected and what arrived."""

from collections.abc import Callable

import pytest
import torch

from lipcert.errors import ArgumentError
from lipcert.operators import (
    ChannelAffine,
    ChannelPad,
    ChannelSlice,
    CircularConvolution,
    Concatenation,
    Frame,
    GroupSort,
    Householder,
    HouseholderND,
    HouseholderOrder,
    Matrix,
    Reshape,
    SkewPolynomial,
    SpectralConvolution,
    WeightedSum,
)
from tests.operators.cases import skew

ONES = torch.ones(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Matrix(ONES, None), r"weight: expected \(outputs, inputs\), got shape \(2,\)"),
        (lambda: Matrix(torch.eye(3), ONES), r"bias: expected 3 numbers, got shape \(2,\)"),
        (
            lambda: ChannelAffine(ONES, ONES[:1]),
            r"mean, std: expected one number per channel each, got shapes",
        ),
        (lambda: ChannelAffine(ONES, 0 * ONES), "std: expected finite numbers that are not zero"),
        (lambda: ChannelAffine(ONES, ONES / 0), "std: expected finite numbers that are not zero"),
        (
            lambda: CircularConvolution(torch.ones(1, 1, 2, 2), None),
            r"kernel: expected \(out, in, k, k\) with k",
        ),
        (lambda: CircularConvolution(torch.ones(1, 1, 1, 3), None), r"kernel: .* got shape \(1, 1, 1, 3\)"),
        (
            lambda: CircularConvolution(torch.ones(3, 1, 3, 3), None, groups=2),
            "groups: expected a divisor of 3 channels, got 2",
        ),
        (
            lambda: CircularConvolution(torch.ones(1, 1, 3, 3), None, stride=0),
            "stride: expected a positive integer, got 0",
        ),
        (
            lambda: CircularConvolution(torch.ones(1, 1, 3, 3), None, stride=2).output_shape((1, 4, 3)),
            r"expected a height and a width that 2 divides, got shape \(1, 4, 3\)",
        ),
        (lambda: Frame(0), "margin: expected pixels to add or, below 0, to take away, got 0"),
        (
            lambda: Frame(-2).output_shape((1, 5, 4)),
            r"Frame: expected maps of more than 4 rows and columns, got shape \(1, 5, 4\)",
        ),
        (
            lambda: SpectralConvolution(torch.ones(5, 2, 2, 2), None, (3, 3)),
            r"spectrum: expected \(6, out, in, 2\) for maps of 3x3, got shape \(5, 2, 2, 2\)",
        ),
        (
            # On these maps a transform is complex, and real matrices would drop its imaginary part.
            lambda: SpectralConvolution(torch.ones(12, 1, 1), None, (4, 4)),
            r"spectrum: expected \(12, out, in, 2\) for maps of 4x4, got shape \(12, 1, 1\)",
        ),
        (lambda: GroupSort(1), "group: expected at least 2, got 1"),
        (lambda: Householder(ONES * float("nan")), "theta: expected finite numbers with 1 axes"),
        (
            lambda: HouseholderOrder(ONES, torch.ones(2, 1, 3)),
            r"widths: expected \(2, order - 1, 2\) with an order of 2 to 128, got shape \(2, 1, 3\)",
        ),
        (
            lambda: HouseholderOrder(ONES[:1], torch.zeros(2, 128, 1)),
            r"widths: expected \(2, order - 1, 1\) with an order of 2 to 128, got shape \(2, 128, 1\)",
        ),
        (lambda: HouseholderND(torch.zeros(1, 2, 2)), "vectors: expected nonzero vectors, got one of zeros"),
        (
            lambda: HouseholderND(torch.zeros(0, 2, 2)),
            r"vectors: expected \(length, group size, groups\), each at least 1, got shape \(0, 2, 2\)",
        ),
        (lambda: Reshape((2, 0)), r"shape: expected positive sides, got \(2, 0\)"),
        (lambda: ChannelSlice(2, 2), "start, stop: expected 0 <= start < stop, got 2 and 2"),
        (lambda: WeightedSum((), ()), "weights: expected one for each of 0 branches, got 0"),
        (
            lambda: WeightedSum((Reshape(),), (1.0, 2.0)),
            "weights: expected one for each of 1 branches, got 2",
        ),
        (
            lambda: WeightedSum((Reshape(),), (float("inf"),)),
            r"weights: expected finite numbers of at least 3e-151 or zero, got \(inf,\)",
        ),
        (
            lambda: WeightedSum((Reshape(),), (1e-310,)),
            "weights: expected finite numbers of at least 3e-151 or zero",
        ),
        (lambda: Concatenation(()), "branches: expected at least one, got none"),
        (lambda: skew(3, 3, 4, 3), "in_channels, out_channels: expected 1 to 3, got 4 and 3"),
        (lambda: skew(3, 3, 3, 0), "in_channels, out_channels: expected 1 to 3, got 3 and 0"),
        (
            lambda: skew(3, 3, 3, 3, coefficients=(1.0,)),
            "coefficients: expected those of a polynomial of degree 1",
        ),
        (
            lambda: SkewPolynomial(torch.ones(3), torch.ones(3, 3, 3), 1.0, 1.0, (1.0, 1.0), 3, 3, None),
            r"centre, taps: expected 3 numbers and \(k\^2 - 1\) / 2 taps, got shapes \(3,\) and \(3, 3, 3\)",
        ),
        (
            lambda: SkewPolynomial(torch.ones(3), torch.ones(4, 3), 1.0, 1.0, (1.0, 1.0), 3, 3, None),
            r"taps: expected \(T, c, c\), got shape \(4, 3\)",
        ),
        (
            lambda: WeightedSum((Reshape(), GroupSort(2)), (1.0, 1.0)).output_shape((2, 2, 2)),
            r"WeightedSum: expected branches of one output shape, got \(8,\) and \(2, 2, 2\)",
        ),
        (
            lambda: Concatenation(
                (SpectralConvolution(torch.ones(2, 1, 1), None, (2, 1)), Reshape((1, 1, 2)))
            ).output_shape((1, 2, 1)),
            r"Concatenation: expected maps of one size, got \(1, 2, 1\) and \(1, 1, 2\)",
        ),
        (
            lambda: ChannelPad(2).output_shape((3, 1, 1)),
            r"ChannelPad: expected at most 2 channels, got shape",
        ),
    ],
)
def test_bad_arguments(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()
