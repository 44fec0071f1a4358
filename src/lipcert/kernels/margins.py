"""From logits and the head's weights to certificates: Proposition 1 of the paper, for any last layer."""

import math

import torch
from torch import Tensor

from lipcert.errors import ArgumentError


def pair_distances(weight: Tensor) -> Tensor:
    r"""Distances between the rows of a head, d_ij = ||W_i - W_j||_2.

    The differences are formed before they are squared. The faster way through the Gram matrix cancels for
    rows that nearly agree, which is where a distance that is too small would make a certificate too large.

    Args:
        weight: (K, D), one row per class.

    Returns:
        (K, K), symmetric, zero on the diagonal.

    >>> pair_distances(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor([[0., 5.],
            [5., 0.]])
    """
    if weight.dim() != 2:
        raise ArgumentError(f"weight: expected one row per class, (K, D), got shape {tuple(weight.shape)}")
    rows = weight if weight.dtype in (torch.float32, torch.float64) else weight.float()
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")


def pair_certificates(logits: Tensor, labels: Tensor, distances: Tensor) -> Tensor:
    r"""How far the features may move before class i overtakes the label l: (f_l - f_i) / d_li, signed.

    Infinite at i = l. Where d_li = 0 the difference of the two logits is a constant: infinite with the sign
    of that constant, and 0 for a tie. Differentiable in logits and distances.

    Args:
        logits: (N, K).
        labels: (N,), integer classes.
        distances: (K, K), distances between the rows of the head, or upper bounds on them.

    Returns:
        (N, K).
    """
    if logits.dim() != 2:
        raise ArgumentError(f"logits: expected a batch (N, K), got shape {tuple(logits.shape)}")
    count, classes = logits.shape
    if labels.shape != (count,) or labels.dtype != torch.int64:
        raise ArgumentError(
            f"labels: expected {count} int64 classes, one per row of the logits, "
            f"got shape {tuple(labels.shape)} of {labels.dtype}"
        )
    if distances.shape != (classes, classes):
        raise ArgumentError(
            f"distances: expected a matrix ({classes}, {classes}) for {classes} classes, "
            f"got shape {tuple(distances.shape)}"
        )
    try:
        gaps = logits.gather(1, labels[:, None]) - logits
    except (IndexError, RuntimeError) as error:
        # Torch looks at every label anyway; a look of our own would wait for the device at every step.
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest >= 0 and highest < classes:
            raise
        raise ArgumentError(
            f"labels: expected classes from 0 to {classes - 1}, got {lowest} to {highest}"
        ) from error
    steps = distances[labels]
    never = steps == 0
    # The division never sees a zero, so that its gradient stays finite where the constant case is chosen.
    ratios = gaps / steps.masked_fill(never, 1)
    constant = torch.where(gaps.detach() == 0, torch.zeros_like(ratios), gaps.detach() * math.inf)
    ratios = torch.where(never, constant, ratios)
    own = torch.arange(classes, device=labels.device) == labels[:, None]
    return ratios.masked_fill(own, math.inf)


def certificate(logits: Tensor, labels: Tensor, distances: Tensor) -> Tensor:
    r"""Certificate of the label, min over i != l of (f_l - f_i) / d_li; negative where another class wins.

    With one class no prediction can change, and the certificate is infinite.
    Proposition 1 of the paper.

    Args:
        logits: (N, K).
        labels: (N,), integer classes.
        distances: (K, K), from `pair_distances`, or sqrt(2) off the diagonal for orthonormal rows.

    Returns:
        (N,), in the units of the features that enter the head.

    >>> distances = pair_distances(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> certificate(torch.tensor([[2.0, -8.0]]), torch.tensor([0]), distances)
    tensor([2.])
    """
    return pair_certificates(logits, labels, distances).min(dim=1).values
