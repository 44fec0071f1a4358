"""Block reflectors against their formula, and their gradient."""

import pytest
import torch

from lipcert.kernels.reflector import block_reflector

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
# rows, columns, rank; the larger of the first two is the number of channels
SIZES = pytest.mark.parametrize("size", [(4, 4, 2), (5, 3, 2), (3, 6, 6), (1, 1, 1), (8, 8, 1)], ids=str)


@DTYPES
@SIZES
def test_it_is_a_slice_of_the_formula(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, rank = size
    channels = max(rows, columns)
    vectors = torch.randn(3, channels, rank, dtype=dtype)
    projection = vectors @ torch.linalg.inv(vectors.mH @ vectors) @ vectors.mH
    expected = torch.eye(channels, dtype=dtype) - 2 * projection
    result = block_reflector(vectors, rows, columns)
    torch.testing.assert_close(result, expected[:, :rows, :columns], rtol=0, atol=1e-9)
    assert float((torch.linalg.svdvals(result) - 1).abs().max()) <= 1e-14


@DTYPES
@SIZES
def test_gradient(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, rank = size
    vectors = torch.randn(2, max(rows, columns), rank, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: block_reflector(v, rows, columns), vectors)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30])
def test_a_singular_matrix_has_a_reflector_and_a_finite_gradient(value: float) -> None:
    vectors = torch.full((4, 2), value, requires_grad=True)
    result = block_reflector(vectors, 4, 4)
    assert float((torch.linalg.svdvals(result.detach()) - 1).abs().max()) <= 1e-6
    result[0, 1].backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_the_length_of_the_vectors_does_not_matter() -> None:
    vectors = torch.randn(6, 3)
    torch.testing.assert_close(block_reflector(vectors, 6, 6), block_reflector(vectors * 1e-12, 6, 6))
