"""Our own attack: projected gradient descent on the pairwise margin, in l2 all the way."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lipcert.attacks.balls import Balls, norms, per_image
from lipcert.attacks.settings import AttackSettings

ROUNDS = 8
"""Radii that the minimal-norm attack tries for each target."""
DIRECTIONS = 4


def inside(balls: Balls, settings: AttackSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Descend each target's margin in the ball of `settings.inside` times the radius.

    Yields:
        (N, C, H, W) in the coordinates of the balls, for each target and restart the point of smallest lead.
    """
    epsilon = torch.full((len(balls),), settings.inside, device=balls.images.device)
    for target in balls.targets.unbind(1):
        for restart in range(settings.restarts):
            start = torch.zeros_like(balls.images, dtype=torch.float32)
            if restart:
                start = directions(balls, generator) * settings.inside
            yield descend(balls, start, epsilon, target, settings.steps)[0]


def minimal(balls: Balls, settings: AttackSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Find the smallest radius at which a descent succeeds, by doubling and bisection, for each target.

    Every descent starts where the last one ended, so that the radii together are one long descent.

    Yields:
        (N, C, H, W) for each target: the nearest success, or the last failure.
    """
    steps = max(settings.steps // 4, 5)
    for target in balls.targets.unbind(1):
        z = torch.zeros_like(balls.images, dtype=torch.float32)
        nearest = z
        low = torch.zeros(len(balls), device=z.device)
        high = torch.full_like(low, torch.inf)
        epsilon = torch.full_like(low, 1.25)
        for _ in range(ROUNDS):
            z = z * per_image(epsilon / norms(z).clamp_min(1e-30))
            z, lead = descend(balls, z, epsilon, target, steps)
            length, succeeded = norms(z), lead < 0
            better = succeeded & (length < high)
            nearest = torch.where(per_image(better | high.isinf()), z, nearest)
            high = torch.where(better, length, high)
            low = torch.where(succeeded, low, epsilon)
            epsilon = torch.where(high.isinf(), 2 * epsilon, (torch.minimum(low, high) + high) / 2)
        yield nearest


def noise(balls: Balls, settings: AttackSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Random directions at `settings.inside` of the radius: what rounding alone can do, above all at ties."""
    for _ in range(DIRECTIONS):
        yield directions(balls, generator) * settings.inside


def descend(
    balls: Balls, start: Tensor, epsilon: Tensor, target: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    r"""Descend the margin f_l - f_t from `start` within ||z|| <= epsilon.

    .. math:: z \leftarrow P_\epsilon\bigl(z - a_k\, g / \|g\|_2\bigr), \quad a_k = \epsilon\,(1 - k / steps)

    The step is the gradient over its l2 norm: the sign of the gradient would be the steepest step in
    l-infinity, and wastes most of an l2 ball. The first step crosses the whole ball, so that on a linear
    classifier it is the solution.

    Args:
        balls: to attack.
        start: (N, C, H, W), float32.
        epsilon: (N,).
        target: (N,), the class t.
        steps: gradient evaluations.

    Returns:
        The point of smallest lead on the way, whichever class it leads over, and that lead, (N,).
    """
    own, other = balls.prediction[:, None], target[:, None]
    z, best, smallest = start, start, torch.full_like(epsilon, torch.inf)
    for step in range(steps + 1):
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            logits = balls.logits(z)
            margin = logits.gather(1, own) - logits.gather(1, other)
            gradient = torch.autograd.grad(margin.sum(), z)[0] if step < steps else torch.zeros_like(z)
        with torch.no_grad():
            lead = balls.lead(logits)
            better = lead < smallest
            best = torch.where(per_image(better), z, best)
            smallest = torch.where(better, lead, smallest)
            length = epsilon * (1 - step / steps)
            z = z - per_image(length / norms(gradient).clamp_min(1e-30)) * gradient
            z = project(z, epsilon)
    return best.detach(), smallest.detach()


def project(z: Tensor, epsilon: Tensor) -> Tensor:
    """The nearest point with ||z|| <= epsilon."""
    return z * per_image((epsilon / norms(z).clamp_min(1e-30)).clamp(max=1))


def directions(balls: Balls, generator: torch.Generator) -> Tensor:
    """Uniform random unit vectors, drawn on the CPU so that every device gets the same ones."""
    drawn = torch.randn(balls.images.shape, generator=generator, device="cpu")
    return (drawn / per_image(norms(drawn))).to(balls.images.device)
