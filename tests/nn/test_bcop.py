"""BCOP as a layer; what every convolution promises is in tests/contracts."""

import pytest
import torch

from lipcert.kernels.circular import circular_conv2d
from lipcert.kernels.polar import TRAINING_ERROR
from lipcert.nn.bcop import BCOP
from tests.contracts.dense import dense_jacobian, dense_matrix, rounding, worst_singular_value

# in, out, kernel, stride, height, width
CASES = [
    (3, 3, 3, 1, 5, 4),
    (2, 5, 5, 1, 3, 3),
    (5, 2, 5, 1, 1, 1),
    (4, 4, 3, 1, 2, 2),
    (1, 1, 3, 1, 3, 5),
    (1, 3, 3, 1, 2, 1),
    (2, 3, 3, 2, 4, 6),
    (6, 4, 1, 1, 3, 2),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
@pytest.mark.parametrize("training", [True, False])
def test_jacobian_is_orthonormal(case: tuple[int, ...], training: bool) -> None:
    inputs, outputs, kernel, stride, height, width = case
    layer = BCOP(inputs, outputs, kernel, stride=stride, dtype=torch.float64).train(training)
    with torch.no_grad():
        layer.bases.add_(torch.randn_like(layer.bases))
        layer.weight.add_(torch.randn_like(layer.weight))
    jacobian = dense_jacobian(layer, (inputs, height, width))
    assert worst_singular_value(jacobian) <= layer.orthogonality_error + rounding(jacobian)


@every_case
def test_training_evaluation_and_frozen_agree(case: tuple[int, ...]) -> None:
    inputs, outputs, kernel, stride, height, width = case
    layer = BCOP(inputs, outputs, kernel, stride=stride, dtype=torch.float64)
    x = torch.randn(3, inputs, height, width, dtype=torch.float64)
    trained = layer(x)
    with torch.no_grad():
        evaluated = layer.eval()(x)
    # The routes differ in the order of at most 9 products of orthonormal matrices.
    torch.testing.assert_close(trained, evaluated, rtol=0, atol=1e-13)
    assert torch.equal(layer.freeze((inputs, height, width)).apply(x), evaluated)


@pytest.mark.parametrize("case", [(2, 3, 3, 4, 4), (3, 2, 3, 4, 4), (4, 16, 3, 20, 20)], ids=str)
def test_both_training_routes_are_taken_and_agree(case: tuple[int, ...]) -> None:
    inputs, outputs, kernel, height, width = case
    layer = BCOP(inputs, outputs, kernel, dtype=torch.float64)
    x = torch.randn(2, inputs, height, width, dtype=torch.float64)
    assert layer._by_factors(x) == (case[0] != 4)
    expected = circular_conv2d(x, layer.kernel()) + layer.bias.view(1, -1, 1, 1)  # type: ignore[union-attr]
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shift", [(1, 0), (0, 1), (2, 3)])
def test_shifts_commute(shift: tuple[int, int]) -> None:
    layer = BCOP(3, 4, 3, dtype=torch.float64).eval()
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    moved = layer(x.roll(shift, (2, 3)))
    torch.testing.assert_close(moved, layer(x).roll(shift, (2, 3)), rtol=0, atol=1e-13)


@every_case
def test_gradients(case: tuple[int, ...]) -> None:
    inputs, outputs, kernel, stride, height, width = case
    layer = BCOP(inputs, outputs, kernel, stride=stride, dtype=torch.float64)
    x = torch.randn(1, inputs, height, width, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        layer.bases.add_(0.3 * torch.randn_like(layer.bases))

    def output(x: torch.Tensor, weight: torch.Tensor, bases: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bases": bases}, x)

    assert torch.autograd.gradcheck(output, (x, layer.weight, layer.bases), fast_mode=True)


def test_steps_keep_it_orthogonal_in_float32() -> None:
    layer = BCOP(4, 6, 3)
    optimiser = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    target = torch.randn(8, 6, 4, 4)
    for _ in range(20):
        optimiser.zero_grad()
        loss = (layer(torch.randn(8, 4, 4, 4)) - target).square().mean()
        loss.backward()
        optimiser.step()
    # Weights in float32, the Jacobian of the finished kernel in float64.
    operator = layer.freeze((4, 4, 4)).to(dtype=torch.float64)
    assert worst_singular_value(dense_matrix(operator.apply, (4, 4, 4))) <= layer.orthogonality_error


def test_weights_are_orthogonalised_once_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = BCOP(3, 4, 3).eval().requires_grad_(False)
    first = layer(torch.ones(1, 3, 4, 4))
    monkeypatch.setattr(BCOP, "kernel", None)  # a second orthogonalisation would fail
    assert torch.equal(layer(torch.ones(1, 3, 4, 4)), first)


def test_bound_is_proved_and_tight() -> None:
    layer = BCOP(3, 5, 3, stride=2)
    bound = layer.lipschitz_bound((3, 6, 4))
    truth = float(torch.linalg.matrix_norm(dense_matrix(layer.double(), (3, 6, 4)), 2))
    assert truth <= bound * (1 + 1e-12)
    assert bound <= 1 + 1e-10


def test_half_precision_weights() -> None:
    layer = BCOP(3, 4, 3, dtype=torch.bfloat16)
    x = torch.randn(2, 3, 4, 4, dtype=torch.bfloat16)
    assert layer(x).dtype == torch.bfloat16
    assert layer.eval()(x).dtype == torch.bfloat16


@pytest.mark.parametrize("case", [(64, 140, 3, 2), (260, 300, 1, 1), (300, 260, 3, 1)], ids=str)
@pytest.mark.parametrize("batch", [1, 40])
def test_large_layers_train_close_to_what_is_evaluated(case: tuple[int, ...], batch: int) -> None:
    inputs, outputs, kernel, stride = case
    layer = BCOP(inputs, outputs, kernel, stride=stride)
    with torch.no_grad():  # condition numbers of some 3
        layer.bases.add_(0.5 * torch.randn_like(layer.bases) / layer.bases.shape[-2] ** 0.5)
        layer.weight.add_(0.5 * torch.randn_like(layer.weight) / max(layer.weight.shape) ** 0.5)
    x = torch.randn(batch, inputs, 4, 4)
    trained = layer(x)
    with torch.no_grad():
        evaluated = layer.eval()(x)
    assert float((trained - evaluated).norm().detach()) <= TRAINING_ERROR * float(evaluated.norm())


def test_large_layers_train_in_the_precision_of_autocast() -> None:
    layer = BCOP(64, 140, 3, stride=2)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.randn(2, 64, 4, 4))
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())
