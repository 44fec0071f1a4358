"""A quick attack: repeatedly the nearest point on a linear model of the decision boundary.

The audit's attacks take hundreds of gradients; this one takes six. Orthogonal layers keep the
length of gradients, so that the linear model of a margin is good far from the point it was made at.
"""

import torch
from torch import Tensor

from lipcert.attacks.balls import Balls, norms, per_image
from lipcert.attacks.nearest import PUSHES, Nearest

STEPS = 5
GRID, REACH = 16, 1.6
"""Points of a ray that are tried at once, and the largest factor."""
COARSE, FINE = 2, 2
"""How often a bracket is cut by GRID: for all rays, which tells the best one, and then for that one."""
PROJECTION_STEPS = 12


def attack_quickly(balls: Balls) -> Nearest:
    """Look for the nearest point of another class, aiming at the first target of each ball.

    All balls are about one image, with a target each: only the most promising ray is searched closely. What
    is found has been classified by the exact classifier.

    Args:
        balls: N of them, around the same image.
    """
    z = nearest_on_boundary(balls)
    nearest = Nearest(balls)
    everyone = torch.arange(len(balls), device=z.device)
    bracket = torch.tensor([[0.0, REACH]], device=z.device).expand(len(balls), 2)
    for _ in range(COARSE):
        bracket = _narrow(balls, z, bracket, everyone)
    length = norms(balls.points(per_image(bracket[:, 1].nan_to_num(0)) * z) - balls.images)
    length = torch.where(bracket[:, 1].isfinite() & (length > 0), length, torch.inf)
    row = length.argmin().view(1)
    if not bool(length[row].isfinite()):
        return nearest
    bracket = bracket[row]
    for _ in range(FINE):
        bracket = _narrow(balls, z, bracket, row)
    factor = bracket[:, 1]
    for push in PUSHES:
        if bool(nearest.offer(per_image(push * factor) * z[row], "linear", row)):
            break
    return nearest


def nearest_on_boundary(balls: Balls, steps: int = STEPS) -> Tensor:
    r"""Repeat: the point of smallest norm where the margin, taken as linear at the last point, is zero.

    .. math:: z_{k+1} = \arg\min \{\|z\| : m(z_k) + \nabla m(z_k) \cdot (z - z_k) = 0, x + s z \in [0, 1]^d\}

    A linear margin is solved by the first step. From the third on, only half of each step is taken.

    Args:
        balls: whose first targets are aimed at.
        steps: how often; there is one gradient more.

    Returns:
        (N, C, H, W), of all points the one by way of which the boundary seems nearest.
    """
    own, target = balls.prediction[:, None], balls.targets[:, :1]
    unit = per_image(balls.scale.float())
    low, high = -balls.images.float() / unit, (1 - balls.images.float()) / unit
    if not balls.box:
        low, high = torch.full_like(low, -torch.inf), torch.full_like(high, torch.inf)
    z = torch.zeros_like(low)
    best, shortest = z, torch.full((len(balls),), torch.inf, device=z.device)
    for step in range(steps + 1):
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            logits = balls.logits(z)
            margin = (logits.gather(1, own) - logits.gather(1, target))[:, 0]
            gradient = torch.autograd.grad(margin.sum(), z)[0]
        with torch.no_grad():
            z = z.detach()
            # To the boundary by way of z: what the lead still is, or is too much, divided by its slope.
            length = norms(z) + balls.lead(logits) / norms(gradient).clamp_min(1e-30)
            better = (length < shortest) & (step > 0)
            best, shortest = torch.where(per_image(better), z, best), torch.where(better, length, shortest)
            level = (gradient * z).flatten(1).sum(1) - margin.detach()
            solution = smallest_in_box(gradient, level, low, high)
            # Halfway, once it is near: whole steps may jump between two linear pieces for ever.
            z = solution if step < 2 else (z + solution) / 2
    return best


def smallest_in_box(normal: Tensor, level: Tensor, low: Tensor, high: Tensor) -> Tensor:
    r"""The smallest z with normal . z = level and low <= z <= high, or the nearest the box allows.

    It is clip(a * normal, low, high) for the a that meets the level. The level that a reaches grows with a
    and is concave, so that Newton's method from a = 0 comes to it from below, and in finitely many steps.

    Args:
        normal: (N, C, H, W).
        level: (N,).
        low: (N, C, H, W), at most 0.
        high: (N, C, H, W), at least 0.

    >>> one = torch.tensor([3.0, 4.0]).view(1, 1, 1, 2)
    >>> smallest_in_box(one, torch.tensor([-5.0]), -torch.ones_like(one), torch.ones_like(one)).flatten()
    tensor([-0.6000, -0.8000])
    >>> smallest_in_box(one, torch.tensor([-6.4]), -torch.ones_like(one), torch.ones_like(one)).flatten()
    tensor([-0.8000, -1.0000])
    """
    normal = normal * per_image(level.sign())
    level, a = level.abs(), torch.zeros_like(level)
    for _ in range(PROJECTION_STEPS):
        z = (per_image(a) * normal).clamp(low, high)
        free = z == per_image(a) * normal
        slope = (normal**2 * free).flatten(1).sum(1)
        missing = level - (normal * z).flatten(1).sum(1)
        a = torch.where(slope > 0, a + missing.clamp_min(0) / slope.clamp_min(1e-30), a)
    return (per_image(a) * normal).clamp(low, high)


@torch.no_grad()
def _narrow(balls: Balls, z: Tensor, bracket: Tensor, rows: Tensor) -> Tensor:
    """Cut brackets (low, high) of factors by GRID, around the first change of class; NaN if there is none.

    One large batch is many times faster than as many small ones.
    """
    shares = torch.arange(GRID + 1, device=z.device) / GRID
    factors = bracket[:, :1] + shares * bracket.diff(dim=1)
    which = rows.repeat_interleave(GRID)
    points = balls.points(factors[:, 1:].reshape(-1, 1, 1, 1) * z[which], which)
    logits = balls.classifier.surrogate(points.float())
    changed = (logits.argmax(dim=1) != balls.prediction[which]).view(-1, GRID)
    first = changed.int().argmax(dim=1, keepdim=True)
    cut = torch.cat([factors.gather(1, first), factors.gather(1, first + 1)], dim=1)
    return torch.where(changed.any(dim=1, keepdim=True), cut, torch.nan)
