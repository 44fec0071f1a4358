"""Convolutions on a torus: circular padding, and the same map as one matrix per spatial frequency."""

import torch
import torch.nn.functional as F
from torch import Tensor


def circular_pad(x: Tensor, padding: int) -> Tensor:
    """Wrap the map around by `padding` pixels on each side, also when it is smaller than that.

    >>> circular_pad(torch.tensor([[[[1.0, 2.0]]]]), 2)[0, 0, 2].tolist()
    [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    """
    height, width = x.shape[-2:]
    if padding <= min(height, width):
        return F.pad(x, (padding,) * 4, mode="circular")
    # F.pad refuses to wrap more than once around the map; an index wraps as often as it has to.
    rows = torch.arange(-padding, height + padding, device=x.device) % height
    columns = torch.arange(-padding, width + padding, device=x.device) % width
    return x.index_select(-2, rows).index_select(-1, columns)


def pointwise(x: Tensor, matrix: Tensor) -> Tensor:
    """Apply a matrix (out, in) to every pixel of maps (N, in, H, W): one matrix product, no convolution.

    oneDNN's 1 x 1 convolution is up to three times slower than this on maps of one or two pixels.
    """
    batch, channels, height, width = x.shape
    # Flat, or torch would choose the product's form, and with it the bits, by whether gradients are wanted.
    pixels = x.permute(0, 2, 3, 1).reshape(-1, channels)
    return F.linear(pixels, matrix).view(batch, height, width, len(matrix)).permute(0, 3, 1, 2)


def circular_conv2d(x: Tensor, kernel: Tensor) -> Tensor:
    """Cross-correlate maps (N, in, H, W) with an odd kernel (out, in, k, k) on the torus of H x W pixels."""
    padding = kernel.shape[-1] // 2
    return F.conv2d(circular_pad(x, padding), kernel) if padding else pointwise(x, kernel[:, :, 0, 0])


def kernel_spectrum(kernel: Tensor, height: int, width: int) -> Tensor:
    """One matrix per frequency of `rfft2`: what `circular_conv2d` does to each Fourier coefficient.

        spectrum[u, v] = sum over taps d, e of kernel[:, :, d, e] exp(2 pi i (u d / height + v e / width)),

    taps counted from the kernel's middle. It is a product with a small Fourier matrix, not an FFT of the
    padded
    kernel: nothing of the map's size is stored beside the result, and a kernel larger than the map wraps.

    Args:
        kernel: (out, in, k, k), k odd.
        height: rows of the map.
        width: columns of the map.

    Returns:
        (height * (width // 2 + 1), out, in); complex, but real when the map is at most 2 x 2, where every
        frequency is its own conjugate.
    """
    out_channels, in_channels, size, _ = kernel.shape
    # In float64 on the CPU whatever the kernel's precision and device: some devices have no float64.
    taps = torch.arange(size, dtype=torch.float64, device="cpu") - size // 2
    down = torch.outer(torch.arange(height, dtype=torch.float64, device="cpu") / height, taps)
    right = torch.outer(torch.arange(width // 2 + 1, dtype=torch.float64, device="cpu") / width, taps)
    turns = down[:, None, :, None] + right[None, :, None, :]
    phase = (2 * torch.pi) * turns.reshape(-1, size * size)
    flat = kernel.reshape(out_channels * in_channels, size * size).T
    real = (torch.cos(phase).to(kernel) @ flat).reshape(-1, out_channels, in_channels)
    if height <= 2 and width <= 2:
        return real
    imaginary = (torch.sin(phase).to(kernel) @ flat).reshape(-1, out_channels, in_channels)
    return torch.complex(real, imaginary)


def spectral_conv2d(x: Tensor, spectrum: Tensor) -> Tensor:
    """Multiply every Fourier coefficient of maps (N, in, H, W) by its matrix of the spectrum.

    Equal to `circular_conv2d` up to rounding when the spectrum comes from `kernel_spectrum`.
    """
    batch, _, height, width = x.shape
    coefficients = torch.fft.rfft2(x).flatten(2).permute(2, 1, 0)
    if not spectrum.is_complex():
        product = spectrum @ coefficients.real
        product = torch.complex(product, torch.zeros_like(product))
    else:
        product = spectrum @ coefficients
    shape = (batch, spectrum.shape[1], height, width // 2 + 1)
    result: Tensor = torch.fft.irfft2(product.permute(2, 1, 0).reshape(shape), s=(height, width))
    return result
