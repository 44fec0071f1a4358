"""Proved distances between the rows of a matrix: what a margin rule divides by."""

import math

import torch
from torch import Tensor


def pair_distance_bounds(weight: Tensor) -> Tensor:
    """Proved upper bounds on the distances between the stored rows, in float64.

    Guarantee: with u = 2^-53, each of the D differences carries a relative error of at most u, their squares
    and the sum of D terms (in any order) at most (D + 2) u more, the root halves that and adds u; the factor
    1 + (D + 8) u' with u' = 2u covers it. Differences too small for their squares to be normal numbers
    (below 2^-511) are covered by sqrt(D) * 2^-510. Rows in a lower precision enter float64 exactly.

    Args:
        weight: (K, D), the rows as the head multiplies with them.
    """
    rows = weight.detach().double()
    # Differences first, then squares: the way through the Gram matrix cancels for rows that nearly agree.
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    features = weight.shape[1]
    factor = 1 + (features + 8) * torch.finfo(torch.float64).eps
    bounds = distances * factor + math.sqrt(features) * 2.0**-510
    return bounds.fill_diagonal_(0)
