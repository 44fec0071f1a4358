"""Block convolutions against the authors' form, and the two ways of applying them against each other."""

import numpy as np
import pytest
import torch

from lipcert.kernels.bcop import bcop_kernel, bcop_transform
from lipcert.kernels.circular import circular_conv2d
from lipcert.kernels.orthogonalize import orthonormal_basis, polar_factor
from tests.reference import bcop as reference

# A few products of orthonormal matrices of at most 6 channels: errors stay below a hundred roundings.
ATOL = 100 * torch.finfo(torch.float64).eps
SIZES = [(4, 6, 3), (6, 4, 3), (5, 5, 3), (3, 2, 5), (2, 3, 5), (1, 1, 3), (1, 4, 3), (4, 4, 1)]


def factors(outputs: int, inputs: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """H, raw spans and their orthonormal bases."""
    matrix = polar_factor(torch.randn(outputs, inputs, dtype=torch.float64))
    channels = max(outputs, inputs)
    spans = torch.randn(2 * (size - 1), channels, channels // 2, dtype=torch.float64)
    return matrix, spans, orthonormal_basis(spans)


@pytest.mark.parametrize(("outputs", "inputs", "size"), SIZES)
def test_kernel_is_the_product_of_blocks(outputs: int, inputs: int, size: int) -> None:
    matrix, spans, bases = factors(outputs, inputs, size)
    kernel = bcop_kernel(matrix, bases).numpy()
    assert kernel.shape == (outputs, inputs, size, size)
    taps = reference.bcop(matrix.numpy(), spans.numpy())
    half = size // 2
    for down in range(-half, half + 1):
        for right in range(-half, half + 1):
            expected = taps.get((down, right), np.zeros((outputs, inputs)))
            np.testing.assert_allclose(kernel[:, :, down + half, right + half], expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize(("outputs", "inputs", "size"), SIZES)
@pytest.mark.parametrize("pixels", [(5, 4), (2, 3), (2, 2), (1, 1)])
def test_kernel_and_factors_do_the_same(
    outputs: int, inputs: int, size: int, pixels: tuple[int, int]
) -> None:
    matrix, spans, bases = factors(outputs, inputs, size)
    x = torch.randn(2, inputs, *pixels, dtype=torch.float64)
    by_factors = bcop_transform(x, matrix, bases)
    torch.testing.assert_close(circular_conv2d(x, bcop_kernel(matrix, bases)), by_factors, rtol=0, atol=ATOL)
    slowly = reference.circular(reference.bcop(matrix.numpy(), spans.numpy()), x[0].numpy())
    np.testing.assert_allclose(by_factors[0].numpy(), slowly, rtol=0, atol=ATOL)


def test_equal_projections_in_consecutive_pairs_cancel() -> None:
    matrix, _, bases = factors(6, 6, 3)
    # The second pair undoes the first only if the axes commute, so both axes take the same projection.
    kernel = bcop_kernel(matrix, bases[:1].expand(4, -1, -1))
    expected = torch.zeros_like(kernel)
    expected[:, :, 1, 1] = matrix
    torch.testing.assert_close(kernel, expected, rtol=0, atol=ATOL)
