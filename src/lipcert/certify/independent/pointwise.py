"""Functions of one number, and pooling, each with a bound on its rounding here.

Bounds are returned entry by entry, in units of u = 2^-53. Exponential, logarithm and hyperbolic tangent are
taken to be within 16 units in the last place, 32 u; numpy was off by at most 1.2 over 10^7 arguments.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lipcert.certify.independent.norms import UP, norm_bound
from lipcert.certify.independent.tree import Array, Shape


def elementwise(values: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
    """The function of every entry, and the rounding of each in units."""
    name = values["function"]
    if name == "relu":
        return np.maximum(x, 0), np.zeros_like(x)
    if name == "abs":
        return np.abs(x), np.zeros_like(x)
    if name == "leaky relu":
        y = np.where(x < 0, values["slope"] * x, x)
        return y, np.abs(y)
    if name == "tanh":
        y = np.tanh(x)
        return y, 33 * np.abs(y)
    small = np.exp(-np.abs(x))  # at most 1, so nothing overflows
    if name == "sigmoid":
        # Numerator and denominator are each off by 33 u of themselves, and the quotient is rounded.
        y = np.where(x < 0, small, 1) / (1 + small)
        return y, 70 * y
    # log1p has slope 1 at most: 32 u for its argument, 32 u for itself; the sum is rounded.
    y = np.maximum(x, 0) + np.log1p(small)
    return y, 66 + y


def pool(values: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
    """Windows of a batch (N, C, H, W), pixel by pixel of the window, and the rounding of each result."""
    function, (ky, kx), (sy, sx) = values["function"], values["window"], values["stride"]
    py, px = values["padding"]
    outside = -np.inf if function == "max" else 0.0
    padded = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)), constant_values=outside)
    rows, columns = ((n - k) // s + 1 for n, k, s in zip(padded.shape[2:], (ky, kx), (sy, sx), strict=True))
    largest = np.full((*x.shape[:2], rows, columns), -np.inf)
    total, sizes, squares = np.zeros((3, *largest.shape))
    for ty, tx in np.ndindex(ky, kx):
        seen = padded[:, :, ty : ty + sy * (rows - 1) + 1 : sy, tx : tx + sx * (columns - 1) + 1 : sx]
        if function == "max":
            np.maximum(largest, seen, out=largest)
        elif function == "average":
            total += seen
            sizes += np.abs(seen)
        else:
            squares += seen**2
    terms = ky * kx + 4
    if function == "max":
        return largest, np.zeros_like(largest)
    if function == "average":
        return total / (ky * kx), terms * sizes / (ky * kx)
    y = np.sqrt(squares)
    return y, terms * y + 2.0**-450  # squares below 2^-1022 vanish, roots of them are below 2^-510


def pool_bound(values: Mapping[str, Any], sides: Shape) -> float:
    """The constant: of averages the product over rows and columns, of others the root of the overlap."""
    bound = 1.0
    for n, k, s, p in zip(sides, values["window"], values["stride"], values["padding"], strict=True):
        windows = np.zeros(((n + 2 * p - k) // s + 1, n))
        for o, window in enumerate(windows):
            window[max(0, o * s - p) : max(0, o * s - p + k)] = 1
        if values["function"] == "average":
            bound *= norm_bound(windows[None]) / k * UP
        else:
            bound *= math.sqrt(windows.sum(axis=0).max()) * UP
    return bound
