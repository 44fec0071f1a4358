"""Linear layers with orthonormal rows or columns, by all three methods."""

import copy

import pytest
import torch

from lipcert.errors import ArgumentError
from lipcert.nn.linear import METHODS, OrthogonalLinear

SIZES = [(1, 1), (4, 4), (6, 3), (3, 6), (5, 1), (1, 5)]
every_method = pytest.mark.parametrize("method", METHODS)


def defect(matrix: torch.Tensor) -> float:
    return float((torch.linalg.svdvals(matrix.detach().double()) - 1).abs().max())


@every_method
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrix_is_orthonormal_after_steps(
    method: str, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    layer = OrthogonalLinear(inputs, outputs, method=method, dtype=dtype)
    assert layer.matrix().shape == (outputs, inputs)
    assert defect(layer.matrix()) <= layer.orthogonality_error
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(20):
        optimiser.zero_grad()
        layer(torch.randn(8, inputs, dtype=dtype)).sub(1).square().mean().backward()
        optimiser.step()
    assert defect(layer.matrix()) <= layer.orthogonality_error


def test_soc_is_the_exponential_of_the_normalised_skew_part() -> None:
    layer = OrthogonalLinear(5, 3, method="soc", bias=False, dtype=torch.float64)
    weight = layer.weight.detach()
    skew = (weight - weight.T) / 2
    expected = torch.matrix_exp(skew / torch.linalg.matrix_norm(skew, 2))[:3]
    # Five dimensions fit into the block of the norm's iteration, which is then exact.
    torch.testing.assert_close(layer.matrix().detach(), expected, rtol=0, atol=1e-12)


@every_method
def test_gradients(method: str) -> None:
    layer = OrthogonalLinear(4, 3, method=method, dtype=torch.float64)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def output(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), x)

    assert torch.autograd.gradcheck(output, (x, *layer.parameters()))


@every_method
def test_training_evaluation_frozen_and_copies_agree(method: str) -> None:
    layer = OrthogonalLinear(6, 4, method=method)
    x = torch.randn(3, 6)
    expected = layer(x)
    other = OrthogonalLinear(6, 4, method=method)
    other.load_state_dict(layer.state_dict())
    forms = [copy.deepcopy(layer).eval(), layer.freeze((6,)).apply, other.eval()]
    with torch.no_grad():
        results = [form(x) for form in forms]
    assert all(torch.equal(result, expected) for result in results)


@every_method
def test_cache_follows_the_weights(method: str) -> None:
    layer = OrthogonalLinear(6, 4, method=method).eval()
    x = torch.randn(3, 6)

    with torch.no_grad():
        before = layer(x)
        assert torch.equal(layer(x), before)
        layer.weight.data[0, 1] += 0.5
        after = layer(x)
        assert not torch.equal(after, before)
        assert torch.equal(layer.train()(x), after)


@every_method
def test_evaluation_with_gradients_trains_the_weights(method: str) -> None:
    layer = OrthogonalLinear(6, 4, method=method).eval()
    with torch.no_grad():
        layer(torch.ones(1, 6))
    layer(torch.randn(3, 6)).square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_a_matrix_made_in_inference_mode_serves_a_later_attack() -> None:
    layer = OrthogonalLinear(6, 4).eval().requires_grad_(False)
    with torch.inference_mode():
        layer(torch.ones(1, 6))
    x = torch.ones(1, 6, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None


@every_method
def test_bound_is_proved_and_tight(method: str) -> None:
    layer = OrthogonalLinear(7, 3, method=method)
    truth = float(torch.linalg.matrix_norm(copy.deepcopy(layer).double().matrix().detach(), 2))
    bound = layer.lipschitz_bound((7,))
    assert truth <= bound * (1 + 1e-13) <= 1 + 1e-10


@every_method
def test_autocast_applies_a_float32_matrix_in_bfloat16(method: str) -> None:
    layer = OrthogonalLinear(6, 4, method=method)
    x = torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.matrix().dtype == torch.float32
        y = layer(x)
    assert y.dtype == torch.bfloat16
    # Inputs, matrix, bias and output are rounded once each; sums of six products of numbers of order 1.
    torch.testing.assert_close(y.float(), layer(x), rtol=0, atol=6 * torch.finfo(torch.bfloat16).eps)


@every_method
def test_half_precision_weights(method: str) -> None:
    layer = OrthogonalLinear(6, 4, method=method, dtype=torch.bfloat16)
    assert layer(torch.ones(2, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OrthogonalLinear(0, 3), "in_features: expected a positive integer, got 0"),
        (lambda: OrthogonalLinear(3, 2.5), "out_features: expected a positive integer, got 2.5"),
        (lambda: OrthogonalLinear(3, 3, method="bjork"), "did you mean 'bjorck'"),
        (lambda: OrthogonalLinear(3, 3)(torch.ones(2, 4)), "expected vectors of 3 features"),
        (lambda: OrthogonalLinear(3, 3)(torch.ones(2, 3).long()), "expected floating point input"),
    ],
)
def test_refusals(call: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()  # type: ignore[operator]


def test_repr_shows_the_arguments() -> None:
    text = repr(OrthogonalLinear(5, 2, method="cayley", bias=False))
    assert text == "OrthogonalLinear(5, 2, method='cayley', bias=False)"
