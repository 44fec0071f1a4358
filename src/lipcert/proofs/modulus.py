r"""Proved extremes of |p(iy)| for a real polynomial p: the singular values of p(A) for a skew operator A.

For real coefficients, :math:`|p(iy)|^2 = E(t)^2 + t\,O(t)^2` with t = y^2, where E and O collect the even and
the odd coefficients with alternating signs. It is a polynomial in t; on an interval it lies between the
smallest and the largest of its Bernstein coefficients, and halving the interval brings these together. All
arithmetic is exact (floats are dyadic rationals, so everything is integers over one power of two); only the
last root is rounded.
"""

import heapq
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from lipcert.errors import ArgumentError

TOLERANCE = Fraction(1, 2**46)


def polynomial_modulus_upper_bound(coefficients: Sequence[float], rho: float) -> float:
    r"""Proved upper bound on :math:`\max_{|y| \le \rho} |p(iy)|`, p(z) = sum_j coefficients[j] z^j.

    Guarantee: never below the maximum, above it by a factor of at most 1 + 1e-13.

    Args:
        coefficients: c_0, ..., c_d, finite.
        rho: bound on |y|, finite and not negative.

    Raises:
        ArgumentError: no coefficients, or a number that is not finite, or a negative rho.

    >>> polynomial_modulus_upper_bound([1.0, 1.0], 1.0)  # |1 + i|
    1.4142135623730951
    """
    bernstein, denominator = _squared_modulus(coefficients, rho)
    return _root(_largest_value(bernstein) / denominator, round_up=True)


def polynomial_modulus_lower_bound(coefficients: Sequence[float], rho: float) -> float:
    r"""Proved lower bound on :math:`\min_{|y| \le \rho} |p(iy)|`; see `polynomial_modulus_upper_bound`.

    >>> polynomial_modulus_lower_bound([1.0, 1.0], 1.0)
    1.0
    """
    bernstein, denominator = _squared_modulus(coefficients, rho)
    return _root(-_largest_value([-b for b in bernstein]) / denominator, round_up=False)


def _squared_modulus(coefficients: Sequence[float], rho: float) -> tuple[list[int], int]:
    """Bernstein coefficients of |p(iy)|^2 in s = t / rho^2 on [0, 1], as integers over a denominator."""
    if not coefficients or not all(map(math.isfinite, coefficients)):
        raise ArgumentError(f"coefficients: expected finite numbers, at least one, got {list(coefficients)}")
    if not 0 <= rho < math.inf:
        raise ArgumentError(f"rho: expected a finite number, not negative, got {rho}")
    signed = [Fraction(c) * (-1) ** (j // 2) for j, c in enumerate(coefficients)]
    even, odd = signed[0::2], signed[1::2]
    power = [Fraction(0)] * len(coefficients)
    for offset, part in ((0, even), (1, odd)):
        for i, a in enumerate(part):
            for j, b in enumerate(part):
                power[i + j + offset] += a * b
    radius = Fraction(rho) ** 2
    power = [a * radius**j for j, a in enumerate(power)]
    degree = len(power) - 1
    bernstein = [
        sum((power[j] * math.comb(i, j) / math.comb(degree, j) for j in range(i + 1)), Fraction(0))
        for i in range(degree + 1)
    ]
    denominator = math.lcm(*(b.denominator for b in bernstein))
    return [b.numerator * (denominator // b.denominator) for b in bernstein], denominator


def _largest_value(bernstein: list[int]) -> Fraction:
    """Upper bound on the maximum over [0, 1], within `TOLERANCE` of the largest absolute value seen.

    Branch and bound: the interval with the largest bound is halved until that bound is close to a value
    attained. An interval's coefficients are integers over 2^shift.
    """
    attained = Fraction(max(bernstein[0], bernstein[-1]))
    scale = Fraction(max(abs(bernstein[0]), abs(bernstein[-1])))
    heap = [(-Fraction(max(bernstein)), 0, 0, bernstein)]
    serial = 1  # breaks ties, so that the heap never compares lists
    while True:
        bound, _, shift, interval = heapq.heappop(heap)
        if -bound <= attained + TOLERANCE * scale:
            return -bound
        left, right = _halves(interval)
        shift += len(interval) - 1
        value = Fraction(right[0], 1 << shift)
        attained, scale = max(attained, value), max(scale, abs(value))
        for half in (left, right):
            heapq.heappush(heap, (-Fraction(max(half), 1 << shift), serial, shift, half))
            serial += 1


def _halves(interval: list[int]) -> tuple[list[int], list[int]]:
    """De Casteljau at the middle; both halves are integers over 2^degree times the denominator."""
    degree, row = len(interval) - 1, interval
    left, right = [row[0] << degree], [row[-1] << degree]
    for step in range(1, degree + 1):
        row = [a + b for a, b in pairwise(row)]
        left.append(row[0] << (degree - step))
        right.append(row[-1] << (degree - step))
    return left, right[::-1]


def _root(square: Fraction, *, round_up: bool) -> float:
    """The nearest float on the wanted side of the root of a rational number (0 if that is negative)."""
    if square <= 0:
        return 0.0
    # Shift so that the integer root has at least 64 digits, then step to the float that is provably on the
    # right side.
    shift = max(0, 64 - (square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    try:
        root = float(
            Fraction(math.isqrt((square.numerator << (2 * shift)) // square.denominator), 1 << shift)
        )
    except OverflowError:
        return math.inf if round_up else sys.float_info.max
    if round_up:
        while math.isfinite(root) and Fraction(root) ** 2 < square:
            root = math.nextafter(root, math.inf)
    else:
        while Fraction(root) ** 2 > square:
            root = math.nextafter(root, 0.0)
    return root
