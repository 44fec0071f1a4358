"""Convolutions on a torus: circular padding, and the same map as one matrix per spatial frequency."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.kernels.constants import constant

SMALL_MAP = 4
"""Sides up to which a convolution on a CPU runs on maps in torch's own order of memory."""


def circular_pad(x: Tensor, padding: int, behind: int | None = None) -> Tensor:
    """Wrap the map around by `padding` pixels on each side, also when it is smaller than that.

    Args:
        x: maps.
        padding: pixels in front of the first row and column.
        behind: pixels behind the last ones, if not as many.

    >>> circular_pad(torch.tensor([[[[1.0, 2.0]]]]), 2)[0, 0, 2].tolist()
    [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    """
    height, width = x.shape[-2:]
    behind = padding if behind is None else behind
    if padding + behind <= min(height, width):
        # F.pad does the same, but its gradient takes three times as long: a map of zeros for every border.
        for axis in (-2, -1):
            sizes = [behind, x.shape[axis] - padding - behind, padding]
            first, middle, last = torch.split(x, sizes, axis)
            # An empty part would cost the order of memory.
            x = torch.cat([last, first, middle, last, first] if behind else [last, middle, last], axis)
        return x
    # An index wraps as often as it has to.
    rows = torch.arange(-padding, height + behind, device=x.device) % height
    columns = torch.arange(-padding, width + behind, device=x.device) % width
    return x.index_select(-2, rows).index_select(-1, columns)


def pointwise(x: Tensor, matrix: Tensor) -> Tensor:
    """Apply a matrix (out, in) to every pixel of maps (N, in, H, W): one matrix product, no convolution.

    oneDNN's 1 x 1 convolution is up to three times slower than this on maps of one or two pixels.
    """
    return on_pixels(x, lambda pixels: F.linear(pixels, matrix))


def on_pixels(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of (pixels, in) to maps (N, in, H, W)."""
    batch, channels, height, width = x.shape
    # Flat, or torch would choose the product's form, and with it the bits, by whether gradients are wanted.
    pixels = function(x.permute(0, 2, 3, 1).reshape(-1, channels))
    return pixels.view(batch, height, width, pixels.shape[1]).permute(0, 3, 1, 2)


def _channels_last(x: Tensor) -> Tensor:
    """The same maps in another order of memory; `torch.vmap` knows no memory formats."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def circular_conv2d(
    x: Tensor, kernel: Tensor, *, stride: int = 1, dilation: int = 1, groups: int = 1
) -> Tensor:
    """Cross-correlate maps (N, in, H, W) with an odd kernel on the torus of H x W pixels.

    Args:
        x: maps.
        kernel: (out, in / groups, k, k).
        stride: pixels from one output to the next; divides H and W.
        dilation: pixels from one tap to the next.
        groups: so many groups of channels, each with its own part of the kernel.
    """
    padding = dilation * (kernel.shape[-1] // 2)
    if not padding and stride == groups == 1:
        return pointwise(x, kernel[:, :, 0, 0])
    # Borders are long runs of memory where channels come last, and oneDNN prefers that order, but for the
    # smallest maps, which it convolves up to twice as fast in torch's own.
    small = x.device.type == "cpu" and max(x.shape[2:]) <= SMALL_MAP
    x = x.contiguous() if small else _channels_last(x)
    # The last output is at pixel H - stride, so that a stride spares pixels behind the last row and column.
    wrapped = circular_pad(x, padding, max(0, padding - stride + 1))
    return F.conv2d(wrapped, kernel, stride=stride, dilation=dilation, groups=groups)


def circular_conv_transpose2d(
    x: Tensor, kernel: Tensor, *, stride: int = 1, dilation: int = 1, groups: int = 1
) -> Tensor:
    """The adjoint of `circular_conv2d` with the same arguments: (N, out, H, W) -> (N, in, sH, sW).

    Pixel p of the input reaches pixels stride * p + dilation * (t - k // 2) of the output.
    """
    reach = dilation * (kernel.shape[-1] // 2)
    margin = -(-reach // stride)
    wrapped = circular_pad(_channels_last(x), margin) if margin else x
    # A single tap leaves pixels that nothing reaches, behind the last one that is written.
    behind = 0 if reach else stride - 1
    y = F.conv_transpose2d(
        wrapped, kernel, stride=stride, dilation=dilation, groups=groups, output_padding=behind
    )
    first, (height, width) = stride * margin + reach, x.shape[2:]
    return y[:, :, first : first + stride * height, first : first + stride * width]


def dense_kernel(kernel: Tensor, stride: int, dilation: int) -> Tensor:
    """The kernel without stride and dilation that does the same after a space-to-depth by `stride`.

    Tap t reads pixel stride * p + dilation * (t - k // 2) = stride * (p + q) + r, and so channel r of block
    p + q. Numbers are copied and zeros filled in, so this is exact.

    Args:
        kernel: (..., in, k, k), k odd.
        stride: pixels of a block.
        dilation: pixels from one tap to the next.

    Returns:
        (..., stride^2 in, K, K), K odd.

    >>> dense_kernel(torch.tensor([[[[1.0]]]]), 2, 1).flatten().tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    *outer, channels, size, _ = kernel.shape
    places = [divmod(dilation * (tap - size // 2), stride) for tap in range(size)]
    reach = max(abs(block) for block, _ in places)
    dense = kernel.new_zeros(*outer, channels, stride, stride, 2 * reach + 1, 2 * reach + 1)
    for y, (block_y, phase_y) in enumerate(places):
        for x, (block_x, phase_x) in enumerate(places):
            dense[..., phase_y, phase_x, reach + block_y, reach + block_x] = kernel[..., y, x]
    return dense.flatten(-5, -3)


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
    cosines, sines = _waves(height, width, size, kernel.dtype, kernel.device)
    flat = kernel.reshape(out_channels * in_channels, size * size).T
    real = (cosines @ flat).reshape(-1, out_channels, in_channels)
    if height <= 2 and width <= 2:
        return real
    imaginary = (sines @ flat).reshape(-1, out_channels, in_channels)
    return torch.complex(real, imaginary)


@constant(kept=64)
def _waves(
    height: int, width: int, size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every tap at every frequency, two matrices (frequencies, size * size)."""
    # In float64 on the CPU whatever the kernel's precision and device: some devices have no float64.
    taps = torch.arange(size, dtype=torch.float64, device="cpu") - size // 2
    down = torch.outer(torch.arange(height, dtype=torch.float64, device="cpu") / height, taps)
    right = torch.outer(torch.arange(width // 2 + 1, dtype=torch.float64, device="cpu") / width, taps)
    turns = down[:, None, :, None] + right[None, :, None, :]
    phase = (2 * torch.pi) * turns.reshape(-1, size * size)
    return torch.cos(phase).to(device, dtype), torch.sin(phase).to(device, dtype)


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
