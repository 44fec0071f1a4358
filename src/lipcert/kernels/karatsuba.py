r"""Zero-padded 3x3 convolutions of maps of 2x2 pixels by nine products of channels in place of sixteen.

Along one axis such a convolution is :math:`y_0 = T_0 x_0 + T_1 x_1,\ y_1 = T_{-1} x_0 + T_0 x_1`, four
products. Karatsuba's trick takes three, of weights that do not depend on x:

.. math:: y_0 = T_0 (x_0 + x_1) + (T_1 - T_0) x_1, \qquad y_1 = T_0 (x_0 + x_1) + (T_{-1} - T_0) x_0.

Along both axes that is nine. A map is held as the nine parts that meet a product: with s for the sum of two
pixels these are (s, s), (s, 1), (1, s), (1, 1), (1, 0) and, in the same order, the mirror images of the last
four. For a skew kernel the matrix of a mirror image is the negated transpose, so five are enough.

Differences of weights cost a binary digit, and two in the gradient of the taps, which training can spare. No
error bound is derived for it, so it is for bfloat16, in which nothing is certified.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lipcert.kernels.channels import add_channels
from lipcert.kernels.constants import constant

HELD, PARTS = 5, 9
PIXELS = [7, 8, 4, 3]
"""Where the four pixels of a map are among its parts."""


def karatsuba_pays(dtype: torch.dtype, size: int, height: int, width: int) -> bool:
    """Whether the maps are those of this file, and the numbers coarse enough."""
    return dtype == torch.bfloat16 and (size, height, width) == (3, 2, 2)


class _Tables(NamedTuple):
    """What acts on pixels: (9, 4) pixels -> parts, (4, 9) products -> pixels, (9, 9) products -> parts."""

    analysis: Tensor
    synthesis: Tensor
    both: Tensor


@constant(kept=8)
def _tables(dtype: torch.dtype, device: torch.device) -> _Tables:
    # Along one axis the parts are s, 1, 0, and their products reach both pixels, the first, the second.
    analysis = torch.tensor([[1, 1], [0, 1], [1, 0]], device="cpu")
    synthesis = torch.tensor([[1, 1, 0], [1, 0, 1]], device="cpu")
    order = [0, 1, 3, 4, 5, 2, 6, 8, 7]
    both_axes = torch.kron(analysis, analysis)[order], torch.kron(synthesis, synthesis)[:, order]
    tables = (*both_axes, both_axes[0] @ both_axes[1])
    return _Tables(*(table.to(device, dtype) for table in tables))


class KaratsubaOperator:
    """The convolution A of given taps, between maps that are held as parts, (9, N, channels).

    Everything here runs without gradient; `tap_gradient` has the one that counts.

    Args:
        taps: (5, c, c) of a skew 3x3 kernel, centre first.
        scale: what the taps are multiplied by, a tensor with one element.
    """

    def __init__(self, taps: Tensor, scale: Tensor | None = None) -> None:
        taps = taps.detach()
        self.channels = taps.shape[1]
        self.tables = _tables(taps.dtype, taps.device)
        centre, right, down_left, down, down_right = taps
        self.weight = weight = torch.empty_like(taps)
        weight[0] = centre
        torch.sub(right, centre, out=weight[1])
        torch.sub(down, centre, out=weight[2])
        torch.sub(down_right, down, out=weight[3]).sub_(weight[1])
        # The tap to the left is the negated transpose of that to the right.
        torch.sub(down_left, weight[2], out=weight[4]).add_(right.T.contiguous())
        if scale is not None:
            weight.mul_(scale)

    def enter(self, x: Tensor) -> Tensor:
        """(N, i, 2, 2) -> (9, N, i)."""
        n, i = x.shape[:2]
        pixels = x.permute(2, 3, 0, 1).reshape(4, n * i)
        return torch.mm(self.tables.analysis, pixels).view(PARTS, n, i)

    def apply(self, z: Tensor, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """Return factor * A z + sum of coefficient * map, with all channels."""
        products = self._products(z, self.channels, factor)
        result = torch.mm(self.tables.both, products.flatten(1)).view_as(products)
        for other, coefficient in added:
            add_channels(result, other, coefficient, dim=2)
        return result

    def finish(self, z: Tensor, keep: int, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """First `keep` channels of the same, as maps (N, keep, 2, 2)."""
        n = z.shape[1]
        pixels = torch.mm(self.tables.synthesis, self._products(z, keep, factor).flatten(1)).view(4, n, keep)
        for other, coefficient in added:
            add_channels(pixels, other[PIXELS], coefficient, dim=2)
        return pixels.view(2, 2, n, keep).permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)

    def _products(self, z: Tensor, keep: int, factor: float) -> Tensor:
        i = z.shape[2]
        result = z.new_empty(PARTS, z.shape[1], keep)
        held = self.weight[:, :keep, :i].transpose(1, 2)
        result[:HELD].baddbmm_(z[:HELD], held, beta=0, alpha=factor)
        result[HELD:].baddbmm_(z[HELD:], self.weight[1:, :i, :keep], beta=0, alpha=-factor)
        return result

    def tap_gradient(self, pairs: list[tuple[Tensor, Tensor, float]]) -> Tensor:
        """Gradient of the sum of factor * <outer, A inner> with respect to the held taps."""
        grad = self.weight.new_zeros(self.weight.shape)
        for outer, inner, factor in pairs:
            o, i = outer.shape[2], inner.shape[2]
            # A product reaches the pixels of the mirrored part.
            grad[0, :o, :i].addmm_(outer[0].T, inner[0], alpha=factor)
            grad[1:, :o, :i].baddbmm_(outer[HELD:].mT, inner[1:HELD], alpha=factor)
            grad[1:, :i, :o].baddbmm_(inner[HELD:].mT, outer[1:HELD], alpha=-factor)
        return _fold(grad)


def _fold(grad: Tensor) -> Tensor:
    """Gradient of the matrices -> that of the taps, by the transpose of how they are made. Uses it up."""
    centre, right, down, down_right, down_left = grad
    down.sub_(down_right).sub_(down_left)
    centre.sub_(right).sub_(down)
    right.sub_(down_right).add_(down_left.T.contiguous())
    return torch.stack([centre, right, down_left, down, down_right])
