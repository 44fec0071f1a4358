"""Cayley as a layer; what every convolution promises is in tests/contracts."""

import numpy as np
import pytest
import torch

from lipcert.errors import NotProvedError
from lipcert.nn.cayley import Cayley
from lipcert.operators import CircularConvolution, Sequence, SpaceToDepth, SpectralConvolution
from tests.contracts.dense import dense_jacobian, dense_matrix, rounding, worst_singular_value
from tests.reference.cayley import cayley
from tests.reference.frequencies import convolution_by_frequency

# in, out, kernel, stride, height, width
CASES = [
    (3, 3, 3, 1, 5, 4),
    (2, 5, 3, 1, 3, 3),
    (5, 2, 3, 1, 1, 1),
    (4, 4, 3, 1, 2, 2),
    (4, 3, 3, 1, 1, 2),
    (1, 1, 3, 1, 3, 5),
    (1, 3, 3, 1, 2, 4),
    (2, 3, 3, 2, 4, 6),
    (2, 12, 3, 2, 2, 2),
    (6, 4, 1, 1, 3, 2),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_jacobian_is_orthonormal(case: tuple[int, ...], training: bool, scale: float) -> None:
    inputs, outputs, kernel, stride, height, width = case
    layer = Cayley(inputs, outputs, kernel, stride=stride, dtype=torch.float64).train(training)
    with torch.no_grad():
        layer.scale.mul_(scale)
    jacobian = dense_jacobian(layer, (inputs, height, width))
    assert worst_singular_value(jacobian) <= layer.orthogonality_error + rounding(jacobian)


@pytest.mark.parametrize("case", [c for c in CASES if c[3] == 1], ids=str)
def test_every_frequency_is_transformed(case: tuple[int, ...]) -> None:
    inputs, outputs, kernel, _, height, width = case
    layer = Cayley(inputs, outputs, kernel, bias=False, dtype=torch.float64).eval()
    with torch.no_grad():
        layer.scale.fill_(2.0)
        scaled = 2 * layer.weight / layer.weight.norm()
        x = torch.randn(2, inputs, height, width, dtype=torch.float64)
        y = layer(x)
    expected = convolution_by_frequency(scaled.numpy(), x[1].numpy(), cayley)
    np.testing.assert_allclose(y[1].numpy(), expected, rtol=0, atol=1e-12)


def test_scale_starts_at_the_norm_of_the_kernel() -> None:
    layer = Cayley(3, 4, 3)
    torch.testing.assert_close(layer.scaled_kernel(), layer.weight)
    with torch.no_grad():
        layer.weight.mul_(7)
    assert float(layer.scaled_kernel().norm().detach()) == pytest.approx(
        float(layer.scale.detach()), rel=1e-6
    )


def test_stride_2_has_a_kernel_of_one_pixel() -> None:
    assert Cayley(3, 8, 3, stride=2).weight.shape == (8, 12, 1, 1)


@every_case
def test_training_evaluation_and_frozen_agree(case: tuple[int, ...]) -> None:
    inputs, outputs, kernel, stride, height, width = case
    layer = Cayley(inputs, outputs, kernel, stride=stride, dtype=torch.float64)
    x = torch.randn(3, inputs, height, width, dtype=torch.float64)
    trained = layer(x)
    with torch.no_grad():
        evaluated = layer.eval()(x)
    assert torch.equal(trained, evaluated)
    operator = layer.freeze((inputs, height, width))
    parts = operator.parts if isinstance(operator, Sequence) else (operator,)
    assert [type(part) for part in parts[:-1]] == [SpaceToDepth] * (stride - 1)
    assert isinstance(parts[-1], SpectralConvolution if kernel == 3 and stride == 1 else CircularConvolution)
    torch.testing.assert_close(operator.apply(x), evaluated, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_few_pixels_are_multiplied_without_the_matrix(dtype: torch.dtype) -> None:
    layer = Cayley(80, 160, 3, stride=2, dtype=torch.promote_types(dtype, torch.float32))
    x = torch.randn(3, 80, 2, 4, dtype=layer.weight.dtype)
    assert layer._few_pixels(x.view(3, 320, 1, 2))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        trained = layer(x)
        evaluated = layer.eval()(x)
    assert trained.dtype == evaluated.dtype == dtype
    # Products over 320 channels, of which few roundings add up; bfloat16 rounds the matrix, too.
    rounding = 32 * torch.finfo(dtype).eps if dtype != torch.bfloat16 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(trained, evaluated, rtol=rounding, atol=rounding)


def test_the_cache_knows_the_map_size() -> None:
    layer = Cayley(3, 4, 3, dtype=torch.float64).eval().requires_grad_(False)
    small, large = torch.randn(1, 3, 4, 3).double(), torch.randn(1, 3, 6, 5).double()
    first = [layer(small), layer(large)]
    again = [layer.train()(small), layer(large)]
    assert all(map(torch.equal, first, again))
    same_frequencies = torch.randn(1, 3, 4, 2).double()  # as many frequencies as the map of 4 x 3
    assert torch.equal(layer.eval()(same_frequencies), layer.train()(same_frequencies))


@pytest.mark.parametrize("shift", [(1, 0), (0, 1), (2, 3)])
def test_shifts_commute(shift: tuple[int, int]) -> None:
    layer = Cayley(3, 4, 3, dtype=torch.float64).eval()
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    moved = layer(x.roll(shift, (2, 3)))
    torch.testing.assert_close(moved, layer(x).roll(shift, (2, 3)), rtol=0, atol=1e-13)


@every_case
def test_gradients(case: tuple[int, ...]) -> None:
    inputs, outputs, kernel, stride, height, width = case
    layer = Cayley(inputs, outputs, kernel, stride=stride, dtype=torch.float64)
    x = torch.randn(1, inputs, height, width, dtype=torch.float64, requires_grad=True)

    def output(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "scale": scale}, x)

    assert torch.autograd.gradcheck(output, (x, layer.weight, layer.scale), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_runs_the_spectral_form_in_float32(dtype: torch.dtype) -> None:
    layer = Cayley(3, 4, 3)
    x = torch.randn(2, 3, 4, 4, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == dtype
    expected = layer(x.float())
    # Inputs in bfloat16 lose nothing; the output is rounded once, and once more with its bias.
    torch.testing.assert_close(
        y.float(), expected, rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps
    )


def test_weights_are_orthogonalised_once_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Cayley(3, 4, 3).eval().requires_grad_(False)
    first = layer(torch.ones(1, 3, 4, 4))
    monkeypatch.setattr(Cayley, "spectrum", None)  # a second orthogonalisation would fail
    assert torch.equal(layer(torch.ones(1, 3, 4, 4)), first)


def test_bound_is_proved_and_tight() -> None:
    layer = Cayley(3, 5, 3)
    bound = layer.lipschitz_bound((3, 3, 5))
    truth = float(torch.linalg.matrix_norm(dense_matrix(layer.double(), (3, 3, 5)), 2))
    assert truth <= bound * (1 + 1e-12)
    assert bound <= 1 + 1e-10


@pytest.mark.parametrize("scale", [1e8, float("inf"), float("nan")])
def test_a_scale_beyond_rounding_is_refused(scale: float) -> None:
    layer = Cayley(3, 3, 3)
    with torch.no_grad():
        layer.scale.fill_(scale)
    with pytest.raises(NotProvedError, match=r"Cayley has a scale that .* train with a smaller scale"):
        layer.lipschitz_bound((3, 4, 4))
