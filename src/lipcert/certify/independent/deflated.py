r"""Norms of convolutions that are too large for a factorisation of the whole Gram matrix.

On a torus around the map the Gram matrix is one matrix per frequency; its largest eigenvalues are a little
too large. With U the waves of these, d_j by how much they exceed a floor, B their restriction to the map and
:math:`P = \lambda - A^T A + B D B^T`, the norm is at most :math:`\sqrt\lambda` if
:math:`D^{1/2} B^T P^{-1} B D^{1/2} \le 1`. P is bounded from below on the torus, by eigenvalues of LAPACK,
and its inverse through the residual of an approximate solution. A is taken with all its outputs, which makes
its norm larger by less than a thousandth on maps of 16x16.
"""

import math

import numpy as np

from lipcert.certify.independent.norms import UNIT, circular_norm_bound
from lipcert.certify.independent.tree import Array, Shape

GAPS, LIFT, MOST = (1e-4, 3e-4, 9e-4, 2.7e-3), 0.025, 400
STEPS, ITERATIONS, RESIDUAL = 200, 300, 1e-4


def deflated_norm_bound(kernel: Array, sides: Shape) -> float:
    """Upper bound on the norm on maps of these sides; kernel (out, in, kh, kw), with entries of about 1."""
    torus = tuple(n + k - 1 for n, k in zip(sides, kernel.shape[2:], strict=True))
    estimate = _estimate(kernel, sides)
    for gap in GAPS:
        guess = (estimate * (1 + gap)) ** 2
        found = _waves(kernel, sides, torus, guess)
        if found is None:
            break
        if _holds(kernel, sides, guess, *found):
            return math.sqrt(guess) * (1 + 2.0**-50)
    # Square taps on a torus that is large enough; taps of zeros change nothing.
    size = max(kernel.shape[2:]) | 1
    rest = [(0, size - k) for k in kernel.shape[2:]]
    return circular_norm_bound(np.pad(kernel, ((0, 0), (0, 0), *rest)), *torus)


def _gram(kernel: Array, x: Array) -> Array:
    """A^T A of maps (r, H, W, in), tap by tap."""
    r, height, width, channels = x.shape
    taps = np.ascontiguousarray(kernel.transpose(2, 3, 0, 1))
    ky, kx, out, _ = taps.shape
    y = np.zeros((r, height + ky - 1, width + kx - 1, out), dtype=x.dtype)
    result, flat = np.zeros_like(x), x.reshape(-1, channels)
    places = [(ky - 1 - ty, kx - 1 - tx) for ty, tx in np.ndindex(ky, kx)]
    for tap, (top, left) in zip(taps.reshape(-1, out, channels), places, strict=True):
        y[:, top : top + height, left : left + width] += (flat @ tap.T).reshape(r, height, width, out)
    for tap, (top, left) in zip(taps.reshape(-1, out, channels), places, strict=True):
        result += (y[:, top : top + height, left : left + width].reshape(-1, out) @ tap).reshape(x.shape)
    return result


def _estimate(kernel: Array, sides: Shape) -> float:
    """Of the norm, by Lanczos."""
    shape = (1, *sides, kernel.shape[1])
    vector = np.random.default_rng(0).standard_normal(shape)
    vector /= np.linalg.norm(vector)
    previous, diagonal, beside = np.zeros(shape), [], [0.0]
    for _ in range(min(STEPS, vector.size)):
        image = _gram(kernel, vector) - beside[-1] * previous
        diagonal.append(float((image * vector).sum()))
        image -= diagonal[-1] * vector
        beside.append(float(np.linalg.norm(image)))
        if beside[-1] < 1e-12:
            break
        previous, vector = vector, image / beside[-1]
    off = np.diag(beside[1 : len(diagonal)], 1)
    return math.sqrt(float(np.linalg.eigvalsh(np.diag(diagonal) + off + off.T)[-1]))


