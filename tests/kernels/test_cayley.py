"""The Cayley transform: hand-computed, against numpy, its gradient, and its numerical range."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.kernels.cayley import cayley_product, cayley_transform
from tests.reference import cayley as reference

SHAPES = [(1, 1), (3, 3), (5, 3), (3, 5), (1, 4), (4, 1)]
DTYPES = [torch.float64, torch.complex128]


@pytest.mark.parametrize("angle", [0.0, 0.3, -1.2, 3.0])
def test_plane_rotations_by_hand(angle: float) -> None:
    # A = [[0, 2t], [-2t, 0]] for U = [[0, t], [-t, 0]]; Cayley of it rotates by 2 atan(2t), clockwise.
    t = np.tan(angle / 2) / 2
    result = cayley_transform(torch.tensor([[0.0, t], [-t, 0.0]], dtype=torch.float64))
    expected = torch.tensor([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    torch.testing.assert_close(result, expected.double(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_matrix_of_a_stack_is_transformed(shape: tuple[int, int], dtype: torch.dtype) -> None:
    stack = torch.randn(2, 3, *shape, dtype=dtype)
    result = cayley_transform(stack)
    for i in range(2):
        for j in range(3):
            expected = reference.cayley(stack[i, j].numpy().astype(complex))
            np.testing.assert_allclose(result[i, j].numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient(shape: tuple[int, int], dtype: torch.dtype) -> None:
    stack = torch.randn(2, *shape, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(cayley_transform, stack)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), exponent=st.floats(-8, 4))
def test_orthonormal_at_any_scale(rows: int, columns: int, exponent: float) -> None:
    generator = torch.Generator().manual_seed(rows * 10 + columns)
    matrix = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    matrix *= 10.0**exponent / torch.linalg.matrix_norm(matrix, 2)
    singular = torch.linalg.svdvals(cayley_transform(matrix))
    # The condition number of I + A is at most (1 + a)^2.
    bound = 32 * torch.finfo(torch.float64).eps * (1 + 10.0**exponent) ** 2
    assert (singular - 1).abs().max() <= bound


def test_autocast_does_not_reach_the_transform() -> None:
    matrix = torch.randn(8, 5)
    with torch.autocast("cpu", torch.bfloat16):
        result = cayley_transform(matrix)
    assert torch.equal(result, cayley_transform(matrix))


WIDE = [(1, 1), (3, 3), (3, 5), (1, 4), (2, 7)]


@pytest.mark.parametrize("shape", WIDE)
def test_product_is_that_with_the_matrix(shape: tuple[int, int]) -> None:
    x, matrix = torch.randn(4, shape[1], dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(cayley_product(x, matrix), x @ cayley_transform(matrix).T, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", WIDE)
def test_gradient_of_the_product(shape: tuple[int, int]) -> None:
    x, matrix = torch.randn(4, shape[1], dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    assert torch.autograd.gradcheck(cayley_product, (x.requires_grad_(), matrix.requires_grad_()))


def test_product_of_batches() -> None:
    x, matrix = torch.randn(3, 2, 5), torch.randn(3, 5)
    together = torch.vmap(cayley_product, in_dims=(0, None))(x, matrix)
    torch.testing.assert_close(together, torch.stack([cayley_product(part, matrix) for part in x]))


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_large_matrices_are_orthonormal_in_single_precision(scale: float) -> None:
    matrix = torch.randn(300, 500)
    matrix *= scale / torch.linalg.matrix_norm(matrix, 2)
    singular = torch.linalg.svdvals(cayley_transform(matrix).double())
    # As `orthogonality_error` of the layer has it.
    assert (singular - 1).abs().max() <= (8 + 500**0.5) * torch.finfo(torch.float32).eps * (1 + scale) ** 2
