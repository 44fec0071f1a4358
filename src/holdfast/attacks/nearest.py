"""The referee: every point an attack claims is classified again, and the nearest true one is kept."""

import torch
from torch import Tensor

from holdfast.attacks.balls import Balls, norms, per_image
from holdfast.attacks.distance import l2_distances

GROWTH = (1.0, 1.0001, 1.001, 1.01, 1.1, 1.5, 3.0)
"""How far along its own direction a point is pushed that does not fool the exact classifier."""
BISECTIONS, CLOSE = 14, 1e-5


class Nearest:
    """For each ball of a batch the nearest point that the exact classifier classifies otherwise.

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

    def offer(self, z: Tensor, attack: str, rows: Tensor | None = None) -> Tensor:
        """Classify the points at z exactly; keep those that are nearer; say which ones change the class.

        Args:
            z: (M, C, H, W), coordinates in the balls.
            attack: whose points they are.
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
        for row in kept.tolist():
            self.attack[row] = attack
        return changed

    def search(self, z: Tensor, attack: str) -> None:
        """Offer the nearest change of class along each ray from the image through z.

        A point that does not fool the exact classifier is pushed outwards until it does, or beyond reason;
        then the boundary is bisected. Attacks that stop short, overshoot, or stay inside the ball on purpose
        all end on the boundary in this way.
        """
        low = torch.zeros(len(self.balls), device=z.device)
        high = torch.full_like(low, torch.inf)
        rows = (norms(z) > 0).nonzero()[:, 0]
        for factor in GROWTH:
            changed = self.offer(factor * z[rows], attack, rows)
            high[rows[changed]], low[rows[~changed]] = factor, factor
            rows = rows[~changed]
            if not len(rows):
                break
        length = norms(self.balls.points(z) - self.balls.images)
        for _ in range(BISECTIONS):
            # A ray whose unchanged part is longer than the best distance will not improve on it.
            hopeful = (high - low > CLOSE * high) & high.isfinite() & (low * length < self.distance)
            rows = hopeful.nonzero()[:, 0]
            if not len(rows):
                break
            middle = (low[rows] + high[rows]) / 2
            changed = self.offer(per_image(middle) * z[rows], attack, rows)
            high[rows[changed]], low[rows[~changed]] = middle[changed], middle[~changed]
