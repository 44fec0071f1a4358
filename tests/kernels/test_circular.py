"""Convolutions on the torus: padding by any amount, and the spectral form of the same map."""

import pytest
import torch

from lipcert.kernels.circular import (
    circular_conv2d,
    circular_pad,
    dense_kernel,
    kernel_spectrum,
    pointwise,
    spectral_conv2d,
)

PIXELS = [(1, 1), (1, 2), (2, 2), (2, 3), (3, 1), (4, 5), (5, 4), (6, 6)]


@pytest.mark.parametrize("pixels", PIXELS)
@pytest.mark.parametrize("padding", [1, 2, 7])
def test_padding_wraps_as_often_as_it_has_to(pixels: tuple[int, int], padding: int) -> None:
    x = torch.randn(2, 3, *pixels)
    padded = circular_pad(x, padding)
    height, width = pixels
    assert padded.shape == (2, 3, height + 2 * padding, width + 2 * padding)
    for row in range(padded.shape[2]):
        for column in range(padded.shape[3]):
            source = x[:, :, (row - padding) % height, (column - padding) % width]
            assert torch.equal(padded[:, :, row, column], source)


@pytest.mark.parametrize("pixels", [(2, 2), (4, 6), (6, 2)])
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (2, 3), (2, 2)])
def test_stride_and_dilation_are_a_dense_kernel_of_blocks(
    pixels: tuple[int, int], size: int, stride: int, dilation: int
) -> None:
    kernel = torch.randn(4, 3, size, size, dtype=torch.float64)
    x = torch.randn(2, 3, *pixels, dtype=torch.float64)
    y = circular_conv2d(x, kernel, stride=stride, dilation=dilation)
    blocks = torch.nn.functional.pixel_unshuffle(x, stride)
    dense = circular_conv2d(blocks, dense_kernel(kernel, stride, dilation))
    torch.testing.assert_close(y, dense, rtol=0, atol=1e-13)
    places = [dilation * (tap - size // 2) for tap in range(size)]
    expected = sum(
        torch.einsum("oi,nihw->nohw", kernel[:, :, i, j], x.roll((-down, -right), (2, 3)))
        for i, down in enumerate(places)
        for j, right in enumerate(places)
    )
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(y, expected[:, :, ::stride, ::stride], rtol=0, atol=1e-13)


@pytest.mark.parametrize("pixels", PIXELS)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_spectrum_and_kernel_are_the_same_map(pixels: tuple[int, int], size: int) -> None:
    kernel = torch.randn(4, 3, size, size, dtype=torch.float64)
    x = torch.randn(2, 3, *pixels, dtype=torch.float64)
    spectrum = kernel_spectrum(kernel, *pixels)
    assert spectrum.shape == (pixels[0] * (pixels[1] // 2 + 1), 4, 3)
    assert spectrum.is_complex() == (max(pixels) > 2)
    # 75 products of numbers of order 1 each, and transforms of at most 36 pixels.
    torch.testing.assert_close(spectral_conv2d(x, spectrum), circular_conv2d(x, kernel), rtol=0, atol=1e-12)


def test_spectrum_of_a_float32_kernel_has_float32_phases_of_full_accuracy() -> None:
    kernel = torch.zeros(1, 1, 5, 5)
    kernel[0, 0, 4, 4] = 1
    exact = kernel_spectrum(kernel.double(), 101, 99)
    assert (kernel_spectrum(kernel, 101, 99) - exact).abs().max() <= torch.finfo(torch.float32).eps


def test_pointwise_is_a_1x1_convolution() -> None:
    x, matrix = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    expected = torch.nn.functional.conv2d(x, matrix[:, :, None, None])
    torch.testing.assert_close(pointwise(x, matrix), expected, rtol=0, atol=1e-14)
