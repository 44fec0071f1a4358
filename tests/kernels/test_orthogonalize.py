"""Matrices with orthonormal rows or columns: polar factor, basis of a span, rotation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipcert.kernels.orthogonalize import (
    condition,
    orthonormal_basis,
    polar_factor,
    rotation,
    skew_norm_estimate,
)

SHAPES = [(1, 1), (4, 4), (5, 3), (3, 5), (1, 4), (7, 1)]


def tolerance(dtype: torch.dtype, size: int) -> float:
    """Rounding of products over `size` terms, with room for the constants of LAPACK."""
    return float(32 * torch.finfo(dtype).eps * size)


def defect(matrix: Tensor) -> float:
    """Largest |s - 1|, in float64."""
    return float((torch.linalg.svdvals(matrix.double()) - 1).abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_polar_factor_is_the_limit_of_bjorcks_iteration(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64)
    q = matrix / torch.linalg.matrix_norm(matrix, 2)
    for _ in range(200):
        q = 1.5 * q - 0.5 * q @ q.T @ q
    torch.testing.assert_close(polar_factor(matrix), q, rtol=0, atol=1e-12)


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    rank=st.integers(0, 12),
    exponent=st.integers(-30, 30),
    spread=st.integers(0, 12),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_polar_factor_is_orthonormal_for_any_matrix(
    rows: int, columns: int, rank: int, exponent: int, spread: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    weights = torch.logspace(0, -spread, rank, dtype=torch.float64)
    left = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(rank, columns, generator=generator, dtype=torch.float64)
    matrix = ((left * weights) @ right * 10.0**exponent).to(dtype)
    assert defect(polar_factor(matrix)) <= tolerance(dtype, 12)


def test_polar_factor_loses_nothing_through_the_gram_matrix() -> None:
    # Singular values from 1 to 0.04: just good enough for the Gram matrix, whose error without the last step
    # of Bjorck would be 600 roundings and more.
    left, right = orthonormal_basis(torch.randn(80, 60)), orthonormal_basis(torch.randn(60, 60))
    matrix = (left * torch.logspace(0, -1.4, 60)) @ right
    assert defect(polar_factor(matrix)) <= 8 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 4, 3)])
def test_polar_factor_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    matrix = torch.randn(shape, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(polar_factor, matrix)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_polar_factors_of_a_stack_are_those_of_its_matrices(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    stack = torch.randn(2, 3, *shape, dtype=dtype)
    stack[0, 1] = 0  # of no determined factor
    stack[1, 2, :, 0] = 1e-9 * stack[1, 2, :, 0]  # through a singular value decomposition
    factors = polar_factor(stack)
    left, _, right = torch.linalg.svd(stack, full_matrices=False)
    known = torch.ones(2, 3, dtype=torch.bool)
    known[0, 1] = False
    torch.testing.assert_close(factors[known], (left @ right)[known], rtol=0, atol=1e-6)
    known[1, 2] = False
    torch.testing.assert_close(factors[known], (left @ right)[known], rtol=0, atol=1e-12)
    singular = torch.linalg.svdvals(factors)
    assert float((singular - 1).abs().max()) <= tolerance(torch.float64, 5)


def test_condition_of_complex_matrices() -> None:
    left, right = (torch.linalg.qr(torch.randn(2, 4, 4, dtype=torch.complex128))[0] for _ in range(2))
    stack = (left * torch.tensor([4.0, 2.0, 1.0, 0.5])) @ right
    assert condition(stack) == pytest.approx(8)


def test_polar_factor_gradient_through_the_singular_value_decomposition() -> None:
    # Condition number 100: the Gram matrix's is 1e4, beyond what the fast path accepts.
    left, right = (
        polar_factor(torch.randn(5, 3, dtype=torch.float64)),
        polar_factor(torch.randn(3, 3).double()),
    )
    matrix = (left * torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)) @ right
    assert torch.autograd.gradcheck(polar_factor, matrix.requires_grad_(), eps=1e-7, atol=1e-4)


def test_polar_factor_gradient_of_a_singular_matrix_is_finite() -> None:
    matrix = torch.ones(4, 3, requires_grad=True)
    polar_factor(matrix).sum().backward()
    assert matrix.grad is not None
    assert matrix.grad.isfinite().all()


def test_polar_factor_ignores_scale_to_the_bit() -> None:
    matrix = torch.randn(6, 4)
    assert torch.equal(polar_factor(matrix), polar_factor(matrix * 2.0**-60))


@pytest.mark.parametrize("matrix", [torch.zeros(4, 2), torch.ones(5, 3), 1e-30 * torch.eye(3)], ids=str)
def test_basis_is_orthonormal_for_singular_matrices(matrix: Tensor) -> None:
    assert defect(orthonormal_basis(matrix)) <= tolerance(torch.float32, 5)


def test_basis_spans_the_columns() -> None:
    matrix = torch.randn(2, 6, 3, dtype=torch.float64)
    basis = orthonormal_basis(matrix)
    torch.testing.assert_close(basis @ basis.mT @ matrix, matrix, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_rotation_is_a_slice_of_the_exponential(rows: int, columns: int) -> None:
    size = max(rows, columns)
    weight = torch.randn(size, size, dtype=torch.float64)
    skew = (weight - weight.T) / 2
    full = torch.matrix_exp(skew / skew_norm_estimate(skew))
    result = rotation(weight, rows, columns)
    torch.testing.assert_close(result, full[:rows, :columns], rtol=0, atol=1e-13)
    assert defect(result) <= tolerance(torch.float64, size)


@pytest.mark.parametrize("size", [2, 3, 10, 64, 200])
@pytest.mark.parametrize("exponent", [-30, 0, 30])
def test_norm_estimate_is_close_and_from_below(size: int, exponent: int) -> None:
    weight = torch.randn(size, size, dtype=torch.float64) * 10.0**exponent
    skew = weight - weight.T
    true = torch.linalg.matrix_norm(skew, 2)
    ratio = float(skew_norm_estimate(skew) / true)
    # The Taylor polynomial of the rotation needs 2/3; the iteration gives far more.
    assert 0.9 <= ratio <= 1 + 1e-12


def test_norm_estimate_of_zero_leaves_the_identity() -> None:
    torch.testing.assert_close(rotation(torch.zeros(3, 3), 2, 3), torch.eye(2, 3), rtol=0, atol=0)


def test_rotation_gradient() -> None:
    # Four vectors span the whole space, so the norm has converged and its derivative is the true one.
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: rotation(w, 2, 4), weight)


@pytest.mark.parametrize("function", [polar_factor, orthonormal_basis, lambda w: rotation(w, 8, 8)])
def test_autocast_does_not_reach_the_orthogonalisation(function: object) -> None:
    weight = torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        result = function(weight)  # type: ignore[operator]
    assert result.dtype == torch.float32
    assert defect(result) <= tolerance(torch.float32, 8)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 6, 3)])
def test_condition_is_the_ratio_of_singular_values(shape):
    matrices = torch.randn(shape, dtype=torch.float64)
    values = torch.linalg.svdvals(matrices)
    assert condition(matrices) == pytest.approx(float((values[..., 0] / values[..., -1]).max()), rel=1e-9)


def test_condition_of_what_has_none():
    assert not condition(torch.zeros(3, 3)) < 1e7
    assert condition(torch.ones(3, 3)) > 1e7
    assert not condition(torch.full((2, 2), float("nan"))) < 1e7
    assert condition(torch.zeros(0, 3, 2)) == 1
    assert condition(1e-200 * torch.eye(3, dtype=torch.float64)) == pytest.approx(1)


@pytest.mark.parametrize("spread", [1.0, 30.0, 100.0, 1e4, 1e8])
def test_without_a_look_at_the_condition_no_singular_value_exceeds_one(spread: float) -> None:
    """What training computes: the polar factor of good matrices, a contraction of the others."""
    left, right = torch.linalg.qr(torch.randn(2, 8, 8, dtype=torch.float64)).Q
    matrix = (left * torch.logspace(0, -math.log10(spread), 8)) @ right
    found = polar_factor(matrix.float(), any_condition=False)
    exact = polar_factor(matrix.float())
    values = torch.linalg.svdvals(found.double())
    assert float(values[0]) <= 1 + 1e-4
    assert float(values[-1]) >= 0
    if spread <= 100:
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-4 if spread > 30 else 1e-5)
