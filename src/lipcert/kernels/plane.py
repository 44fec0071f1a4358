"""Functions of the plane, such as an activation on a pair of channels: the cones where they are linear."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PlaneMap = Callable[[Tensor], Tensor]
"""A function of points (N, 2) in the plane."""
CIRCLE_POINTS = 20_000


@dataclass(frozen=True)
class Cone:
    """A cone on which a function is linear: from angle `start` to `stop`, with its Jacobian."""

    start: float
    stop: float
    jacobian: Tensor

    @property
    def angle(self) -> float:
        """The alpha of J+(alpha) or J-(alpha), in (-pi, pi]; both have cos and sin in the first row."""
        return math.atan2(float(self.jacobian[0, 1]), float(self.jacobian[0, 0]))

    @property
    def kind(self) -> str:
        """What an isometry does there: "same" leaves points where they are, "turned" or "reflected"."""
        if torch.allclose(
            self.jacobian, torch.eye(2, dtype=self.jacobian.dtype, device=self.jacobian.device), atol=1e-6
        ):
            return "same"
        return "turned" if float(torch.linalg.det(self.jacobian)) > 0 else "reflected"


def jacobians(function: PlaneMap, points: Tensor) -> Tensor:
    """Jacobian of `function` at every point, (N, 2, 2), by automatic differentiation."""
    points = points.detach().clone().requires_grad_(True)
    values = function(points)
    rows = [torch.autograd.grad(values[:, i].sum(), points, retain_graph=True)[0] for i in range(2)]
    return torch.stack(rows, dim=1)


def linear_cones(function: PlaneMap) -> list[Cone]:
    """The cones on which a positively homogeneous function of the plane is linear, counter-clockwise.

    Found by differentiating at points of the unit circle; a boundary is placed between the two points that
    enclose it, which is exact to 2 pi / CIRCLE_POINTS.
    """
    step = 2 * math.pi / CIRCLE_POINTS
    angles = (torch.arange(CIRCLE_POINTS, dtype=torch.float64, device="cpu") + 0.5) * step
    found = jacobians(function, torch.stack([angles.cos(), angles.sin()], dim=1))
    # Two Jacobians of one cone differ by rounding, those of neighbours by a reflection, of norm 2.
    changes = (found - found.roll(1, dims=0)).abs().amax(dim=(1, 2)) > 1e-6
    starts = changes.nonzero().flatten().tolist()
    if not starts:
        return [Cone(0.0, 2 * math.pi, found[0])]
    stops = [*starts[1:], starts[0] + CIRCLE_POINTS]
    return [
        Cone(a * step, b * step, found[((a + b) // 2) % CIRCLE_POINTS])
        for a, b in zip(starts, stops, strict=True)
    ]
