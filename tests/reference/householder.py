"""The activations as the paper writes them, one pair at a time, in plain Python floats."""

import math
from collections.abc import Sequence

Pair = tuple[float, float]
Matrix = tuple[Pair, Pair]


def apply(matrix: Matrix, z: Pair) -> Pair:
    return tuple(row[0] * z[0] + row[1] * z[1] for row in matrix)  # type: ignore[return-value]


def sigma_theta(z: Pair, theta: float) -> Pair:
    """Corollary 1."""
    if z[0] * math.sin(theta / 2) - z[1] * math.cos(theta / 2) > 0:
        return z
    return apply(((math.cos(theta), math.sin(theta)), (math.sin(theta), -math.cos(theta))), z)


def sector_matrix(angles: Sequence[float], i: int) -> Matrix:
    """Theorem 2: the matrix for theta_i <= phase < theta_{i+1}."""
    alpha = 2 * sum(angles[i - j] * (-1) ** j for j in range(i + 1))
    sign = (-1) ** i
    return (
        (math.cos(alpha), math.sin(alpha)),
        (sign * math.sin(alpha), -sign * math.cos(alpha)),
    )


def sector(z: Pair, angles: Sequence[float]) -> int:
    """The i with theta_i <= phase < theta_{i+1}, the phase taken in [theta_0, theta_0 + 2 pi)."""
    phase = math.atan2(z[1], z[0])
    while phase < angles[0]:
        phase += 2 * math.pi
    while phase >= angles[0] + 2 * math.pi:
        phase -= 2 * math.pi
    return max((i for i, start in enumerate(angles) if start <= phase), default=len(angles) - 1)


def sigma_order(z: Pair, angles: Sequence[float]) -> Pair:
    """Theorem 2, with angles = theta_0, ..., theta_{2n-1}."""
    return apply(sector_matrix(angles, sector(z, angles)), z)


def sigma_v(z: Sequence[float], v: Sequence[float]) -> list[float]:
    """Definition 1, for v of any nonzero length."""
    length = math.hypot(*v)
    unit = [x / length for x in v]
    side = math.fsum(a * b for a, b in zip(unit, z, strict=True))
    if side > 0:
        return list(z)
    return [x - 2 * side * u for x, u in zip(z, unit, strict=True)]
