r"""Every operator in numpy and float64, with a bound on the error of what was computed.

A value carries a bound E on the distance, in l2, between it and the exact value at the same image. An
operator with constant L makes of it :math:`E' = L E + \epsilon`, with :math:`\epsilon` its own rounding at
the numbers that it was given: a sum of n products, in any order, is off by at most :math:`\gamma_n` times the
same sum of absolute values (N. J. Higham, Accuracy and Stability of Numerical Algorithms, chapter 3), which
is computed as well. So a large bias makes E large, and E is only ever taken off what can be confirmed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lipcert.certify.independent.activations import activate
from lipcert.certify.independent.constants import Constants
from lipcert.certify.independent.convolution import convolve, same_size
from lipcert.certify.independent.norms import UNIT
from lipcert.certify.independent.pointwise import elementwise, pool
from lipcert.certify.independent.skew import skew_taps
from lipcert.certify.independent.tree import Array, Combinator, Leaf, Network, Node

INFLATE = 1 + 2.0**-20
"""Covers the rounding of bounds themselves, and of norms of up to 2^30 numbers."""
BATCH = 64
"""Images that are in memory at once."""


@dataclass(frozen=True)
class Evaluation:
    """What a network makes of N images.

    Attributes:
        logits: (N, K).
        error: (N,), bound on the distance of the logits from the exact ones.
        features: (N, D), what enters the last matrix; the logits if there is none.
        gains: for every operator the largest growth of a distance between two of its inputs that was seen,
            a lower bound of its constant.
    """

    logits: Array
    error: Array
    features: Array
    gains: Mapping[int, float]


@dataclass(frozen=True)
class _Flow:
    value: Array
    error: Array
    features: Array


def evaluate(network: Network, constants: Constants, pixels: Array) -> Evaluation:
    """Evaluate a network on pixels (N, C, H, W); numbers that overflow are infinite, or NaN, in the result.

    Args:
        network: as it was read.
        constants: as they were derived from it.
        pixels: float64.
    """
    gains: dict[int, float] = {}
    parts = []
    with np.errstate(all="ignore"):
        for first in range(0, len(pixels), BATCH):
            batch = pixels[first : first + BATCH]
            parts.append(_run(network.tree, _Flow(batch, np.zeros(len(batch)), batch), constants, gains))
    logits, error = (np.concatenate([getattr(part, name) for part in parts]) for name in ("value", "error"))
    features = np.concatenate([part.features.reshape(len(part.value), -1) for part in parts])
    return Evaluation(logits, error, features, gains)


def _run(node: Node, flow: _Flow, constants: Constants, gains: dict[int, float]) -> _Flow:
    if isinstance(node, Leaf):
        value, own = apply(node, flow.value, constants.operator_norms[node.number])
        gains[node.number] = max(gains.get(node.number, 0.0), _gain(flow.value, value, own))
        error = (constants.leaves[node.number] * flow.error + own) * INFLATE
        return _Flow(value, error, flow.value if node.kind == "Matrix" else value)
    if node.kind == "Sequence":
        for part in node.parts:
            flow = _run(part, flow, constants, gains)
        return flow
    return _join(node, [_run(part, flow, constants, gains) for part in node.parts])


def _join(node: Combinator, flows: list[_Flow]) -> _Flow:
    if node.kind == "Concatenation":
        value = np.concatenate([flow.value for flow in flows], axis=1)
        error = np.sqrt(sum(flow.error**2 for flow in flows)) * INFLATE
        return _Flow(value, error, value)
    # A product and a sum for each branch; the first sum adds zero and rounds nothing.
    value, error = np.zeros_like(flows[0].value), np.zeros_like(flows[0].error)
    for flow, weight in zip(flows, node.weights, strict=True):
        term = weight * flow.value
        value = value + term
        error = (error + abs(weight) * flow.error + UNIT * (norms(term) + norms(value))) * INFLATE
    parts = [w * f.features.reshape(len(value), -1) for f, w in zip(flows, node.weights, strict=True)]
    return _Flow(value, error, np.concatenate(parts, axis=1))


def apply(leaf: Leaf, x: Array, operator_norm: float) -> tuple[Array, Array]:
    """One operator on a batch, and for each sample a bound (N,) on the length of its own rounding error.

    Args:
        leaf: the operator.
        x: (N, ...).
        operator_norm: bound on ||A|| of a polynomial of a skew operator; of others on their own norm.
    """
    kind, v = leaf.kind, leaf.values
    exact = np.zeros(len(x))
    if kind == "SpaceToDepth":
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 3, 5, 2, 4)
        return blocks.reshape(n, 4 * c, h // 2, w // 2), exact
    if kind == "Reshape":
        return x.reshape(len(x), *(v["shape"] or (-1,))), exact
    if kind == "Mirror":
        return x[..., ::-1], exact
    if kind == "ChannelPad":
        zeros = np.zeros((len(x), v["channels"] - x.shape[1], *x.shape[2:]))
        return np.concatenate([x, zeros], axis=1), exact
    if kind == "ChannelSlice":
        return x[:, v["start"] : v["stop"]], exact
    if kind == "Transpose":
        return x.transpose(0, *(axis + 1 for axis in v["order"])), exact
    if kind == "Repeat":
        return x.repeat(v["block"][0], axis=2).repeat(v["block"][1], axis=3), exact
    if kind in ("Elementwise", "Pool"):
        y, sizes = (elementwise if kind == "Elementwise" else pool)(v, x)
        return y, UNIT * norms(sizes)
    if kind == "Convolution":
        y, sizes = convolve(v, x)
        return _add_bias(y, gamma(v["kernel"][0].size) * norms(sizes), v["bias"])
    if kind == "Frame":
        margin, cut = max(0, v["margin"]), max(0, -v["margin"])
        y = np.pad(x, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
        return y[:, :, cut : y.shape[2] - cut, cut : y.shape[3] - cut], exact
    if kind == "ChannelAffine":
        column = (-1, *(1,) * (x.ndim - 2))
        y = (x - v["mean"].reshape(column)) / v["std"].reshape(column)
        return y, 3 * UNIT * norms(y)
    if kind == "Matrix":
        y, sizes = x @ v["weight"].T, np.abs(x) @ np.abs(v["weight"]).T
        return _add_bias(y, gamma(x.shape[1]) * norms(sizes), v["bias"])
    if kind == "GradientStep":
        return _gradient_step(x, v, operator_norm)
    if kind == "CircularConvolution":
        return _add_bias(*_circular(x, v), v["bias"])
    if kind == "TransposedConvolution":
        return _add_bias(*_transposed(x, v), v["bias"])
    if kind == "SpectralConvolution":
        return _add_bias(*_spectral(x, v["spectrum"], operator_norm), v["bias"])
    if kind == "SkewPolynomial":
        y, error = _polynomial(leaf, x, operator_norm)
        return _add_bias(y[:, : v["out_channels"]], error, v["bias"])
    y, units = activate(kind, v, x)
    return y, units * UNIT * norms(x)


def gamma(terms: int) -> float:
    """Relative rounding error of a sum of so many products."""
    return terms * UNIT / (1 - terms * UNIT)


def norms(x: Array) -> Array:
    """Length of every sample, rounded up; what underflows in its squares is added."""
    flat = np.abs(x.reshape(len(x), -1))
    return np.asarray(np.sqrt((flat**2).sum(axis=1)) * INFLATE + flat.shape[1] * 2.0**-510)


def _add_bias(y: Array, error: Array, bias: Array | None) -> tuple[Array, Array]:
    if bias is None:
        return y, error
    y = y + bias.reshape(-1, *(1,) * (y.ndim - 2))
    return y, (error + UNIT * norms(y)) * INFLATE


def _circular(x: Array, v: Mapping[str, Any]) -> tuple[Array, Array]:
    """Every group of channels by itself; what is off in their outputs adds up as their squares do."""
    parts = zip(np.split(x, v["groups"], axis=1), np.split(v["kernel"], v["groups"]), strict=True)
    made = []
    for group, kernel in parts:
        taps = kernel.transpose(2, 3, 0, 1).reshape(-1, *kernel.shape[:2])
        made.append(_correlate(group, taps, circular=True, stride=v["stride"], dilation=v["dilation"]))
    error = np.sqrt(sum(own**2 for _, own in made)) * INFLATE
    return np.concatenate([y for y, _ in made], axis=1), error


def _transposed(x: Array, v: Mapping[str, Any]) -> tuple[Array, Array]:
    """y[o, s p + d (t - k // 2)] = sum over i, t of K[i, o, t] x[i, p], tap by tap, and its rounding."""
    n, _, h, w = x.shape
    step, count, size = v["stride"], v["groups"], v["kernel"].shape[-1]
    made = []
    for group, kernel in zip(np.split(x, count, axis=1), np.split(v["kernel"], count), strict=True):
        y, sizes = np.zeros((2, n, kernel.shape[1], step * h, step * w))
        for ty, tx in np.ndindex(size, size):
            tap, places = kernel[:, :, ty, tx], [v["dilation"] * (t - size // 2) for t in (ty, tx)]
            for total, image, matrix in ((y, group, tap), (sizes, np.abs(group), np.abs(tap))):
                spread = np.zeros_like(total)
                spread[:, :, ::step, ::step] = np.moveaxis(np.moveaxis(image, 1, 3) @ matrix, 3, 1)
                total += np.roll(spread, places, axis=(2, 3))
        made.append((y, gamma(kernel.shape[0] + size**2) * norms(sizes)))
    error = np.sqrt(sum(own**2 for _, own in made)) * INFLATE
    return np.concatenate([y for y, _ in made], axis=1), error


def _correlate(
    x: Array, taps: Array, *, circular: bool, stride: int = 1, dilation: int = 1
) -> tuple[Array, Array]:
    """y[o, p] = sum over i, t of K[o, i, t] x[i, s p + d (t - k // 2)], tap by tap, and its rounding."""
    n, _, height, width = x.shape
    h, w = height // stride, width // stride
    size = math.isqrt(len(taps))
    reach = dilation * (size // 2)
    margins = ((0, 0), (reach, reach), (reach, reach), (0, 0))
    padded = np.pad(np.moveaxis(x, 1, 3), margins, mode="wrap" if circular else "constant")
    y, sizes = np.zeros((2, n * h * w, taps.shape[1]))
    for t, (ty, tx) in enumerate(np.ndindex(size, size)):
        top, left = dilation * ty, dilation * tx
        moved = padded[:, top : top + height : stride, left : left + width : stride].reshape(n * h * w, -1)
        y = y + moved @ taps[t].T
        sizes = sizes + np.abs(moved) @ np.abs(taps[t]).T
    error = gamma(x.shape[1] + len(taps)) * norms(sizes.reshape(n, -1))
    return np.moveaxis(y.reshape(n, h, w, -1), 3, 1), error


def _polynomial(leaf: Leaf, x: Array, operator_norm: float) -> tuple[Array, Array]:
    """p(A) x by Horner's rule, v <- A v + c_j x; what is off in v grows by ||A|| in a step."""
    taps, coefficients = skew_taps(leaf.values), leaf.values["coefficients"]
    zeros = np.zeros((len(x), taps.shape[1] - x.shape[1], *x.shape[2:]))
    x = np.concatenate([x, zeros], axis=1)
    y = coefficients[-1] * x
    error = UNIT * norms(y)
    for coefficient in coefficients[-2::-1]:
        moved, own = _correlate(y, taps, circular=False)
        term = coefficient * x
        y = moved + term
        error = (operator_norm * error + own + UNIT * (norms(term) + norms(y))) * INFLATE
    return y, error


def _gradient_step(x: Array, v: Mapping[str, Any], norm: float) -> tuple[Array, Array]:
    """The step x - V^T relu(V x + b): what is off in V x + b reaches the end times ||V||."""
    kernel = v["kernel"]
    x = np.concatenate([x, np.zeros((len(x), kernel.shape[1] - x.shape[1], *x.shape[2:]))], axis=1)
    moved, sizes = convolve(same_size(kernel), x)
    hidden, error = _add_bias(moved, gamma(kernel[0].size) * norms(sizes), v["bias"])
    back, sizes = convolve(same_size(kernel.swapaxes(0, 1)[..., ::-1, ::-1]), np.maximum(hidden, 0))
    y = x - back
    own = gamma(kernel[:, 0].size) * norms(sizes)
    return y[:, : v["out_channels"]], (norm * error + own + UNIT * norms(y)) * INFLATE


def _spectral(x: Array, spectrum: Array, norm: float) -> tuple[Array, Array]:
    r"""One matrix per frequency, on the full grid: what is not stored is the conjugate of its mirror image.

    Fourier matrices are applied as matrices. Their entries are off by at most 32 u / sqrt(n), so a transform
    of n numbers by sqrt(n) (32 u + sqrt(2) gamma_{2n + 4}) of their length.
    """
    n, channels, h, w = x.shape
    matrices = spectrum[..., 0] + 1j * spectrum[..., 1] if spectrum.ndim == 4 else spectrum + 0j
    half = matrices.reshape(h, w // 2 + 1, *matrices.shape[1:3])
    rest = np.arange(w // 2 + 1, w)
    mirrored = half[-np.arange(h) % h][:, w - rest].conj()
    full = np.concatenate([half, mirrored], axis=1).reshape(h * w, *matrices.shape[1:3])
    down, across = _fourier(h), _fourier(w)
    waves = (down @ x @ across).reshape(n, channels, h * w).transpose(2, 1, 0)
    product, sizes = full @ waves, np.abs(full) @ np.abs(waves)
    back = product.transpose(2, 1, 0).reshape(n, -1, h, w)
    y = (down.conj() @ back @ across.conj()).real
    transform = (
        sum(math.sqrt(side) * (32 * UNIT + math.sqrt(2) * gamma(2 * side + 4)) for side in (h, w)) * 1.01
    )
    own = math.sqrt(2) * gamma(2 * channels + 4) * norms(sizes.transpose(2, 1, 0))
    return y, (transform * (norm * norms(x) + norms(back)) + own) * 1.01


def _fourier(n: int) -> Array:
    """The unitary matrix of the Fourier transform of n numbers; turns are reduced as integers."""
    turns = np.outer(np.arange(n), np.arange(n)) % n
    return np.asarray(np.exp(-2j * np.pi * turns / n) / math.sqrt(n))


def _gain(x: Array, y: Array, error: Array) -> float:
    """Largest growth of a distance between one sample and the next, less what rounding may have added."""
    before, after = (np.linalg.norm(np.diff(z.reshape(len(z), -1), axis=0), axis=1) for z in (x, y))
    growth = (after - error[1:] - error[:-1])[before > 0] / before[before > 0]
    return float(np.nan_to_num(growth, nan=0.0, posinf=0.0).max(initial=0.0)) * (1 - 2.0**-30)
