"""A batch of certified balls, in coordinates in which each of them is the unit ball around zero."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.attacks.classifier import Classifier

WITHOUT_CERTIFICATE = 0.1
"""Unit of length, in pixels, if no image has a positive finite radius."""


@dataclass(frozen=True)
class Balls:
    """N images with their claims, in coordinates z: the point x + scale * z, with ||z|| = 1 on the sphere.

    Attacks then need no step size or starting radius of their own for each image: radii of 1e-3 and of 3
    look alike.

    Attributes:
        classifier: to attack.
        images: (N, C, H, W), float64.
        prediction: (N,), the classes that are claimed not to change.
        radius: (N,), float64, the claims.
        scale: (N,), float64, the radius where it is positive and finite.
        targets: (N, T), other classes, the most promising first.
        box: whether points are clipped to [0, 1].
    """

    classifier: Classifier
    images: Tensor
    prediction: Tensor
    radius: Tensor
    scale: Tensor
    targets: Tensor
    box: bool

    def __len__(self) -> int:
        return len(self.images)

    def points(self, z: Tensor, rows: Tensor | None = None) -> Tensor:
        """Images at coordinates z in float64, rounded to what the classifier reads."""
        images, scale = (self.images, self.scale) if rows is None else (self.images[rows], self.scale[rows])
        moved = images + per_image(scale) * z.double()
        moved = moved.clamp(0, 1) if self.box else moved
        return moved.to(self.classifier.dtype).double()

    def logits(self, z: Tensor) -> Tensor:
        """Logits of the surrogate, differentiable in z; for the search only."""
        pixels = self.images.float() + per_image(self.scale.float()) * z
        logits: Tensor = self.classifier.surrogate(pixels.clamp(0, 1) if self.box else pixels)
        return logits

    def lead(self, logits: Tensor) -> Tensor:
        """Logit of the prediction minus the largest other, (N,); negative where the prediction changed."""
        own = torch.nn.functional.one_hot(self.prediction, logits.shape[1]).bool()
        return logits[own] - logits.masked_fill(own, -torch.inf).max(dim=1).values


def per_image(values: Tensor) -> Tensor:
    """(N,) as (N, 1, 1, 1)."""
    return values.view(-1, 1, 1, 1)


def norms(z: Tensor) -> Tensor:
    """Norm of each element of a batch, (N,)."""
    lengths: Tensor = torch.linalg.vector_norm(z.flatten(1), dim=1)
    return lengths


def units(radius: Tensor) -> Tensor:
    """Unit of length of each ball: its radius, or the median radius where that is 0 or infinite."""
    usable = (radius > 0) & radius.isfinite()
    usual = radius[usable].median() if bool(usable.any()) else radius.new_tensor(WITHOUT_CERTIFICATE)
    return torch.where(usable, radius, usual)


def choose_targets(logits: Tensor, prediction: Tensor, runner_up: Tensor | None, count: int) -> Tensor:
    """(N, T): the binding class of the certificate first if it is known, then others by their logits."""
    rank = logits.scatter(1, prediction[:, None], -torch.inf)
    if runner_up is not None:
        rank = rank.scatter(1, runner_up[:, None], torch.inf)
    return rank.topk(min(count, logits.shape[1] - 1), dim=1).indices
