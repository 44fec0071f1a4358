"""Certificates beside true classes, as tensors for plots and tables."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.certify.curve import CertifiedAccuracy, certified_accuracy
from lipcert.errors import ArgumentError


@dataclass(frozen=True)
class Outcomes:
    """Certificates of N images beside their true classes.

    Args:
        index: (N,), positions in the dataset.
        label: (N,), true classes.
        prediction: (N,), predicted classes.
        runner_up: (N,), the class that limits the radius; -1 if there is one class.
        radius: (N,), pixel units.

    Raises:
        ArgumentError: there is no image, or the tensors differ in length.
    """

    index: Tensor
    label: Tensor
    prediction: Tensor
    runner_up: Tensor
    radius: Tensor

    def __post_init__(self) -> None:
        lengths = {len(t) for t in (self.index, self.label, self.prediction, self.runner_up, self.radius)}
        if len(lengths) != 1 or 0 in lengths:
            raise ArgumentError(
                f"records: expected at least one image and as many of everything, got {sorted(lengths)}"
            )

    def __len__(self) -> int:
        return len(self.label)

    @property
    def right(self) -> Tensor:
        """(N,), whether the prediction is the true class."""
        return self.prediction == self.label

    def accuracy(self) -> CertifiedAccuracy:
        """Standard accuracy, and certified accuracy at the paper's radii."""
        return certified_accuracy(self, self.label)

    def median_radius(self) -> float:
        """Median over all images, where a wrong prediction counts as 0: half of the images reach this."""
        return float(torch.where(self.right, self.radius, torch.zeros_like(self.radius)).median())

    def of_class(self, number: int) -> "Outcomes | None":
        """The images whose true class this is; None if there is none."""
        chosen = self.label == number
        if not bool(chosen.any()):
            return None
        parts = (self.index, self.label, self.prediction, self.runner_up, self.radius)
        return Outcomes(*(part[chosen] for part in parts))
