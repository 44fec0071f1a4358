"""Block convolutions against the authors' form, and the two ways of applying them against each other."""

import numpy as np
import pytest
import torch

from lipcert.kernels.bcop import bcop_kernel, bcop_transform, half_shifts
from lipcert.kernels.circular import circular_conv2d
from lipcert.kernels.orthogonalize import condition, orthonormal_basis, polar_factor
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


@pytest.mark.parametrize("pixels", [(5, 6), (4, 3), (2, 2), (1, 2), (1, 1)])
def test_half_shifts_are_the_factors_of_the_spans(pixels: tuple[int, int]) -> None:
    _, spans, bases = factors(6, 6, 5)
    y = torch.randn(2, *pixels, 6, dtype=torch.float64)
    expected = bcop_transform(y.permute(0, 3, 1, 2), torch.eye(6, dtype=torch.float64), bases)
    # The diagonal of the Gram matrix is raised by 16 eps times its largest row sum, at most sqrt(3) times its
    # norm: so much, times the square of the condition number, for each of 8 factors.
    atol = 8 * 32 * torch.finfo(torch.float64).eps * condition(spans) ** 2 * float(y.abs().max())
    torch.testing.assert_close(half_shifts(y, spans), expected.permute(0, 2, 3, 1), rtol=0, atol=atol)
    assert torch.autograd.gradcheck(half_shifts, (y.requires_grad_(), bases.clone().requires_grad_()))
    bent = (bases + 0.1 * torch.randn_like(bases)).requires_grad_()
    assert torch.autograd.gradcheck(half_shifts, (y, bent), fast_mode=True)


def test_half_shifts_of_batches() -> None:
    y, spans = torch.randn(3, 2, 4, 2, 6), torch.randn(4, 6, 3)
    together = torch.vmap(half_shifts, in_dims=(0, None))(y, spans)
    torch.testing.assert_close(together, torch.stack([half_shifts(part, spans) for part in y]))


@pytest.mark.parametrize("spread", [1.0, 10.0, 1e3, 1e8])
def test_half_shifts_of_badly_conditioned_spans_are_contractions(spread: float) -> None:
    spans = orthonormal_basis(torch.randn(4, 400, 200)) * torch.logspace(0, -np.log10(spread), 200)
    y = torch.randn(3, 3, 3, 400).requires_grad_()
    result = half_shifts(y, spans.requires_grad_())
    gain = result.detach().norm() / y.detach().norm()
    assert gain <= 1 + 1e-5
    if spread <= 10:
        assert gain >= 1 - 4 * 32 * spread**2 * torch.finfo(torch.float32).eps
    result.square().sum().backward()
    assert spans.grad is not None
    assert spans.grad.isfinite().all()


def test_half_shifts_of_no_span_are_the_identity() -> None:
    y = torch.randn(2, 3, 3, 4)
    assert torch.equal(half_shifts(y, torch.zeros(4, 4, 2)), y)
