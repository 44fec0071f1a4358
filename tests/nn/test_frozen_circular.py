"""The frozen forms: dtype casts, stride, refusals, and bounds of the stored numbers."""

import pytest
import torch

from lipcert.errors import ArgumentError
from lipcert.nn.bcop import BCOP
from lipcert.nn.cayley import Cayley
from lipcert.nn.frozen_circular import CircularConv2d, FrozenLinear, SpectralConv2d
from tests.contracts.dense import dense_matrix


@pytest.mark.parametrize("layer", [BCOP(2, 3, 3), Cayley(2, 3, 3), Cayley(2, 3, 3, stride=2)], ids=repr)
def test_frozen_forms_hold_no_parameters_and_can_be_cast(layer: torch.nn.Module) -> None:
    frozen = layer.freeze((2, 6, 4))
    assert not list(frozen.parameters())
    x = torch.randn(2, 2, 6, 4)
    in_double = frozen.double()(x.double())
    # Buffers of float32 in float64 arithmetic: the difference is rounding in float32 alone.
    torch.testing.assert_close(layer.eval()(x), in_double.float(), rtol=0, atol=1e-5)
    state = {name: value.clone() for name, value in frozen.state_dict().items()}
    frozen.load_state_dict(state)
    assert torch.equal(frozen.to(torch.float64)(x.double()), in_double)


@pytest.mark.parametrize("stride", [1, 2])
def test_circular_bound_covers_any_kernel(stride: int) -> None:
    layer = CircularConv2d(torch.randn(3, 2 * stride**2, 3, 3, dtype=torch.float64), None, stride=stride)
    truth = float(torch.linalg.matrix_norm(dense_matrix(layer, (2, 4, 6)), 2))
    assert truth <= layer.lipschitz_bound((2, 4, 6)) * (1 + 1e-13) <= truth * (1 + 1e-4)


@pytest.mark.parametrize("pixels", [(2, 2), (3, 4), (4, 3)])
def test_spectral_bound_covers_matrices_that_are_no_exact_conjugates(pixels: tuple[int, int]) -> None:
    height, width = pixels
    real = height <= 2 and width <= 2
    spectrum = torch.randn(height * (width // 2 + 1), 3, 2, dtype=torch.float64 if real else torch.complex128)
    layer = SpectralConv2d(spectrum, None, map_size=pixels)
    truth = float(torch.linalg.matrix_norm(dense_matrix(layer, (2, *pixels)), 2))
    assert truth <= layer.lipschitz_bound((2, *pixels)) * (1 + 1e-13)


def test_linear_bound() -> None:
    layer = FrozenLinear(torch.diag(torch.tensor([1.0, 3.0])), torch.ones(2))
    assert layer.lipschitz_bound((2,)) == pytest.approx(3, rel=1e-4)
    assert layer.lipschitz_bound((2,)) >= 3
    assert layer(torch.ones(2)).tolist() == [2, 4]


def test_a_buffer_is_a_copy() -> None:
    layer = BCOP(2, 2, 1)
    frozen = layer.freeze((2, 3, 3))
    before = frozen(torch.ones(1, 2, 3, 3))
    with torch.no_grad():
        layer.weight.neg_()
        layer.bias.add_(1)  # type: ignore[union-attr]
    assert torch.equal(frozen(torch.ones(1, 2, 3, 3)), before)


@pytest.mark.parametrize(
    ("layer", "x", "message"),
    [
        (CircularConv2d(torch.ones(1, 2, 3, 3), None), torch.ones(2, 4, 4), "expected a batch of maps"),
        (CircularConv2d(torch.ones(1, 2, 3, 3), None), torch.ones(1, 3, 4, 4), "expected maps of 2 channels"),
        (
            CircularConv2d(torch.ones(1, 4, 1, 1), None, stride=2),
            torch.ones(1, 1, 3, 4),
            "size divisible by 2",
        ),
        (
            SpectralConv2d(torch.ones(4, 1, 1), None, map_size=(2, 2)),
            torch.ones(1, 1, 4, 2),
            "frozen for maps of 2x2, got 4x2; freeze the layer for that size",
        ),
        (FrozenLinear(torch.ones(1, 2), None), torch.ones(1, 3), "expected vectors of 2 features"),
    ],
)
def test_refusals(layer: torch.nn.Module, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        layer(x)
