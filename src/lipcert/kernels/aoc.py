"""Adaptive orthogonal convolutions: block convolutions followed by a strided patch matrix, as one kernel.

An s x s patch matrix R, applied with stride s, reads every pixel once, so it is orthogonal on a torus that s
divides if R has orthonormal rows or columns. Behind block convolutions B of size k - s + 1 at full
resolution, see `lipcert.kernels.bcop`, it makes a k x k kernel of stride s,

    y(p) = sum over taps a, b of R[a] B[b] x(s p + d (a + b)),

which is orthogonal as the product of two such maps. With dilation d a shift by one pixel becomes one by d,
again a permutation, and the patches of R still are a partition of the pixels if s and d have no common
divisor.

Reference: T. Boissin, F. Mamalet, T. Fel, A. M. Picard, T. Massena, M. Serrurier, An adaptive orthogonal
convolution scheme for efficient and flexible CNN architectures, 2025.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.kernels.bcop import bcop_kernel


def strided_kernel(patches: Tensor, matrix: Tensor, bases: Tensor) -> Tensor:
    """The kernel of R and the block convolutions in front of it, for circular cross-correlation at stride s.

    Args:
        patches: R, (out, c s^2), orthonormal rows or columns, channels before taps.
        matrix: (c, in) of the block convolutions, orthonormal columns.
        bases: of their factors, (2 (k - s), max(c, in), r), orthonormal columns; see `bcop_kernel`.

    Returns:
        (out, in, k, k).
    """
    blocks = bcop_kernel(matrix, bases)
    stride = round((patches.shape[1] / len(matrix)) ** 0.5)
    taps = patches.view(len(patches), len(matrix), stride, stride)
    # A transposed convolution adds the places of taps: the product of two kernels.
    return F.conv_transpose2d(blocks.transpose(0, 1), taps.transpose(0, 1)).transpose(0, 1)


def grouped_kernel(patches: Tensor | None, matrix: Tensor, bases: Tensor) -> Tensor:
    """The kernels of all groups below each other, (out, in / groups, k, k).

    Args:
        patches: as `strided_kernel` takes it, one per group; None for stride 1.
        matrix: (groups, c, in / groups).
        bases: (2 (k - s), groups, max(c, in / groups), r).
    """
    if patches is None:
        return torch.vmap(bcop_kernel, in_dims=(0, 1))(matrix, bases).flatten(0, 1)
    return torch.vmap(strided_kernel, in_dims=(0, 0, 1))(patches, matrix, bases).flatten(0, 1)
