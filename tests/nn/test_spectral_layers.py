"""LOT and BRO as layers; what every convolution promises is in tests/contracts."""

import numpy as np
import pytest
import torch

from lipcert.errors import ArgumentError, NotProvedError
from lipcert.nn.bro import BRO
from lipcert.nn.convolution import LipschitzConv2d
from lipcert.nn.lot import LOT
from lipcert.operators import CircularConvolution, Frame, Sequence, SpaceToDepth, SpectralConvolution
from tests.contracts.dense import dense_matrix, rounding, worst_singular_value
from tests.reference.frequencies import Matrix, convolution_by_frequency

# in, out, kernel, height, width
SIZES = [(3, 3, 3, 5, 4), (2, 5, 3, 3, 3), (5, 2, 3, 1, 2), (1, 1, 3, 3, 4), (4, 3, 1, 2, 3)]
every_size = pytest.mark.parametrize("size", SIZES, ids=str)
every_layer = pytest.mark.parametrize("kind", [LOT, BRO])


def polar(matrix: Matrix) -> Matrix:
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(left @ right)


@every_size
def test_lot_is_a_polar_factor_at_every_frequency(size: tuple[int, ...]) -> None:
    inputs, outputs, kernel, height, width = size
    layer = LOT(inputs, outputs, kernel, bias=False, dtype=torch.float64).eval()
    x = torch.randn(2, inputs, height, width, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.add_(0.1 * torch.randn_like(layer.weight))
        y = layer(x)
        expected = convolution_by_frequency(layer.weight.numpy(), x[1].numpy(), polar)
    np.testing.assert_allclose(y[1].numpy(), expected, rtol=0, atol=1e-11)


@every_size
@pytest.mark.parametrize("rank", [None, 1])
def test_bro_is_a_reflector_at_every_frequency_of_the_framed_map(
    size: tuple[int, ...], rank: int | None
) -> None:
    inputs, outputs, kernel, height, width = size
    layer = BRO(inputs, outputs, kernel, bias=False, rank=rank, dtype=torch.float64).eval()
    x = torch.randn(2, inputs, height, width, dtype=torch.float64)
    margin = kernel // 2

    def reflector(v: Matrix) -> Matrix:
        mirror = np.eye(len(v)) - 2 * v @ np.linalg.inv(v.conj().T @ v) @ v.conj().T
        return np.asarray(mirror[:outputs, :inputs])

    with torch.no_grad():
        y = layer(x)
        framed = np.pad(x[1].numpy(), ((0, 0), (margin, margin), (margin, margin)))
        expected = convolution_by_frequency(layer.weight.numpy(), framed, reflector)
    inside = expected[:, margin : margin + height, margin : margin + width]
    np.testing.assert_allclose(y[1].numpy(), inside, rtol=0, atol=1e-9)


def test_bro_is_orthogonal_only_without_a_frame() -> None:
    alone, framed = BRO(3, 4, 1, dtype=torch.float64), BRO(4, 4, 3, dtype=torch.float64)
    matrix = dense_matrix(alone.eval(), (3, 2, 3))
    assert worst_singular_value(matrix) <= rounding(matrix)
    singular = torch.linalg.svdvals(dense_matrix(framed.eval(), (4, 3, 3)))
    assert singular[-1] < 0.9 < singular[0] <= 1 + 1e-13


@every_layer
@pytest.mark.parametrize(
    ("kernel", "stride", "inner"), [(3, 1, SpectralConvolution), (1, 1, CircularConvolution),
                                    (3, 2, CircularConvolution)]
)  # fmt: skip
def test_training_evaluation_and_frozen_agree(
    kind: type[LipschitzConv2d], kernel: int, stride: int, inner: type
) -> None:
    layer = kind(3, 5, kernel, stride=stride, dtype=torch.float64)
    x = torch.randn(3, 3, 6, 4, dtype=torch.float64)
    trained = layer(x)
    with torch.no_grad():
        assert torch.equal(layer.eval()(x), trained)
    operator = layer.freeze((3, 6, 4))
    torch.testing.assert_close(operator.apply(x), trained, rtol=0, atol=1e-13)
    kinds = [type(part) for part in (operator.parts if isinstance(operator, Sequence) else (operator,))]
    framed = kind is BRO and inner is SpectralConvolution
    assert kinds == [SpaceToDepth] * (stride - 1) + ([Frame, inner, Frame] if framed else [inner])


@every_layer
def test_the_cache_knows_the_map_size(kind: type[LipschitzConv2d]) -> None:
    layer = kind(3, 4, 3, dtype=torch.float64).eval().requires_grad_(False)
    # As many frequencies in both.
    for pixels in ((4, 2), (4, 3)):
        x = torch.randn(1, 3, *pixels).double()
        assert torch.equal(layer(x), layer.train()(x))
        layer.eval()


@every_layer
@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_weights_that_determine_nothing_are_refused(kind: type[LipschitzConv2d], value: float) -> None:
    layer = kind(4, 4, 3)
    with torch.no_grad():
        layer.get_parameter("weight")[:, 0] = value
    with pytest.raises(NotProvedError, match=rf"{kind.__name__} has weights with a condition number of"):
        layer.freeze((4, 3, 3))


@every_layer
def test_the_length_of_the_kernel_does_not_matter(kind: type[LipschitzConv2d]) -> None:
    layer = kind(3, 4, 3, dtype=torch.float64)
    x = torch.randn(2, 3, 4, 4).double()
    before = layer(x)
    with torch.no_grad():
        layer.get_parameter("weight").mul_(1e-9)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rank", "message"),
    [(9, "rank: expected at most 8, as many as channels, got 9"), (0, "rank: expected a positive integer")],
)
def test_bad_ranks(rank: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BRO(8, 4, 3, rank=rank)


@every_layer
def test_half_precision_weights(kind: type[LipschitzConv2d]) -> None:
    layer = kind(3, 4, 3, dtype=torch.bfloat16)
    assert layer(torch.randn(2, 3, 4, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
