"""Classifies every candidate of an attack again, and keeps the nearest one that changes the class."""

import torch
from torch import Tensor

from lipcert.attacks.balls import Balls, norms, per_image
from lipcert.attacks.distance import l2_distances

GROWTH = (1.0, 1.001, 1.01, 1.1, 1.5, 3.0)
"""How far along its own direction a point is pushed that does not fool the surrogate."""
PUSHES = (1.0, 1.00001, 1.0001, 1.001, 1.01, 1.1)
"""The same for a point that fools the surrogate and not the exact classifier."""
BISECTIONS, CLOSE = 14, 1e-5


class Nearest:
    """For each ball of a batch, the nearest point to which the exact classifier gives another class.

    Attributes:
        points: (N, C, H, W), float64; the image itself where nothing was found.
        distance: (N,), float64, exact up to the rounding of float64; infinite where nothing was found.
        found: (N,), the class at the point.
        attack: the name of the attack that found it, per image.
        tried: how many points were classified.
        inside: how many of them lay within the radius.
    """

    def __init__(self, balls: Balls) -> None:
        self.balls = balls
        self.points = balls.images.clone()
        self.distance = torch.full_like(balls.radius, torch.inf)
        self.found = balls.prediction.clone()
        self.attack = [""] * len(balls)
        self.tried = self.inside = 0

    def offer(self, z: Tensor, attack: str | None, rows: Tensor | None = None) -> Tensor:
        """Classify the points at z exactly, keep those that are nearer, and return which change the class.

        Args:
            z: (M, C, H, W), coordinates in the balls.
            attack: name of the attack; None for refinements of the nearest points.
            rows: (M,), which balls; all if None.

        Returns:
            (M,), bool.
        """
        balls = self.balls
        rows = torch.arange(len(balls), device=z.device) if rows is None else rows
        points = balls.points(z, rows)
        found = balls.classifier.logits(points).argmax(dim=1)
        distance = l2_distances(balls.images[rows], points)
        self.tried += len(rows)
        self.inside += int((distance <= balls.radius[rows]).sum())
        changed = found != balls.prediction[rows]
        nearer = changed & (distance < self.distance[rows])
        kept = rows[nearer]
        self.points[kept], self.distance[kept], self.found[kept] = (
            points[nearer],
            distance[nearer],
            found[nearer],
        )
        if attack is not None:
            for row in kept.tolist():
                self.attack[row] = attack
        return changed

    def search(self, z: Tensor, attack: str) -> None:
        """Offer the points at z, and where the class changes along the rays from the images through them.

        The surrogate finds the place, since the exact classifier is many times slower; where that disagrees,
        the point is pushed on. Attacks that stop short, overshoot, or stay inside the ball on purpose all
        end on the boundary in this way.
        """
        self.offer(z, attack)
        factor = _crossing(self.balls, z)
        reached = self.balls.points(per_image(torch.where(factor.isfinite(), factor, 0)) * z)
        length = norms(reached - self.balls.images)  # in a box not in proportion to the factor
        rows = (factor.isfinite() & (length < self.distance)).nonzero()[:, 0]
        for push in PUSHES:
            if not len(rows):
                break
            changed = self.offer(per_image(push * factor[rows]) * z[rows], attack, rows)
            rows = rows[~changed]

    def polish(self) -> None:
        """Bisect the segment from each image to its nearest point, with the exact classifier."""
        z = (self.points - self.balls.images) / per_image(self.balls.scale)
        low, high = torch.zeros_like(self.distance), torch.ones_like(self.distance)
        for _ in range(BISECTIONS):
            rows = (self.distance.isfinite() & (self.distance > 0) & (high - low > CLOSE)).nonzero()[:, 0]
            if not len(rows):
                break
            middle = (low[rows] + high[rows]) / 2
            changed = self.offer(per_image(middle) * z[rows], None, rows)
            high[rows[changed]], low[rows[~changed]] = middle[changed], middle[~changed]


@torch.no_grad()
def _crossing(balls: Balls, z: Tensor) -> Tensor:
    """The factor at which the surrogate's class changes along each ray, by growth and bisection; or inf."""

    def changed(factor: Tensor) -> Tensor:
        return balls.lead(balls.logits(per_image(factor) * z)) < 0

    low = torch.zeros(len(balls), device=z.device)
    high = torch.full_like(low, torch.inf)
    for factor in GROWTH:
        beyond = changed(torch.full_like(low, factor))
        high = torch.where(beyond & high.isinf(), factor, high)
        low = torch.where(high.isinf(), factor, low)
    for _ in range(BISECTIONS):
        if not bool((high.isfinite() & (high - low > CLOSE * high)).any()):
            break
        middle = (low + high) / 2
        beyond = changed(middle.nan_to_num(1.0, 1.0))
        high, low = torch.where(beyond, middle, high), torch.where(beyond, low, middle)
    return torch.where(norms(z) > 0, high, torch.inf)