def _waves(kernel: Array, sides: Shape, torus: Shape, guess: float) -> tuple[Array, Array, float] | None:
    """The waves on the map (n, r), their weights, and a lower bound on P."""
    out, channels, *taps = kernel.shape
    flat = kernel.transpose(2, 3, 0, 1).reshape(-1, out * channels)
    offsets, pixels = (np.array(list(np.ndindex(*shape))) for shape in (tuple(taps), sides))
    phase = (64 + 3 * (len(offsets) + 2)) * UNIT * float(np.linalg.norm(flat, axis=1).sum()) * 1.01
    basis, weights, largest = [np.zeros((len(pixels) * channels, 0))], [np.zeros(0)], 0.0
    for frequency in np.ndindex(*torus):
        negative = tuple(-f % n for f, n in zip(frequency, torus, strict=True))
        if negative < frequency:
            continue
        own = negative == frequency
        waves = np.exp(1j * _angles(frequency, offsets, torus)) @ flat
        matrix = (waves.real if own else waves).reshape(out, channels)
        gram = matrix.conj().T @ matrix
        values, vectors = np.linalg.eigh(gram)
        excess = np.maximum(values - (1 - LIFT) * guess, 0)
        lowered = gram - (vectors * excess) @ vectors.conj().T
        size = float(np.linalg.norm(matrix))
        # The products behind the Gram matrix and behind what is taken off it, the phases, the eigenvalue.
        error = (6 * (out + channels + 8) + 64 * channels) * UNIT * (size**2 + 2 * float(excess.sum()))
        error += 2 * phase * size + phase**2
        largest = max(largest, float(np.linalg.eigvalsh(lowered)[-1]) + error * 1.01)
        chosen = vectors[:, excess > 0]
        if chosen.size:
            turns = np.exp(1j * _angles(frequency, pixels, torus))
            wave = (turns[:, None, None] * chosen).reshape(-1, chosen.shape[1]) / math.sqrt(math.prod(torus))
            parts = [wave.real] if own else [math.sqrt(2) * wave.real, math.sqrt(2) * wave.imag]
            basis += parts
            weights += [excess[excess > 0]] * len(parts)
    joined = np.concatenate(basis, axis=1)
    if joined.shape[1] > MOST or guess <= largest:
        return None
    return joined, np.concatenate(weights), guess - largest


def _angles(frequency: Shape, places: Array, torus: Shape) -> Array:
    """2 pi times a sum of fractions of turns, each reduced as an integer."""
    turns = (np.array(frequency) * places) % np.array(torus)
    return np.asarray((turns * (2 * np.pi / np.array(torus))).sum(axis=1))


def _holds(kernel: Array, sides: Shape, guess: float, basis: Array, weights: Array, floor: float) -> bool:
    """Whether the condition on D and P is met, with all rounding counted."""
    n, r = basis.shape
    if not r:
        return True
    solved = _solved(kernel, sides, guess, basis, weights)
    residual = basis - _product(kernel, sides, guess, basis, weights, solved)
    w, b, heaviest = float(np.linalg.norm(solved)), float(np.linalg.norm(basis)), float(weights.max())
    sizes = np.abs(kernel)
    spread = float(sizes.sum(axis=(1, 2, 3)).max() * sizes.sum(axis=(0, 2, 3)).max())
    deflation = heaviest * b**2
    shaky = 256 * UNIT * math.sqrt(r)  # of the basis: phases, vectors and roots
    off = (kernel[0].size + kernel[:, 0].size + 32) * UNIT * spread * w
    off += (
        (n + r + 32) * UNIT * deflation * w + 32 * UNIT * (guess * w + b) + shaky * (1 + 3 * b * heaviest * w)
    )
    rest = float(np.linalg.norm(residual)) + off
    inner = basis.T @ solved + solved.T @ residual
    inner_off = (2 * n + 32) * UNIT * w * (b + rest) + w * (shaky + off)
    roots = np.sqrt(weights)
    scaled = roots[:, None] * (inner + inner.T) / 2 * roots
    slack = heaviest * (inner_off + rest**2 / floor) + (64 * r + 32) * UNIT * float(np.linalg.norm(scaled))
    return bool(np.linalg.eigvalsh(scaled)[-1] + slack * 1.02 <= 1 - 1e-9)


def _product(kernel: Array, sides: Shape, guess: float, basis: Array, weights: Array, x: Array) -> Array:
    """P x for vectors (n, r)."""
    maps = np.ascontiguousarray(x.T).reshape(-1, *sides, kernel.shape[1])
    image = _gram(kernel, maps).reshape(len(maps), -1).T
    return np.asarray(x.dtype.type(guess) * x - image + basis @ (weights[:, None] * (basis.T @ x)))


def _solved(kernel: Array, sides: Shape, guess: float, basis: Array, weights: Array) -> Array:
    """About P^-1 B, by conjugate gradients in float32."""
    kernel, basis, weights = (a.astype(np.float32) for a in (kernel, basis, weights))
    x, rest = np.zeros_like(basis), basis.copy()
    step, squares = rest.copy(), (rest**2).sum(axis=0)
    goal = squares * np.float32(RESIDUAL**2)
    for _ in range(ITERATIONS):
        image = _product(kernel, sides, guess, basis, weights, step)
        length = squares / np.maximum((step * image).sum(axis=0), 1e-30)
        x += length * step
        rest -= length * image
        now = (rest**2).sum(axis=0)
        if (now <= goal).all():
            break
        step, squares = rest + now / np.maximum(squares, 1e-30) * step, now
    return x.astype(np.float64)
