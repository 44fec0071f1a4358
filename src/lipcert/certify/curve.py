"""Accuracy with a guarantee, as a function of the radius, and radii in other norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from lipcert.errors import ArgumentError, check_positive

if TYPE_CHECKING:
    import numpy.typing as npt

RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255}
"""The radii of the paper's tables, in pixel units."""


def shown(radius: float, digits: int = 4) -> str:
    """A radius as text, rounded down, so that the printed number is certified too.

    >>> shown(0.12346), shown(0.12346, 3), shown(0.5), shown(1e30, 1)
    ('0.1234', '0.123', '0.5000', '1000000000000000019884624838656.0')
    """
    if not math.isfinite(radius):
        return str(radius)
    all_digits = Context(prec=400, rounding=ROUND_FLOOR)
    return str(Decimal(radius).quantize(Decimal(1).scaleb(-digits), context=all_digits))


def shown_bound(bound: float, digits: int = 9) -> str:
    """An upper bound as text with `digits` significant digits, rounded up, so that it is still a bound.

    >>> shown_bound(3.9888313209), shown_bound(1.0000001, 3), shown_bound(1.0)
    ('3.98883133', '1.01', '1')
    """
    if not math.isfinite(bound):
        return str(bound)
    return str(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(bound)))


class Certified(Protocol):
    """Predictions with their radii: `Certificates`, or anything that has read them back."""

    @property
    def prediction(self) -> Tensor:
        """(N,), classes."""

    @property
    def radius(self) -> Tensor:
        """(N,), pixel units."""


@dataclass(frozen=True)
class CertifiedAccuracy:
    """Shares of N images, from 0 to 1.

    Attributes:
        standard: classified correctly.
        certified: by radius, classified correctly with a certificate beyond it.
        count: N.
    """

    standard: float
    certified: dict[float, float]
    count: int

    def __getitem__(self, radius: float) -> float:
        return self.certified[radius]

    def __repr__(self) -> str:
        shares = ", ".join(f"{share:.2%} beyond {shown(radius)}" for radius, share in self.certified.items())
        certified = f", certified {shares}" if shares else ""
        return f"CertifiedAccuracy({self.count} images, {self.standard:.2%} right{certified})"


def certified_accuracy(
    certificates: Certified, labels: "Tensor | npt.ArrayLike", radii: Sequence[float] = tuple(RADII.values())
) -> CertifiedAccuracy:
    """Share of images that are classified correctly and certified beyond each radius.

    An image counts at radius r if its certificate is larger than r, as in the paper; so a tie counts nowhere,
    not even at r = 0.

    Args:
        certificates: from `certify`.
        labels: (N,), the true classes: a tensor, an array or a list of integers.
        radii: in pixel units; by default the paper's 36/255, 72/255 and 108/255.

    >>> from types import SimpleNamespace
    >>> cert = SimpleNamespace(prediction=torch.tensor([0, 1, 1]), radius=torch.tensor([0.2, 0.1, 0.9]))
    >>> accuracy = certified_accuracy(cert, torch.tensor([0, 1, 0]), radii=(0.1, 0.15))
    >>> round(accuracy.standard, 4), round(accuracy[0.15], 4)
    (0.6667, 0.3333)
    """
    labels = _check_labels(certificates, labels)
    if isinstance(radii, int | float):
        raise ArgumentError(f"radii: expected several numbers, got {radii!r}; use radii=({radii!r},)")
    for radius in radii:
        if not 0 <= radius < math.inf:
            raise ArgumentError(f"radii: expected finite radii of at least 0, got {radius!r}")
    correct = certificates.prediction.cpu() == labels
    held = certificates.radius.cpu().double()
    count = len(labels)
    return CertifiedAccuracy(
        standard=int(correct.sum()) / count,
        certified={float(r): int((correct & (held > r)).sum()) / count for r in radii},
        count=count,
    )


def certified_curve(certificates: Certified, labels: "Tensor | npt.ArrayLike") -> tuple[Tensor, Tensor]:
    """The whole curve: radii in rising order, and the certified accuracy just below each.

    Args:
        certificates: from `certify`.
        labels: (N,), the true classes: a tensor, an array or a list of integers.

    Returns:
        (M,) radii of the M correctly classified images, sorted, and (M,) accuracies; for r below the first
        radius the accuracy is M / N, beyond the last it is 0.
    """
    labels = _check_labels(certificates, labels)
    correct = certificates.prediction.cpu() == labels
    radii = certificates.radius.cpu().double()[correct].sort().values
    remaining = torch.arange(len(radii), 0, -1, dtype=torch.float64, device="cpu")
    return radii, remaining / len(labels)


def radius_from_l1(l1_radius: float, dimension: int) -> float:
    """The l2 radius that an l1 certificate implies, l1_radius / sqrt(dimension), rounded down.

    ||d||_1 <= sqrt(dimension) ||d||_2, with equality when all entries have the same size. Appendix C of the
    paper, where an l1 radius of 4 on 32x32 RGB images gives 0.072.

    Args:
        l1_radius: radius of the l1 ball, at least 0.
        dimension: number of pixels times channels.

    >>> round(radius_from_l1(4, 3 * 32 * 32), 4)
    0.0722
    """
    check_positive(dimension=dimension)
    if not l1_radius >= 0:
        raise ArgumentError(f"l1_radius: expected a number of at least 0, got {l1_radius!r}")
    if math.isinf(l1_radius):
        return math.inf
    radius = l1_radius / math.sqrt(dimension)
    # Two roundings to nearest may have gone up; rational numbers decide.
    while Fraction(radius) ** 2 * dimension > Fraction(l1_radius) ** 2:
        radius = math.nextafter(radius, 0)
    return radius


def _check_labels(certificates: Certified, labels: "Tensor | npt.ArrayLike") -> Tensor:
    try:
        found = torch.as_tensor(labels, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        found = None
    integers = found is not None and found.dtype != torch.bool and not found.is_floating_point()
    if found is None or not integers or found.shape != certificates.prediction.shape:
        given = type(labels).__name__ if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
        raise ArgumentError(
            f"labels: expected {len(certificates.prediction)} integers, one per certificate, got {given}"
        )
    if not len(found):
        raise ArgumentError("labels: expected at least one image, got none")
    return found.to(torch.int64)
