r"""Zero-padded convolutions with any stride, padding, dilation and groups: what they compute, and their norm.

Tap t of output o reads pixel s o + d t - p. The norm is the root of the largest eigenvalue of the Gram matrix
:math:`A^T A`, which couples a row of the map with rows at most d (k - 1) away: block tridiagonal in strips of
so many rows, see `strips`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lipcert.certify.independent.deflated import deflated_norm_bound
from lipcert.certify.independent.norms import UNIT, UP, norm_bound, scale
from lipcert.certify.independent.strips import block_bound
from lipcert.certify.independent.tree import Array, Shape

DENSE = 1024
STRIPS = 8e12
"""Operations of a factorisation in strips, beyond which `deflated` is used."""
GAP, STEPS = 1e-4, 150


def convolve(values: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
    """The convolution of a batch (N, C, H, W), and the same sums of absolute values, without the bias."""
    kernel, groups = values["kernel"], values["groups"]
    n, _, *sides = x.shape
    rows, columns = _geometry(values, tuple(sides))
    maps = np.moveaxis(x.reshape(n, groups, -1, *sides), (1, 2), (0, 4))
    taps = kernel.reshape(groups, -1, *kernel.shape[1:])
    y, sizes = np.zeros((2, groups, n, rows[0], columns[0], taps.shape[1]))
    for ty, tx in np.ndindex(*kernel.shape[2:]):
        (to_y, from_y), (to_x, from_x) = rows[1][ty], columns[1][tx]
        seen, tap = maps[:, :, from_y, from_x], taps[..., ty, tx].swapaxes(1, 2)
        flat = seen.reshape(groups, -1, seen.shape[-1])
        made = (*seen.shape[:-1], tap.shape[-1])
        y[:, :, to_y, to_x] += (flat @ tap).reshape(made)
        sizes[:, :, to_y, to_x] += (np.abs(flat) @ np.abs(tap)).reshape(made)
    back = [np.moveaxis(z, (0, 4), (1, 2)).reshape(n, -1, rows[0], columns[0]) for z in (y, sizes)]
    return back[0], back[1]


def same_size(kernel: Array) -> Mapping[str, Any]:
    """The convolution by an odd kernel that keeps the size of a map."""
    reach = kernel.shape[-1] // 2
    options = {"stride": (1, 1), "padding": (reach, reach), "dilation": (1, 1), "groups": 1}
    return {"kernel": kernel, **options}


def _geometry(values: Mapping[str, Any], sides: Shape) -> list[tuple[int, list[tuple[slice, slice]]]]:
    """For both axes: the number of outputs, and for each tap which outputs read which pixels."""
    found = []
    for n, k, s, p, d in zip(
        sides,
        values["kernel"].shape[2:],
        values["stride"],
        values["padding"],
        values["dilation"],
        strict=True,
    ):
        outputs = (n + 2 * p - d * (k - 1) - 1) // s + 1
        taps = []
        for t in range(k):
            first = max(0, -((d * t - p) // s))  # the smallest o with s o + d t - p >= 0
            last = max(first, min(outputs, (n - 1 - d * t + p) // s + 1))
            start = s * first + d * t - p
            taps.append((slice(first, last), slice(start, start + s * (last - first), s)))
        found.append((outputs, taps))
    return found


def convolution_norm_bound(values: Mapping[str, Any], sides: Shape) -> float:
    """Upper bound on the norm on maps of these sides; groups do not meet, so the largest of theirs."""
    kernel, groups = values["kernel"], values["groups"]
    if not kernel.any():
        return 0.0
    scaled, exponent = scale(kernel)
    parts = [{**values, "kernel": part, "groups": 1} for part in np.split(scaled, groups)]
    if kernel.shape[2:] == (1, 1):  # all pixels are alike and alone
        bound = norm_bound(np.stack([part["kernel"][..., 0, 0] for part in parts]))
    else:
        bound = max(_norm_bound(part, sides) for part in parts)
    return float(np.ldexp(bound, exponent))


def _norm_bound(values: Mapping[str, Any], sides: Shape) -> float:
    channels = values["kernel"].shape[1]
    count = channels * math.prod(sides)
    if count <= DENSE and count * len(values["kernel"]) * math.prod(sides) <= 2**24:
        basis = np.eye(count).reshape(count, channels, *sides)
        return norm_bound(convolve(values, basis)[0].reshape(1, count, -1))
    kernel = values["kernel"]
    row_reach, column_reach = (d * (k - 1) for d, k in zip(values["dilation"], kernel.shape[2:], strict=True))
    # Strips across the longer side, in units of the reach, are cheapest.
    if sides[0] * max(1, column_reach) < sides[1] * max(1, row_reach):
        values = {
            **values,
            "kernel": kernel.swapaxes(2, 3),
            **{name: values[name][::-1] for name in ("stride", "padding", "dilation")},
        }
        sides, row_reach = sides[::-1], column_reach
    step = max(1, row_reach)
    if 5 * sides[0] / step * (step * channels * sides[1]) ** 3 > STRIPS:
        return _deflated(values, sides)
    strips = [range(lo, min(lo + step, sides[0])) for lo in range(0, sides[0], step)]
    block, error = _gram(values, sides)
    # The sum of the norms of all taps bounds the norm, if nothing better is proved.
    bound = float(np.linalg.norm(kernel, axis=(0, 1)).sum()) * (1 + 2.0**-20)
    estimate, gap = _estimate(values, sides) ** 2, GAP
    while (guess := estimate * (1 + gap) + 1e-12) < bound**2:
        proved = block_bound(block, strips, guess)
        if proved is not None:
            return math.sqrt((proved + error) * (1 + 2.0**-40)) * UP
        gap *= 4
    return bound


def _deflated(values: Mapping[str, Any], sides: Shape) -> float:
    """With stride 1: blocks of pixels become channels, and whole blocks, which only adds to the norm."""
    kernel = values["kernel"]
    for axis, (s, p, d) in enumerate(
        zip(values["stride"], values["padding"], values["dilation"], strict=True), start=2
    ):
        taps = np.moveaxis(kernel, axis, 0)
        first = -p // s
        blocks = np.zeros(((d * (len(taps) - 1) - p) // s - first + 1, *taps.shape[1:3], s, *taps.shape[3:]))
        for t, tap in enumerate(taps):
            block, phase = divmod(d * t - p, s)
            blocks[block - first, :, :, phase] = tap
        merged = blocks.reshape(len(blocks), blocks.shape[1], -1, *blocks.shape[4:])
        kernel = np.moveaxis(merged, 0, axis)
    return deflated_norm_bound(
        kernel, tuple(-(-n // s) for n, s in zip(sides, values["stride"], strict=True))
    )


def _gram(values: Mapping[str, Any], sides: Shape) -> tuple[Callable[[range, range], Array], float]:
    """Blocks of A^T A between rows of the map, and what all of them together are off by, in norm."""
    kernel = values["kernel"]
    out, channels, _, across = kernel.shape
    rows, columns = _geometry(values, sides)
    # From a row of the map to a row of the output by one row of taps: (out * columns, columns * channels).
    matrices = []
    for t in range(kernel.shape[2]):
        matrix = np.zeros((columns[0], out, sides[1], channels))
        for tx in range(across):
            to, seen = columns[1][tx]
            for x, pixel in zip(
                range(to.start, to.stop), range(seen.start, seen.stop, seen.step), strict=True
            ):
                matrix[x, :, pixel] = kernel[:, :, t, tx]
        matrices.append(matrix.reshape(columns[0] * out, -1))
    reads: dict[tuple[int, int], int] = {}
    for t, (to, seen) in enumerate(rows[1]):
        for o, y in zip(range(to.start, to.stop), range(seen.start, seen.stop, seen.step), strict=True):
            reads[o, y] = t
    products: dict[tuple[int, int], Array] = {}

    def product(a: int, b: int) -> Array:
        if (a, b) not in products:
            products[a, b] = matrices[a].T @ matrices[b]
        return products[a, b]

    def block(own: range, other: range) -> Array:
        n = sides[1] * channels
        result = np.zeros((len(own), n, len(other), n))
        for i, y in enumerate(own):
            for j, z in enumerate(other):
                for o in range(rows[0]):
                    if (o, y) in reads and (o, z) in reads:
                        result[i, :, j] += product(reads[o, y], reads[o, z])
        return result.reshape(len(own) * n, len(other) * n)

    # An entry is a sum of at most `terms` products. A row of the Gram matrix has at most (2 r + 1) blocks.
    terms, near = kernel[:, 0].size + len(matrices), 2 * len(matrices) + 1
    largest = max(float(np.linalg.norm(m)) for m in matrices) ** 2
    return block, near * len(matrices) * terms * UNIT * largest * 1.01


def _estimate(values: Mapping[str, Any], sides: Shape) -> float:
    """Of the norm, by bidiagonalisation from a random start; products with A^T tap by tap."""
    kernel = values["kernel"]
    rows, columns = _geometry(values, sides)

    def transposed(y: Array) -> Array:
        x = np.zeros((*sides, kernel.shape[1]))
        for ty, tx in np.ndindex(*kernel.shape[2:]):
            (to_y, from_y), (to_x, from_x) = rows[1][ty], columns[1][tx]
            x[from_y, from_x] += y[to_y, to_x] @ kernel[:, :, ty, tx]
        return np.moveaxis(x, 2, 0)[None]

    v = np.random.default_rng(0).standard_normal((1, kernel.shape[1], *sides))
    v /= np.linalg.norm(v)
    diagonal, above = [], [0.0]
    u = np.zeros((1, 1, 1, 1))
    for _ in range(min(STEPS, v.size)):
        u = convolve(values, v)[0] - above[-1] * u
        diagonal.append(float(np.linalg.norm(u)))
        if diagonal[-1] < 1e-13:
            break
        u = u / diagonal[-1]
        v = transposed(np.moveaxis(u[0], 0, 2)) - diagonal[-1] * v
        above.append(float(np.linalg.norm(v)))
        if above[-1] < 1e-13:
            break
        v = v / above[-1]
    n = len(diagonal)
    return float(np.linalg.norm(np.diag(diagonal) + np.diag(above[1:n], 1), 2))
