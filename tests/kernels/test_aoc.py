"""Kernels with a stride against the product of taps that they stand for."""

from itertools import product

import pytest
import torch

from lipcert.kernels.aoc import grouped_kernel, strided_kernel
from lipcert.kernels.bcop import bcop_kernel
from lipcert.kernels.circular import circular_conv2d
from lipcert.kernels.orthogonalize import orthonormal_basis, polar_factor

ATOL = 100 * torch.finfo(torch.float64).eps


def parts(
    groups: int, outputs: int, channels: int, inputs: int, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """R, the matrix and the bases of every group."""
    spans = torch.randn(2 * (size - 2), groups, channels, channels // 2, dtype=torch.float64)
    return (
        polar_factor(torch.randn(groups, outputs, 4 * channels, dtype=torch.float64)),
        polar_factor(torch.randn(groups, channels, inputs, dtype=torch.float64)),
        orthonormal_basis(spans),
    )


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("channels", [(6, 4, 4), (16, 4, 3), (2, 3, 3)], ids=str)
def test_a_strided_kernel_has_the_taps_of_both_factors(size: int, channels: tuple[int, int, int]) -> None:
    (patches,), (matrix,), bases = parts(1, *channels, size)
    kernel = strided_kernel(patches, matrix, bases[:, 0])
    x = torch.randn(2, channels[2], 6, 4, dtype=torch.float64)
    taps, blocks = patches.view(*channels[:2], 2, 2), bcop_kernel(matrix, bases[:, 0])
    expected = torch.zeros(2, channels[0], 3, 2, dtype=torch.float64)
    for a, b, c, d in product(range(2), range(2), range(size - 1), range(size - 1)):
        moved = x.roll((size // 2 - a - c, size // 2 - b - d), (2, 3))[:, :, ::2, ::2]
        expected += torch.einsum("om,mi,nihw->nohw", taps[:, :, a, b], blocks[:, :, c, d], moved)
    torch.testing.assert_close(circular_conv2d(x, kernel, stride=2), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("strided", [True, False])
def test_groups_have_kernels_of_their_own(strided: bool) -> None:
    patches, matrix, bases = parts(3, 6, 4, 2, 3)
    kernel = grouped_kernel(patches if strided else None, matrix, bases)
    for group, own in enumerate(kernel.chunk(3)):
        alone = matrix[group], bases[:, group]
        expected = strided_kernel(patches[group], *alone) if strided else bcop_kernel(*alone)
        torch.testing.assert_close(own, expected, rtol=0, atol=ATOL)
