"""Block convolution orthogonal parametrisation: a k x k orthogonal convolution as a product of small factors.

Each factor moves one half of the channel space by one pixel and leaves the other half in place,

    (F y)(p) = (I - P) y(p) + P y(p - s),        P = U U^T,

with U of orthonormal columns and s one pixel down, up, right or left. On a torus F is orthogonal: P and I - P
are complementary projections and a shift is a permutation. A pair of factors, one per axis, is the 2 x 2
block convolution with taps PQ, P(I - Q), (I - P)Q, (I - P)(I - Q) of the reference below; k - 1 pairs and a
matrix H with orthonormal rows or columns make a k x k kernel. Pairs alternate between forward and backward
shifts, so the kernel is centred, and equal projections in consecutive pairs cancel to the identity.

Reference: Q. Li, S. Haque, C. Anil, J. Lucas, R. Grosse, J.-H. Jacobsen, Preventing gradient attenuation in
Lipschitz constrained convolutional networks, NeurIPS 2019, section 4 and appendix on block convolutions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def bcop_kernel(matrix: Tensor, bases: Tensor) -> Tensor:
    """The kernel of H and its factors, as circular cross-correlation.

    Kernels of growing size are multiplied by one factor after the other, each at the price of two matrix
    products with a half-rank basis.

    Args:
        matrix: H, (out, in), orthonormal rows or columns.
        bases: U of every factor, (2 (k - 1), c, r) with c = max(in, out), orthonormal columns; in the order
            in which the factors act on the wide side of H, alternating between vertical and horizontal.

    Returns:
        (out, in, k, k) with k = 1 + len(bases) / 2.
    """
    out_channels, in_channels = matrix.shape
    expands = in_channels <= out_channels
    # taps[i] holds, for each tap, row i of the kernel's transpose (expanding) or of the kernel: the factors'
    # side last.
    taps = (matrix.T if expands else matrix)[:, None, None, :]
    order = range(len(bases)) if expands else reversed(range(len(bases)))
    for index in order:
        moved = (taps @ bases[index]) @ bases[index].T
        low, high = (1, 0) if _shift(index) > 0 else (0, 1)
        axis = (0, 0) * (2 - index % 2)  # F.pad counts from the last axis: channels, columns, rows
        taps = F.pad(moved, (*axis, high, low)) + F.pad(taps - moved, (*axis, low, high))
    return taps.permute(3, 0, 1, 2) if expands else taps.permute(0, 3, 1, 2)


def bcop_transform(x: Tensor, matrix: Tensor, bases: Tensor) -> Tensor:
    """Apply H and its factors one by one to maps (N, in, H, W); the same map as `bcop_kernel` convolved.

    Costs 2 (k - 1) c^2 + in * out products per pixel and no kernel is built, which wins where maps are small
    and channels many.
    """
    out_channels, in_channels = matrix.shape
    y = x.permute(0, 2, 3, 1)
    if in_channels <= out_channels:
        y = y @ matrix.T
    for index, basis in enumerate(bases):
        half = y @ basis
        y = y + (torch.roll(half, _shift(index), 1 + index % 2) - half) @ basis.T
    if in_channels > out_channels:
        y = y @ matrix.T
    return y.permute(0, 3, 1, 2)


def _shift(index: int) -> int:
    """Pixels by which factor `index` moves its half: pairs go forward and back in turn."""
    return 1 if index // 2 % 2 == 0 else -1
