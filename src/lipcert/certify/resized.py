r"""What a radius on a resized picture means for the original.

The original is the decoded picture: 8 bits per channel, RGB, upright, on white.

The network's input is :math:`Y = A X A^T` for every channel X of the picture's centre square, then clipped to
[0, 1]; a grey network takes the weighted mean of the three. On pictures as vectors that is

- a cut: a projection, of norm 1. Pixels outside of the square do not matter at all;
- :math:`A \otimes A` once per channel, of norm :math:`\lVert A \rVert^2`;
- a mean with weights that are at least 0 and sum to 1: norm at most 1;
- clipping, which moves no two numbers apart.

So two originals at distance d become inputs at a distance of at most :math:`\lVert A \rVert^2 d`. What is
computed in float64 is off by at most E on either side, whence

.. math:: r_{\text{original}} = \frac{r - 2 E}{\lVert A \rVert^2} .

Nothing on the way is rounded to 8 bits: that would not be linear, and could move an input by half a level per
pixel, which is more than most radii.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from lipcert.proofs.rounding import down, gamma, product_up, sqrt_up, sum_up
from lipcert.proofs.spectral import matrix_norm_upper_bound


@dataclass(frozen=True)
class ResizeBound:
    """Bound on how much a resize can increase the distance between two pictures.

    Attributes:
        norm: proved upper bound on the norm of the linear map.
        rounding: E, proved bound on the l2 error of the computed result, for pixels in [0, 1].
    """

    norm: float
    rounding: float

    def radius_before(self, radius: float) -> float:
        """The radius in the original that a radius in the resized picture proves, rounded down.

        >>> ResizeBound(norm=0.5, rounding=0.0).radius_before(1.0)
        1.9999999999999996
        """
        if radius == math.inf:
            return math.inf
        left = down(radius - product_up(2.0, self.rounding))
        return max(down(left / self.norm), 0.0)


def bound_resize(matrix: Tensor, channels: int) -> ResizeBound:
    r"""Bound the map :math:`X \mapsto A X A^T`.

    With n columns and a the largest sum of absolute values in a row of A, an entry of the first product is at
    most a and errs by at most :math:`\gamma_n a`; the second one carries that on, times a, and adds
    :math:`\gamma_n a^2 (1 + \gamma_n)`. The mean of three channels has at most 4 roundings more. Together
    that is below :math:`3 \gamma_{n+8}\, a^2` per entry.

    Args:
        matrix: A, (size, side), float64.
        channels: of the network's input.
    """
    size, side = matrix.shape
    row = max(sum_up(*entries) for entries in matrix.abs().tolist())
    entry = product_up(3.0, gamma(side + 8), row, row)
    norm = matrix_norm_upper_bound(matrix)
    return ResizeBound(product_up(norm, norm), product_up(sqrt_up(channels * size * size), entry))
