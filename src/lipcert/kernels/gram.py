"""Gram matrices of convolutions, tap by tap, and rescalings that follow from them."""

import torch
from torch import Tensor

from lipcert.kernels.circular import kernel_spectrum
from lipcert.kernels.precision import at_least_single, without_autocast


def gram_taps(kernel: Tensor) -> Tensor:
    r"""Taps of K K^T for a convolution K: how much outputs a and b, so many pixels apart, have in common.

    The products run at the (2 k - 1)^2 frequencies of a torus on which the taps do not overlap, in place of
    all pairs of taps: six times fewer for 3 x 3.

    Args:
        kernel: (out, in, k, k), k odd.

    Returns:
        (out, out, 2 k - 1, 2 k - 1), offset 0 first, in at least single precision.

    >>> kernel = torch.tensor([[[[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 0.0]]]])
    >>> [round(tap) for tap in gram_taps(kernel)[0, 0, 0].tolist()]
    [5, 2, 0, 0, 2]
    """
    with without_autocast(kernel):
        kernel = at_least_single(kernel)
        side = 2 * kernel.shape[-1] - 1
        spectrum = kernel_spectrum(kernel, side, side)
        gram = spectrum @ spectrum.mH
        if side == 1:
            return gram.movedim(0, -1)[..., None]
        frequencies = gram.permute(1, 2, 0).reshape(*gram.shape[1:], side, side // 2 + 1)
        taps: Tensor = torch.fft.irfft2(frequencies, s=(side, side))
        return taps


def absolute_sums(kernel: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Sums over all outputs b and offsets of :math:`|K K^T|_{ab} w_b / w_a`, one for each output a.

    Their diagonal matrix is at least :math:`K K^T`, for every choice of positive weights: the difference is
    diagonally dominant after the change of basis diag(w). So K with row a divided by the root of sum a has
    norm at most 1. Zeros around a map only take entries away.

    Args:
        kernel: (out, in, k, k), k odd.
        weights: (out,), positive; 1 if left out.

    Reference: B. Prach and C. H. Lampert, Almost-orthogonal layers for efficient general-purpose Lipschitz
    networks, ECCV 2022; with weights: A. Araujo et al., A unified algebraic perspective on Lipschitz neural
    networks, ICLR 2023.
    """
    sizes = gram_taps(kernel).abs().sum(dim=(2, 3))
    return sizes.sum(dim=1) if weights is None else (sizes @ weights) / weights


def almost_orthogonal(kernel: Tensor) -> Tensor:
    """The kernel with every output channel (input channel, where those are fewer) rescaled: norm at most 1.

    >>> almost_orthogonal(torch.tensor([[3.0, 4.0]]).view(1, 2, 1, 1)).flatten()
    tensor([0.6000, 0.8000])
    """
    with without_autocast(kernel):
        wide = kernel.shape[0] <= kernel.shape[1]
        rows = at_least_single(kernel) if wide else at_least_single(kernel).transpose(0, 1)
        sums = absolute_sums(rows)
        scaled = rows * sums.clamp_min(torch.finfo(sums.dtype).tiny).rsqrt().view(-1, 1, 1, 1)
        return scaled if wide else scaled.transpose(0, 1)
