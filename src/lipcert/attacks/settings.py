"""Settings of the attacks."""

from dataclasses import dataclass

from lipcert.errors import ArgumentError, check_positive


@dataclass(frozen=True)
class AttackSettings:
    """Effort and rules of the attacks.

    Args:
        steps: gradient steps of one descent; the other iteration counts are derived from it.
        restarts: descents per target inside the certificate: one from the image, the others from random
            points of the ball's surface.
        targets: how many of the nearest other classes are aimed at.
        inside: share of the radius at which certificates are attacked, below 1.
        box: keep adversarial points in [0, 1], as pixels are. A certificate holds for all of R^d, so that
            attacks without a box are the stronger audit, and the default.
        seed: of all random numbers; the same on every device and for every choice of attacks.
    """

    steps: int = 40
    restarts: int = 2
    targets: int = 3
    inside: float = 0.999
    box: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, restarts=self.restarts, targets=self.targets)
        if not 0 < self.inside < 1:
            raise ArgumentError(
                f"inside: expected a share of the radius between 0 and 1, got {self.inside!r}"
            )
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise ArgumentError(f"seed: expected an integer of at least 0, got {self.seed!r}")
