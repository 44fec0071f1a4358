"""The coefficients of Muon's iterations, for `lipcert.optim.newton_schulz`: `python -m tools.make_muon`.

Each iteration is an odd polynomial p of degree 5. Applied to the interval [l, u] that the one before it made,
the best is the one nearest to 1 in the largest deviation E: it makes [1 - E, 1 + E] of it, and so the best
composition of all (Amsel et al., The Polar Express, 2025). By Chebyshev's theorem it deviates by E with
changing sign at l, at both extrema and at u.

Two changes make room for rounding. The upper end is taken `MARGIN` higher. The lower end is taken no lower
than `CUSHION` of the upper one: else p falls nearly to 0 at an extremum in between, where a rounding of
p(x) / x, 2^-9 (|b| + |c|) in bfloat16, could turn a large singular value around. What lies below is lifted by
nearly as much.
"""

import numpy as np
import numpy.typing as npt

STEPS, ERROR, MARGIN, CUSHION = 4, 0.25, 1.02, 0.08

Coefficients = tuple[float, float, float]


def nearest_to_one(low: float, high: float) -> tuple[Coefficients, float]:
    """Of x, x^3 and x^5 on [low, high], and the largest deviation; by Remez' exchange."""
    inner: npt.NDArray[np.float64] = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
    for _ in range(100):
        x = np.array([low, *inner, high])
        system = np.stack([x, x**3, x**5, [1, -1, 1, -1]], axis=1)
        a, b, c, error = (float(number) for number in np.linalg.solve(system, np.ones(4)))
        found = np.sqrt(np.sort(np.roots([5 * c, 3 * b, a]).real))
        if np.abs(found - inner).max() < 1e-14:
            break
        inner = found
    return (a, b, c), error


def iterations(smallest: float) -> tuple[list[Coefficients], float]:
    """The polynomials for singular values from `smallest` to 1, and the least that they make of them."""
    low, high, table = smallest, 1.0, []
    for _ in range(STEPS):
        (a, b, c), error = nearest_to_one(max(low, CUSHION * high), MARGIN * high)
        table.append((a, b, c))
        low, high = min(a * low + b * low**3 + c * low**5, 1 - error), 1 + error
    return table, low


def best() -> tuple[list[Coefficients], float]:
    """The polynomials that bring the smallest possible singular value to 1 - ERROR, and that value."""
    low, high = 1e-6, 0.5
    for _ in range(60):
        middle = (low * high) ** 0.5
        if iterations(middle)[1] < 1 - ERROR:
            low = middle
        else:
            high = middle
    return iterations(high)[0], high


if __name__ == "__main__":
    polynomials, least = best()
    for polynomial in polynomials:
        print(", ".join(f"{number:.4f}" for number in polynomial))
    print(f"smallest {least:.3g}")
