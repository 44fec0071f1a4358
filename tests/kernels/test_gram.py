"""Gram matrices of kernels against dense ones, and the rescalings that rest on them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipcert.kernels.conv_norms import converged_vector, convolution_norm
from lipcert.kernels.gram import absolute_sums, almost_orthogonal, gram_taps


def dense(kernel: Tensor, height: int, width: int) -> Tensor:
    """The matrix of the zero-padded convolution, (out * H * W, in * H * W)."""
    count = kernel.shape[1] * height * width
    basis = torch.eye(count, dtype=kernel.dtype).view(count, -1, height, width)
    return F.conv2d(basis, kernel, padding=kernel.shape[-1] // 2).flatten(1).T


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_gram_taps_are_those_of_the_dense_product(size: int) -> None:
    kernel = numbers(3, 2, size, size, seed=size)
    side = 4 * size  # so large that the middle pixel sees no border
    matrix = dense(kernel, side, side)
    gram = (matrix @ matrix.T).view(3, side, side, 3, side, side)
    middle, reach = side // 2, size - 1
    taps = gram_taps(kernel)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            expected = gram[:, middle + dy, middle + dx, :, middle, middle]
            found = taps[:, :, dy % (2 * size - 1), dx % (2 * size - 1)]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@given(
    st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3, 5]), st.integers(1, 5), st.integers(0, 10**6)
)
def test_rescaled_kernels_have_norm_at_most_one(
    outputs: int, inputs: int, size: int, side: int, seed: int
) -> None:
    kernel = numbers(outputs, inputs, size, size, seed=seed)
    assert torch.linalg.matrix_norm(dense(almost_orthogonal(kernel), side, side), 2) <= 1 + 1e-12
    weights = numbers(outputs, seed=seed + 1).exp()
    scaled = kernel * absolute_sums(kernel, weights).rsqrt().view(-1, 1, 1, 1)
    assert torch.linalg.matrix_norm(dense(scaled, side, side), 2) <= 1 + 1e-12


def test_orthogonal_kernels_are_left_alone() -> None:
    kernel = torch.linalg.qr(numbers(6, 6, seed=0)).Q[:4].view(4, 6, 1, 1)
    torch.testing.assert_close(almost_orthogonal(kernel), kernel)
    torch.testing.assert_close(almost_orthogonal(kernel.transpose(0, 1)), kernel.transpose(0, 1))


def test_a_kernel_of_zeros_stays_one() -> None:
    assert not almost_orthogonal(torch.zeros(2, 3, 3, 3)).any()


@given(
    st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3, 5]), st.integers(1, 5), st.integers(0, 99)
)
def test_norms_converge_and_have_the_right_derivative(
    outputs: int, inputs: int, size: int, side: int, seed: int
) -> None:
    kernel = numbers(outputs, inputs, size, size, seed=seed).requires_grad_()
    norm, _ = convolution_norm(kernel, converged_vector(kernel, side, side), 1)
    reference = kernel.detach().clone().requires_grad_()
    singular = torch.linalg.svdvals(dense(reference, side, side))
    torch.testing.assert_close(norm, singular[0], rtol=1e-10, atol=0)
    if len(singular) < 2 or singular[1] < 0.99 * singular[0]:  # else there may be no derivative
        (found,) = torch.autograd.grad(norm, kernel)
        (expected,) = torch.autograd.grad(singular[0], reference)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
