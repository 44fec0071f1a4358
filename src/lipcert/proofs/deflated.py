r"""Proved norms of large zero-padded convolutions, from the torus around the map and a few waves.

Let C be the convolution on a torus so large that no output wraps around, R the restriction to the map and
:math:`T = R\,C^* C\,R^T`: the Gram matrix of the convolution with all its outputs, also those that a smaller
padding cuts off, so that :math:`\|A\|^2 \le \lambda_{\max}(T)`. On the torus C is a matrix per frequency, but
its norm is that of a larger operator, by half a percent on 16x16 maps. The waves u_j that it amplifies too
much are few. With weights d_j > 0,

.. math:: \lambda - T = P - B D B^T, \quad P = R\,(\lambda - C^* C + U D U^T)\,R^T, \quad B = R\,U,

and P is at least :math:`\epsilon` > 0, as a factorisation per frequency proves. So :math:`T \le \lambda`
if and only if :math:`D^{1/2} B^T P^{-1} B D^{1/2} \le 1`. For any W, with :math:`\rho = B - P W`,

.. math:: B^T P^{-1} B = B^T W + W^T \rho + \rho^T P^{-1} \rho \le B^T W + W^T \rho + \|\rho\|^2 / \epsilon .

W comes from conjugate gradients in float32, whose errors only show in the residual, which is computed in
float64 with its rounding. All waves are real: of a frequency and its negative, the real and imaginary parts.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.proofs.eigenvalues import prove_eigenvalue_bound, ritz_values, start_vectors
from lipcert.proofs.rounding import (
    TINY,
    UNIT,
    frobenius_upper_bound,
    gamma,
    product_up,
    sqrt_up,
    sum_up,
)
from lipcert.proofs.spectral import (
    CHUNK,
    circular_convolution_norm_upper_bound,
    gram_error,
    transform_error,
)

GAPS = (5e-4, 1e-3, 2e-3, 4e-3)
"""Relative distances from the estimate of the norm to the guesses."""
LIFT = 0.02
"""Waves with more than 1 - LIFT of the guess are taken; P is at least LIFT of it."""
MOST_WAVES = 300
STEPS, ITERATIONS, RESIDUAL = 150, 200, 3e-4


class Waves(NamedTuple):
    """The waves that are amplified too much.

    Attributes:
        basis: (n, r), restricted to the map.
        weights: (r,), d_j.
        floor: proved lower bound on P.
        length: bound on the norm of a wave on the torus.
    """

    basis: Tensor
    weights: Tensor
    floor: float
    length: float


@torch.no_grad()
def deflated_norm_upper_bound(kernel: Tensor, height: int, width: int) -> float:
    """Proved upper bound on the norm of a stride-1 convolution of height x width maps, all outputs kept.

    Args:
        kernel: (out, in, kh, kw) in float64 on the CPU, with entries of about 1.
        height, width: of the map.
    """
    sides = (height + kernel.shape[2] - 1, width + kernel.shape[3] - 1)
    estimate = _estimate(kernel, height, width)
    for gap in GAPS:
        guess = (estimate * (1 + gap)) ** 2
        waves = _waves(kernel, (height, width), sides, guess)
        if waves is None:
            break
        if _holds(kernel, (height, width), guess, waves):
            return sqrt_up(guess)
    return circular_convolution_norm_upper_bound(kernel, *sides)


def _gram(kernel: Tensor, x: Tensor) -> Tensor:
    """A^T A of maps (r, in, H, W), with all outputs."""
    padding = (kernel.shape[2] - 1, kernel.shape[3] - 1)
    return F.conv_transpose2d(F.conv2d(x, kernel, padding=padding), kernel, padding=padding)


def _estimate(kernel: Tensor, height: int, width: int) -> float:
    shape = (1, kernel.shape[1], height, width)
    start = start_vectors(1, math.prod(shape))
    values = ritz_values(lambda v: _gram(kernel, v.view(shape)).view_as(v), start, STEPS)
    return math.sqrt(float(values.max()))


def _waves(kernel: Tensor, size: tuple[int, int], sides: tuple[int, int], guess: float) -> Waves | None:
    """Which waves are needed for a guess of the squared norm, and the proof that P is positive with them."""
    out, channels, *taps = kernel.shape
    table = kernel.permute(2, 3, 0, 1).flatten(0, 1).flatten(1)
    frequencies, offsets, pixels = (_grid(shape) for shape in (sides, tuple(taps), size))
    number = frequencies[:, 0] * sides[1] + frequencies[:, 1]
    negative = (-frequencies[:, 0] % sides[0]) * sides[1] + (-frequencies[:, 1] % sides[1])
    # What a computed frequency's matrix is off by, and a bound on its norm.
    off = transform_error(len(offsets), frobenius_upper_bound(table))
    norm = product_up(sqrt_up(float(len(offsets))), frobenius_upper_bound(table))
    basis, weights = [kernel.new_zeros(channels * len(pixels), 0)], [kernel.new_zeros(0)]
    top = length = 0.0
    for own, keep in ((True, number == negative), (False, number < negative)):
        if not bool(keep.any()):
            continue
        for part in torch.split(frequencies[keep], max(1, CHUNK // (4 * out * channels))):
            angles = _angles(part, offsets, sides)
            # A frequency that is its own negative has a real matrix: its sines are zero.
            table_here = (
                angles.cos() @ table if own else torch.complex(angles.cos() @ table, angles.sin() @ table)
            )
            matrices = table_here.view(-1, out, channels)
            gram = matrices.mH @ matrices
            values, vectors = torch.linalg.eigh(gram)
            excess = (values - (1 - LIFT) * guess).clamp(min=0)
            lifted = (vectors * excess.unsqueeze(1)) @ vectors.mH
            proved = prove_eigenvalue_bound(gram - lifted, (1 - LIFT) * guess * (1 + 1e-8))
            if proved is None:
                return None
            longest = frobenius_upper_bound(vectors.mT.unsqueeze(-1))
            spread = product_up(float(excess.sum(dim=1).max()), longest, longest, 1 + 2.0**-20)
            error = sum_up(
                gram_error(out, frobenius_upper_bound(matrices)),
                product_up(off, sum_up(2 * norm, off)),
                product_up(sqrt_up(2.0), gamma(2 * channels + 16), spread),
                product_up(4 * UNIT, sum_up(frobenius_upper_bound(gram), frobenius_upper_bound(lifted))),
            )
            top, length = max(top, sum_up(proved, error)), max(length, longest)
            for wave, vector, more in zip(part, vectors, excess, strict=True):
                chosen = more > 0
                turns = _angles(wave.view(1, 2), pixels, sides).view(-1, 1)
                phases = [turns.cos()] if own else [turns.cos(), turns.sin()]
                found = _restricted(phases, vector[:, chosen]) * math.sqrt(
                    (1 if own else 2) / math.prod(sides)
                )
                basis.append(found)
                weights.append(more[chosen].repeat(len(phases)))
            if sum(map(len, weights)) > MOST_WAVES:
                return None
    return Waves(torch.cat(basis, dim=1), torch.cat(weights), guess - top, length) if guess > top else None


def _restricted(phases: list[Tensor], vectors: Tensor) -> Tensor:
    """(channels * pixels, waves): real parts, then imaginary parts, of e^{i w p} a."""
    if len(phases) == 1:
        parts = [torch.einsum("px,cj->cpj", phases[0], vectors)]
    else:
        cos, sin = phases
        parts = [
            torch.einsum("px,cj->cpj", cos, vectors.real) - torch.einsum("px,cj->cpj", sin, vectors.imag),
            torch.einsum("px,cj->cpj", cos, vectors.imag) + torch.einsum("px,cj->cpj", sin, vectors.real),
        ]
    return torch.cat(parts, dim=2).flatten(0, 1)


def _grid(shape: tuple[int, ...]) -> Tensor:
    return torch.cartesian_prod(*(torch.arange(side, device="cpu") for side in shape))


def _angles(frequencies: Tensor, places: Tensor, sides: tuple[int, int]) -> Tensor:
    """2 pi (fy y / H + fx x / W), reduced to [-pi, pi] in integers."""
    count = math.prod(sides)
    scaled = places * torch.tensor([sides[1], sides[0]], device="cpu")
    turns = (frequencies @ scaled.T) % count
    turns = torch.where(turns * 2 > count, turns - count, turns)
    return turns.double() * (2 * math.pi) / count


def _holds(kernel: Tensor, size: tuple[int, int], guess: float, waves: Waves) -> bool:
    """Whether D^(1/2) B^T P^-1 B D^(1/2) <= 1 is proved."""
    basis, weights, floor, length = waves
    n, r = basis.shape
    if not r:
        return True
    solved = _solved(kernel, size, guess, waves)
    image = _product(kernel, size, guess, basis, weights, solved)
    residual = basis - image
    # Norms of the numbers at hand, and of what is not exact in them. Entries of the basis are products of a
    # phase, a vector and a root, off by less than 64 u of themselves.
    heaviest = float(weights.max())
    w, b = (product_up(frobenius_upper_bound(x), 1 + 2.0**-20) for x in (solved, basis))
    b_off = product_up(128 * UNIT, length, sqrt_up(float(r)), 2.0)
    sizes = kernel.abs()
    spread = float(sizes.sum(dim=(1, 2, 3)).max()) * float(sizes.sum(dim=(0, 2, 3)).max()) * (1 + 2.0**-20)
    terms = kernel[0].numel() + kernel[:, 0].numel()
    deflation = product_up(b, b, heaviest)
    off = sum_up(
        product_up(gamma(terms + 16), spread, w),
        product_up(gamma(n + r + 16), deflation, w),
        product_up(gamma(16), sum_up(guess, spread, deflation), w),
        product_up(gamma(4), b),
        product_up(b_off, sum_up(1.0, product_up(3.0, b, heaviest, w))),
        TINY,
    )
    rest = sum_up(product_up(frobenius_upper_bound(residual), 1 + 2.0**-20), off)
    inner = basis.T @ solved + solved.T @ residual
    inner_off = sum_up(
        product_up(gamma(2 * n + 16), w, sum_up(b, rest)), product_up(w, sum_up(b_off, off)), TINY
    )
    roots = weights.sqrt()
    scaled = roots.unsqueeze(1) * ((inner + inner.T) / 2) * roots
    slack = sum_up(
        product_up(heaviest, inner_off, 1 + 2.0**-20),
        product_up(gamma(16), frobenius_upper_bound(scaled)),
        product_up(heaviest, rest, rest, 1 / floor, 1 + 2.0**-20),
    )
    proved = prove_eigenvalue_bound(scaled.unsqueeze(0), 1 - slack - 1e-9) if slack < 0.5 else None
    return proved is not None and sum_up(proved, slack) <= 1


def _product(
    kernel: Tensor, size: tuple[int, int], guess: float, basis: Tensor, weights: Tensor, x: Tensor
) -> Tensor:
    """P x, for vectors (n, r)."""
    maps = x.T.reshape(-1, kernel.shape[1], *size)
    return guess * x - _gram(kernel, maps).flatten(1).T + basis @ (weights.unsqueeze(1) * (basis.T @ x))


def _solved(kernel: Tensor, size: tuple[int, int], guess: float, waves: Waves) -> Tensor:
    """About P^-1 B, by conjugate gradients in float32, all columns at once."""
    single, basis, weights = (t.float() for t in (kernel, waves.basis, waves.weights))
    x, rest = torch.zeros_like(basis), basis.clone()
    step, squares = rest.clone(), rest.square().sum(dim=0)
    goal = squares * RESIDUAL**2
    for _ in range(ITERATIONS):
        image = _product(single, size, guess, basis, weights, step)
        length = squares / (step * image).sum(dim=0).clamp(min=1e-30)
        x += length * step
        rest -= length * image
        now = rest.square().sum(dim=0)
        if bool((now <= goal).all()):
            break
        step, squares = rest + (now / squares.clamp(min=1e-30)) * step, now
    return x.double()
