"""Activations by the formulas of the paper, each with a bound on its rounding here.

Channel k is grouped with channels k + C/g, k + 2 C/g, ... Bounds are in units of u = 2^-53 per unit of the
length of the input. Sine, cosine, exponential and arctangent are taken to be within 4 units in the last
place, 8 u. All maps are continuous, so that a number on the wrong side of a boundary that it is within e of
moves the result by no more than 2 e.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lipcert.certify.independent.tree import Array


def activate(kind: str, values: Mapping[str, Any], z: Array) -> tuple[Array, float]:
    """The activation of a batch (N, C, ...), and its rounding in units."""
    if kind == "GroupSort":
        groups = z.reshape(len(z), values["group"], -1, *z.shape[2:])
        return -np.sort(-groups, axis=1).reshape(z.shape), 0.0
    if kind == "Householder":
        return reflect(z, values["theta"])
    if kind == "HouseholderOrder":
        return sectors(z, values["theta"], values["widths"])
    units = 0.0
    for vectors in values["vectors"]:
        z, more = mirror(z, vectors)
        units += more
    return z, units


def _column(parameters: Array, z: Array) -> Array:
    """(..., pairs) in a shape that fits against half of the channels."""
    return parameters.reshape(*parameters.shape, *(1,) * (z.ndim - 2))


def reflect(z: Array, theta: Array) -> tuple[Array, float]:
    """Corollary 1: pairs with v^T z <= 0 are reflected, v = (sin(theta / 2), -cos(theta / 2)).

    Rounding: an entry of the reflected pair is off by 8 u + 2 u of |z1| + |z2|, both by at most 20 u |z|; the
    inner product by 15 u |z|, which counts twice: 50 u.
    """
    first, second = np.split(z, 2, axis=1)
    angle = _column(theta, z)
    inner = np.sin(angle / 2) * first - np.cos(angle / 2) * second
    y1 = np.where(inner > 0, first, first * np.cos(angle) + second * np.sin(angle))
    y2 = np.where(inner > 0, second, first * np.sin(angle) - second * np.cos(angle))
    return np.concatenate([y1, y2], axis=1), 56.0


def sectors(z: Array, theta: Array, widths: Array) -> tuple[Array, float]:
    r"""Theorem 2: the sector of a pair's angle decides on its matrix.

    From theta / 2 on, sectors reflect and turn in turns. With U the angle of all turning sectors before one,
    and W that of all reflecting ones up to it, its matrix has the angle theta + 2 U or 2 W, which is what
    the alternating sums of the theorem come to.

    Rounding: a width is off by (n + 22) u, a sum of n by 2 n u more, all of angles below pi: U and W by
    pi (3 n + 22) u, the matrix by 2 pi (3 n + 22) u + (|theta| + 2 pi) u + 20 u. Phase and boundary are off
    by (45 + |theta|) u and 2 pi (3 n + 22) u, which count twice. Together below (57 n + 550 + 3 |theta|) u.
    """
    logarithms = np.concatenate([widths, np.zeros_like(widths[:, :1])], axis=1)
    shares = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    reflecting, turning = np.pi * shares / shares.sum(axis=1, keepdims=True)
    n = len(reflecting)
    reflected, turned = np.cumsum(reflecting, axis=0), np.cumsum(turning, axis=0) - turning
    first, second = np.split(z, 2, axis=1)
    phase = (np.arctan2(second, first) - _column(theta, z) / 2) % (2 * np.pi)
    y1, y2 = first, second
    for i in range(2 * n):  # every sector overwrites what lies beyond its start
        k, turns = divmod(i, 2)
        start = turned[k] + reflected[k] - (0 if turns else reflecting[k])
        alpha = 2 * reflected[k] if turns else theta + 2 * turned[k]
        c, s, sign = _column(np.cos(alpha), z), _column(np.sin(alpha), z), (-1) ** i
        here = (phase >= _column(start, z)) | (i == 0)
        y1 = np.where(here, c * first + s * second, y1)
        y2 = np.where(here, sign * (s * first - c * second), y2)
    return np.concatenate([y1, y2], axis=1), 64.0 * n + 600 + 4 * float(np.abs(theta).max(initial=0))


def mirror(z: Array, vectors: Array) -> tuple[Array, float]:
    """Definition 1: groups of m channels with v^T z < 0 are reflected at the mirror with unit normal v.

    Rounding: v is off by (m / 2 + 4) u, the inner product by m + 1 more; both twice, and four roundings.
    """
    m, count = vectors.shape
    scaled = vectors / np.abs(vectors).max(axis=0)
    normal = _column(scaled / np.sqrt((scaled**2).sum(axis=0)), z)
    groups = z.reshape(len(z), m, count, *z.shape[2:])
    inner = np.minimum((groups * normal).sum(axis=1, keepdims=True), 0)
    return (groups - 2 * inner * normal).reshape(z.shape), 4.0 * m + 32
