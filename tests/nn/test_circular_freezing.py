"""What BCOP, Cayley and linear layers freeze to: changes of precision, and bounds of whatever is stored."""

import pytest
import torch

from lipcert.errors import ArgumentError
from lipcert.nn.bcop import BCOP
from lipcert.nn.cayley import Cayley
from lipcert.nn.convolution import OrthogonalConv2d
from lipcert.operators import (
    CircularConvolution,
    Matrix,
    Operator,
    Sequence,
    SpaceToDepth,
    SpectralConvolution,
)
from tests.contracts.dense import dense_matrix


@pytest.mark.parametrize("layer", [BCOP(2, 3, 3), Cayley(2, 3, 3), Cayley(2, 3, 3, stride=2)], ids=repr)
def test_operators_can_be_cast(layer: OrthogonalConv2d) -> None:
    operator = layer.freeze((2, 6, 4))
    x = torch.randn(2, 2, 6, 4)
    in_double = operator.to(dtype=torch.float64)
    # Numbers of float32 in float64 arithmetic: the difference is rounding in float32 alone.
    torch.testing.assert_close(layer.eval()(x), in_double.apply(x.double()).float(), rtol=0, atol=1e-5)
    assert in_double.to(dtype=torch.float32) == operator
    assert in_double != operator


@pytest.mark.parametrize("stride", [1, 2])
def test_circular_bound_covers_any_kernel(stride: int) -> None:
    convolution = CircularConvolution(torch.randn(3, 2 * stride**2, 3, 3, dtype=torch.float64), None)
    operator = Sequence.of(SpaceToDepth(), convolution) if stride == 2 else convolution
    truth = float(torch.linalg.matrix_norm(dense_matrix(operator.apply, (2, 4, 6)), 2))
    assert truth <= operator.lipschitz_bound((2, 4, 6)) * (1 + 1e-13) <= truth * (1 + 1e-4)


@pytest.mark.parametrize("pixels", [(2, 2), (3, 4), (4, 3)])
def test_spectral_bound_covers_matrices_that_are_no_exact_conjugates(pixels: tuple[int, int]) -> None:
    height, width = pixels
    parts = () if height <= 2 and width <= 2 else (2,)
    spectrum = torch.randn(height * (width // 2 + 1), 3, 2, *parts, dtype=torch.float64)
    operator = SpectralConvolution(spectrum, None, map_size=pixels)
    truth = float(torch.linalg.matrix_norm(dense_matrix(operator.apply, (2, *pixels)), 2))
    assert truth <= operator.lipschitz_bound((2, *pixels)) * (1 + 1e-13)


def test_matrix_bound() -> None:
    operator = Matrix(torch.diag(torch.tensor([1.0, 3.0])), torch.ones(2))
    assert operator.lipschitz_bound((2,)) == pytest.approx(3, rel=1e-4)
    assert operator.lipschitz_bound((2,)) >= 3
    assert operator.apply(torch.ones(1, 2)).tolist() == [[2, 4]]


@pytest.mark.parametrize(
    ("operator", "shape", "message"),
    [
        (CircularConvolution(torch.ones(1, 2, 3, 3), None), (2, 4), "expected maps of 2 channels"),
        (CircularConvolution(torch.ones(1, 2, 3, 3), None), (3, 4, 4), "expected maps of 2 channels"),
        (
            Sequence.of(SpaceToDepth(), CircularConvolution(torch.ones(1, 4, 1, 1), None)),
            (1, 3, 4),
            "expected maps of even height and width",
        ),
        (
            SpectralConvolution(torch.ones(4, 1, 1), None, map_size=(2, 2)),
            (1, 4, 2),
            r"expected maps of shape \(1, 2, 2\), which it was frozen for, got shape \(1, 4, 2\)",
        ),
        (Matrix(torch.ones(1, 2), None), (3,), "expected vectors of 2 numbers"),
    ],
)
def test_refusals(operator: Operator, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        operator.output_shape(shape)
    with pytest.raises(ArgumentError, match=message):
        operator.lipschitz_bound(shape)
