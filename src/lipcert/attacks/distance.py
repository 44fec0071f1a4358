"""Distances between images, exact where a verdict depends on them."""

from fractions import Fraction

import torch
from torch import Tensor


def l2_distances(images: Tensor, others: Tensor) -> Tensor:
    """Distances ||x_i - y_i|| in float64, (N,).

    Both are converted before they are subtracted: in float32 a distance of 0.3 reads 0.300000012, and a point
    on one side of a radius may be reported on the other. With d pixels the relative error is at most
    (d + 4) 2^-53.

    Args:
        images: (N, ...), any floating point type.
        others: the same shape.

    >>> l2_distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    tensor([5.], dtype=torch.float64)
    """
    distances: Tensor = torch.linalg.vector_norm((others.double() - images.double()).flatten(1), dim=1)
    return distances


def is_within(image: Tensor, other: Tensor, radius: float) -> bool:
    """Whether ||image - other|| <= radius, decided in rational arithmetic: no rounding takes part.

    For a verdict on one point; a batch of distances is `l2_distances`.

    >>> is_within(torch.zeros(2), torch.tensor([3.0, 4.0]), 5.0)
    True
    >>> is_within(torch.zeros(2), torch.tensor([3.0, 4.0]), 4.999999999999999)
    False
    """
    if radius < 0:
        return False
    if radius == float("inf"):
        return True
    pairs = zip(image.double().flatten().tolist(), other.double().flatten().tolist(), strict=True)
    squares = ((Fraction(b) - Fraction(a)) ** 2 for a, b in pairs)
    return sum(squares, Fraction(0)) <= Fraction(radius) ** 2
