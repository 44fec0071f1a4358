"""Polar factors of training: how far they are from the exact ones, and their gradients."""

import math

import pytest
import torch
from torch import Tensor

from lipcert.kernels.orthogonalize import orthonormal_basis, polar_factor
from lipcert.kernels.polar import (
    FACTORS,
    LARGEST_CONDITION,
    MARGIN,
    POLES,
    TRAINING_ERROR,
    polar_product,
    training_polar_factor,
)


def matrix_of(rows: int, columns: int, condition: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Singular values evenly spread from 3 down, on a logarithmic scale."""
    size = min(rows, columns)
    left = orthonormal_basis(torch.randn(rows, size, dtype=dtype))
    right = orthonormal_basis(torch.randn(columns, size, dtype=dtype))
    return 3 * (left * torch.logspace(0, -math.log10(condition), size, dtype=dtype)) @ right.T


def test_the_rational_function_is_the_inverse_root() -> None:
    x = torch.logspace(math.log10(1 / 120), 0, 10_001, dtype=torch.float64)
    function = sum(a / (x + c) for a, c in zip(FACTORS, POLES, strict=True))
    assert float((function * x.sqrt() - 1).abs().max()) <= 1.6e-3
    assert MARGIN * LARGEST_CONDITION**2 <= 120
    small = torch.linspace(0, 1 / 120, 1001, dtype=torch.float64)
    function = sum(a / (small + c) for a, c in zip(FACTORS, POLES, strict=True))
    assert float((function * small.sqrt()).max()) <= 1  # what is lost shrinks


@pytest.mark.parametrize("shape", [(1, 1), (40, 40), (40, 70), (70, 40), (300, 400)])
@pytest.mark.parametrize("condition", [1.0, 3.0, LARGEST_CONDITION])
def test_training_factor_is_orthonormal_to_its_error(shape: tuple[int, int], condition: float) -> None:
    matrix = matrix_of(*shape, condition)
    found = training_polar_factor(matrix)
    assert float((torch.linalg.svdvals(found.double()) - 1).abs().max()) <= TRAINING_ERROR
    # Singular vectors are those of the matrix, so that the exact factor is as far away.
    assert float(torch.linalg.matrix_norm(found - polar_factor(matrix), 2)) <= TRAINING_ERROR


@pytest.mark.parametrize("condition", [30.0, 1e3, 1e6])
def test_training_factor_of_bad_matrices_is_a_contraction(condition: float) -> None:
    matrix = matrix_of(40, 60, condition).requires_grad_()
    found = training_polar_factor(matrix)
    values = torch.linalg.svdvals(found.detach().double())
    assert float(values[0]) <= 1 + TRAINING_ERROR
    found.square().sum().backward()
    assert matrix.grad is not None
    assert matrix.grad.isfinite().all()
    assert not training_polar_factor(torch.zeros(3, 5)).any()


@pytest.mark.parametrize("shape", [(3, 3), (3, 5), (5, 3)])
def test_gradient(shape: tuple[int, int]) -> None:
    # The derivative of r is that of the inverse root to 4.1e-2. The smallest singular value is 1, and so no
    # gradient is longer than what it comes from.
    matrix = matrix_of(*shape, 3.0, torch.float64).requires_grad_()
    direction = torch.randn(shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(training_polar_factor(matrix), matrix, direction)
    (exact,) = torch.autograd.grad(polar_factor(matrix), matrix, direction)
    assert float((found - exact).norm()) <= 0.05 * float(direction.norm())


@pytest.mark.parametrize("rows", [1, 6])
def test_product_and_its_gradient_are_those_with_the_factor(rows: int) -> None:
    x = torch.randn(rows, 9, dtype=torch.float64, requires_grad=True)
    matrix = matrix_of(5, 9, 4.0, torch.float64).requires_grad_()
    found, expected = polar_product(x, matrix), x @ training_polar_factor(matrix).T
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    direction = torch.randn_like(found)
    for mine, other in zip(
        torch.autograd.grad(found, (x, matrix), direction),
        torch.autograd.grad(expected, (x, matrix), direction),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def test_product_of_batches() -> None:
    x, matrix = torch.randn(3, 2, 9), matrix_of(5, 9, 2.0)
    together = torch.vmap(polar_product, in_dims=(0, None))(x, matrix)
    torch.testing.assert_close(together, torch.stack([polar_product(part, matrix) for part in x]))


def test_gradient_of_the_rational_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # With the scale held, as the gradient has it, the derivative is exact.
    import lipcert.kernels.polar as module

    matrix = matrix_of(4, 6, 3.0, torch.float64).requires_grad_()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(module, "POWER_STEPS", 0)  # the norm of the start vector
    assert torch.autograd.gradcheck(training_polar_factor, matrix)
    assert torch.autograd.gradcheck(polar_product, (x, matrix))
