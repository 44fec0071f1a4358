r"""Proved upper bounds on eigenvalues of Hermitian matrices, by a floating-point Cholesky factorisation.

Let H be Hermitian, s a guess, T = fl(s I - H). If the factorisation of T runs to its end, then s I - H + E is
positive semidefinite for some ||E|| <= `cholesky_error`, hence

.. math:: \lambda_{\max}(H) \le s + \text{cholesky\_error}.

How the guess was found does not matter: a bad one fails, or gives a loose bound that bisection tightens.

References: S. M. Rump, Verification of positive definiteness, BIT 46, 2006; J. W. Demmel, On floating point
errors in Cholesky, LAPACK Working Note 14, 1989.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipcert.proofs.rounding import TINY, UNIT, gamma, product_up, sqrt_up, sum_up, up

TOLERANCE = 5e-5  # a failed and a successful guess that are this close end the search
LANCZOS_STEPS = 60


def cholesky_error(n: int, trace: float) -> float:
    r"""Bound on ||E|| where s I - H + E = R^H R, for a completed factorisation of T = fl(s I - H).

    Each entry of R comes from a real sum of at most 2n + 2 products (a complex product is two), a division
    and a root, so each part of (R^H R - T)_ij is at most gamma_m sum_k |r_ki| |r_kj| with m = 2n + 8 (spare
    roundings for reciprocals). With both parts, c = sqrt(2) gamma_m: at most c ||r_i|| ||r_j||, and the
    diagonal gives ||r_i||^2 <= T_ii / (1 - c). So the norm is at most c / (1 - c) * trace(T). Rounding of
    the shift adds u T_ii / (1 - u) on the diagonal: at most 2 u trace(T), as all T_ii are positive.
    """
    c = product_up(sqrt_up(2.0), gamma(2 * n + 8))
    return product_up(sum_up(product_up(c, up(1 / (1 - up(c)))), 2 * UNIT), trace)


def largest_eigenvalue_upper_bound(
    h: Tensor, gap: float, *, proved: float, symmetric_spectrum: bool
) -> float:
    """Bound on the eigenvalues of Hermitian matrices given by their lower triangles, not below `proved`.

    Args:
        h: (matrices, n, n), float64 or complex128, on the CPU, scaled to entries of about 1.
        gap: relative distance between the estimate and the first guess.
        proved: what larger matrices have been bounded by already; nothing smaller has to be proved.
        symmetric_spectrum: bound only the largest eigenvalue, else the largest absolute value.
    """
    signs = (1,) if symmetric_spectrum else (1, -1)
    floor = max(proved, h.shape[-1] * 2.0**-44)  # below this, rounding errors of the proof are all there is
    estimate = _largest_eigenvalue_estimate(h, signs)
    return max(proved, search(lambda guess: prove_eigenvalue_bound(h, guess, signs), estimate, gap, floor))


def search(
    prove: Callable[[float], float | None],
    estimate: float,
    gap: float,
    floor: float,
    tolerance: float = TOLERANCE,
) -> float:
    """The smallest bound that `prove` gives for guesses from just above the estimate (and the floor) on."""
    failed, guess = 0.0, max(estimate * (1 + gap), floor)
    while (bound := prove(guess)) is None:
        failed, gap = guess, 10 * gap
        guess = max(guess, estimate) * (1 + gap)
    while failed and guess > failed * (1 + tolerance):
        middle = math.sqrt(failed * guess)
        if (better := prove(middle)) is None:
            failed = middle
        else:
            guess, bound = middle, better
    return bound


def prove_eigenvalue_bound(h: Tensor, guess: float, signs: tuple[int, ...] = (1,)) -> float | None:
    """Bound on the largest eigenvalue of every sign * H, just above `guess`; None if the proof fails."""
    n, bound = h.shape[-1], 0.0
    for sign in signs:
        shifted = h.neg() if sign > 0 else h.clone()
        diagonal = shifted.diagonal(dim1=1, dim2=2)
        diagonal += guess
        trace = float(diagonal.real.sum(dim=1).max())
        factor, info = torch.linalg.cholesky_ex(shifted)
        if bool(info.any()) or not bool(torch.isfinite(factor.diagonal(dim1=1, dim2=2).real).all()):
            return None
        trace = trace_up(trace, n)
        bound = max(bound, sum_up(guess, cholesky_error(n, trace), TINY))
    return bound


def trace_up(computed: float, terms: int) -> float:
    """Bound on a trace from its computed value, for a diagonal that a factorisation found to be positive."""
    return product_up(computed, sum_up(1.0, gamma(2 * terms)))


def start_vectors(batch: int, n: int) -> Tensor:
    """(batch, n, 1), the same at every call, without touching the global random state."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    return torch.randn(batch, n, 1, dtype=torch.float64, device="cpu", generator=generator)


def _largest_eigenvalue_estimate(h: Tensor, signs: tuple[int, ...]) -> float:
    """Estimate of the largest eigenvalue of every sign * H: exact for small matrices, else Lanczos."""
    if h.shape[-1] <= LANCZOS_STEPS:
        values: Tensor = torch.linalg.eigvalsh(h)
    else:
        values = ritz_values(lambda v: h @ v, start_vectors(*h.shape[:2]).to(h.dtype))
    return max(float((sign * values).max()) for sign in signs)


def ritz_values(apply: Callable[[Tensor], Tensor], start: Tensor, most: int = LANCZOS_STEPS) -> Tensor:
    """Eigenvalues of a Hermitian operator on the Krylov space of `start`: estimates of the extreme ones.

    Lanczos with every vector orthogonalised twice against all before it, which is as good as exactly.
    """
    steps = min(most, start.shape[1])
    basis = torch.zeros(*start.shape[:2], steps, dtype=start.dtype, device=start.device)
    image = torch.zeros_like(basis)
    vector, noise = start, torch.finfo(start.dtype).eps ** (2 / 3)
    for step in range(steps):
        before = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        for _ in range(2):
            vector = vector - basis[:, :, :step] @ (basis[:, :, :step].mH @ vector)
        size = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        # What is left of an exhausted Krylov space is noise, not orthogonal to it: go on with zero.
        vector = torch.where(size > noise * before, vector / size, torch.zeros_like(vector))
        basis[:, :, step : step + 1] = vector
        vector = apply(vector)
        image[:, :, step : step + 1] = vector
    projected = basis.mH @ image
    values: Tensor = torch.linalg.eigvalsh((projected + projected.mH) / 2)
    return values
