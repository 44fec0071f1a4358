"""Gram matrices and inverses by blocks, against LAPACK."""

import pytest
import torch

from lipcert.kernels.blocks import LEAF, accretive_inverse, gram, inverse_cholesky, times_lower_adjoint

SIZES = [1, LEAF, 2 * LEAF + 3, 4 * LEAF + 6]
DTYPES = [torch.float64, torch.complex128]
every_size = pytest.mark.parametrize("size", SIZES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])


@every_size
@every_dtype
def test_gram_matrix(size: int, dtype: torch.dtype) -> None:
    matrix = torch.randn(2, size, 40, dtype=dtype)
    torch.testing.assert_close(gram(matrix), matrix @ matrix.mH, rtol=0, atol=1e-12)


@every_size
@every_dtype
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_accretive_inverse(size: int, dtype: torch.dtype, scale: float) -> None:
    skew = scale * torch.randn(2, size, size, dtype=dtype) / size**0.5
    matrix = torch.eye(size, dtype=dtype) + skew - skew.mH
    defect = accretive_inverse(matrix) @ matrix - torch.eye(size)
    # The condition number is at most 1 + ||A||, and ||A|| is about 3 scale at most.
    assert float(defect.abs().max()) <= 32 * torch.finfo(dtype).eps * (1 + 3 * scale) * size**0.5


@every_size
@every_dtype
def test_inverse_cholesky(size: int, dtype: torch.dtype) -> None:
    matrix = torch.randn(2, size, 2 * size + 3, dtype=dtype) / size**0.5
    positive = matrix @ matrix.mH
    found = inverse_cholesky(positive)
    assert not found.triu(1).any()
    torch.testing.assert_close(
        found @ torch.linalg.cholesky(positive), torch.eye(size, dtype=dtype).expand(2, -1, -1)
    )


@every_size
@every_dtype
def test_product_with_a_triangle(size: int, dtype: torch.dtype) -> None:
    matrix, lower = torch.randn(2, 5, size, dtype=dtype), torch.randn(2, size, size, dtype=dtype).tril()
    torch.testing.assert_close(times_lower_adjoint(matrix, lower), matrix @ lower.mH, rtol=0, atol=1e-12)
