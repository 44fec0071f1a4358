r"""Proved upper bounds on spectral norms of matrices and convolutions, in float64 on the CPU.

The proof is a factorisation. Let H be Hermitian, s a guess, T = fl(s I - H). If the floating-point Cholesky
factorisation of T runs to its end, then T + E is positive semidefinite for some ||E|| <= `cholesky_error`,
hence

.. math:: \lambda_{\max}(H) \le s + \text{cholesky\_error} + \text{shift\_error}.

How the guess was found does not matter: a bad one fails, or gives a loose bound that bisection tightens.
Skew matrices are bounded through H = iA, all others through the Gram matrix; a convolution frequency by
frequency. Every error that the computation of H makes is added: `gram_error`, `transform_error`, and `TINY`
for underflow. Assumed: IEEE float64 rounded to nearest, ordinary sums in matrix products and in LAPACK's
substitution-based Cholesky, sine and cosine of the C library within 2 units in the last place.

References: S. M. Rump, Verification of positive definiteness, BIT 46, 2006; J. W. Demmel, On floating point
errors in Cholesky, LAPACK Working Note 14, 1989; H. Sedghi et al., The singular values of convolutional
layers, 2019.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast.errors import ArgumentError
from holdfast.functional.modulus import polynomial_modulus_lower_bound, polynomial_modulus_upper_bound
from holdfast.functional.rounding import (
    TINY,
    UNIT,
    frobenius_upper_bound,
    gamma,
    largest_entry_exponent,
    product_up,
    scale_up,
    sqrt_up,
    sum_up,
    times_power_of_two,
    up,
)

__all__ = [
    "circular_convolution_norm_upper_bound",
    "matrix_norm_upper_bound",
    "polynomial_modulus_lower_bound",
    "polynomial_modulus_upper_bound",
    "spectral_matrices_norm_upper_bound",
    "zero_padded_convolution_norm_upper_bound",
]

GAP = 1e-7  # first distance between estimate and guess; rounding errors of the proof are about 1e-10
SKEW_GAP = 1e-5  # the polynomial of a skew operator is flat: its norm to five digits is plenty
BISECT = 5e-5  # a failed and a successful guess that are this close end the search
DENSE = 256  # zero-padded operators of at most this many rows and columns are bounded as one matrix: no loss
CHUNK = 2**22  # complex numbers held at once (64 MB)
PHASE_ERROR = 32 * UNIT


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


def gram_error(m: int, frobenius: float) -> float:
    r"""Bound on ||fl(A^H A) - A^H A|| for A with `m` rows: sqrt(2) gamma_2m ||a_i|| ||a_j|| per entry."""
    return sum_up(product_up(sqrt_up(2.0), gamma(2 * m + 2), frobenius, frobenius), TINY)


def transform_error(taps: int, frobenius: float) -> float:
    r"""Bound on the norm of the error in one frequency's matrix :math:`\sum_t K_t e^{i\theta_t}`.

    A computed phase is off by at most `PHASE_ERROR` = 32 u: the angle 2 pi m / M is taken in [-pi, pi] with m
    exact, so it is off by 4 u pi < 13 u, and sine and cosine by 4 u each; 13 u + sqrt(2) 4 u < 32 u. Each
    part of an entry is a real sum over the taps. So |error_oi| <= (32 u + sqrt(2) gamma_taps (1 + 32 u))
    sum_t |K_oit|, and the Frobenius norm of the last factor is at most sqrt(taps) ||K||_F. A single tap at
    offset 0 has phase 1, exactly.
    """
    if taps == 1:
        return 0.0
    rounding = product_up(sqrt_up(2.0), gamma(taps + 1), 1 + 2 * PHASE_ERROR)
    return sum_up(product_up(sum_up(PHASE_ERROR, rounding), sqrt_up(taps), frobenius), TINY)


def matrix_norm_upper_bound(matrix: Tensor) -> float:
    """Proved upper bound on the largest singular value of one real or complex matrix.

    Guarantee: never below the truth; above it by a factor of at most 1 + 1e-4, for matrices up to about 10^4
    wide.

    Args:
        matrix: shape (rows, columns); any floating dtype (converted to float64, exactly) and device.

    Raises:
        ArgumentError: not a matrix of finite floating-point numbers.

    >>> round(matrix_norm_upper_bound(torch.tensor([[3.0, 0.0], [0.0, -4.0]])), 3)
    4.0
    """
    if matrix.dim() != 2:
        raise ArgumentError(f"matrix: expected shape (rows, columns), got {tuple(matrix.shape)}")
    return spectral_matrices_norm_upper_bound(matrix.unsqueeze(0))


@torch.no_grad()
def spectral_matrices_norm_upper_bound(matrices: Tensor) -> float:
    """Proved upper bound on the largest singular value among a stack of matrices.

    This is the norm of a circular convolution whose per-frequency matrices are given.

    Args:
        matrices: shape (..., rows, columns), real or complex.

    Raises:
        ArgumentError: no matrices, or NaN or infinite entries.
    """
    if matrices.dim() < 2 or not (matrices.is_floating_point() or matrices.is_complex()):
        raise ArgumentError(
            f"matrices: expected floating-point matrices (..., rows, columns), got {matrices.dtype} of shape "
            f"{tuple(matrices.shape)}"
        )
    if matrices.numel() == 0:
        return 0.0
    stack = _float64(matrices).reshape(-1, *matrices.shape[-2:])
    exponent = largest_entry_exponent(torch.view_as_real(stack) if stack.is_complex() else stack)
    bound = 0.0
    for chunk in torch.split(stack, max(1, CHUNK // stack[0].numel())):
        scaled = times_power_of_two(chunk, -exponent)
        if not scaled.is_complex() and scaled.shape[1] == scaled.shape[2] and torch.equal(scaled, -scaled.mT):
            hermitian = torch.complex(torch.zeros_like(scaled), scaled)
            # A real skew matrix has eigenvalues +-iy in pairs, so the largest of iA is the norm of A.
            bound = _largest_eigenvalue_upper_bound(
                hermitian, SKEW_GAP, proved=bound, symmetric_spectrum=True
            )
        else:
            bound = max(bound, _norm_through_gram(scaled, bound))
    return scale_up(sum_up(bound, TINY), exponent) if bool(stack.any()) else 0.0


def circular_convolution_norm_upper_bound(kernel: Tensor, height: int, width: int) -> float:
    """Proved upper bound on the norm of a stride-1 circular convolution of height x width maps.

    The operator is block diagonal in the Fourier basis of the grid, one matrix (out, in) per frequency; a
    kernel larger than the map wraps around, which is what the frequencies of the map's own grid say.

    Args:
        kernel: shape (out, in, kh, kw).
        height: rows of the map.
        width: columns of the map.

    Raises:
        ArgumentError: not a real kernel of finite numbers, or an empty map.

    >>> kernel = torch.tensor([1.0, 0.0, -1.0]).view(1, 1, 1, 3)
    >>> round(circular_convolution_norm_upper_bound(kernel, 1, 4), 3)
    2.0
    >>> circular_convolution_norm_upper_bound(kernel, 1, 2) < 1e-12  # the two taps fall on each other
    True
    """
    return _on_grid(*_checked(kernel, height, width))


@torch.no_grad()
def zero_padded_convolution_norm_upper_bound(kernel: Tensor, height: int, width: int) -> float:
    """Proved upper bound on the norm of a zero-padded stride-1 convolution that keeps height x width.

    A zero-padded map of n pixels never sees taps more than n - 1 away, and it is a compression of the
    circular map of N >= n + h pixels where h is the reach of the taps that it sees: on that circle no tap
    gets from one kept pixel to another the wrong way round. The grid of n pixels itself proves nothing (see
    the example). Operators of at most 256 rows and columns are bounded as one dense matrix, without the loss
    of the compression.

    Args:
        kernel: shape (out, in, kh, kw), kh and kw odd; padding is kh // 2 and kw // 2.
        height: rows of the map.
        width: columns of the map.

    Raises:
        ArgumentError: an even kernel, not a real kernel of finite numbers, or an empty map.

    >>> kernel = torch.tensor([1.0, 0.0, -1.0]).view(1, 1, 1, 3)
    >>> round(zero_padded_convolution_norm_upper_bound(kernel, 1, 2), 3)  # [[0, -1], [1, 0]]
    1.0
    """
    kernel, height, width = _checked(kernel, height, width)
    if kernel.shape[2] % 2 == 0 or kernel.shape[3] % 2 == 0:
        raise ArgumentError(f"kernel: zero padding needs odd sides, got {kernel.shape[2]}x{kernel.shape[3]}")
    reach_y, reach_x = min(kernel.shape[2] // 2, height - 1), min(kernel.shape[3] // 2, width - 1)
    y, x = kernel.shape[2] // 2, kernel.shape[3] // 2
    kernel = kernel[:, :, y - reach_y : y + reach_y + 1, x - reach_x : x + reach_x + 1]
    if max(kernel.shape[:2]) * height * width <= DENSE:
        return matrix_norm_upper_bound(_dense_zero_padded(kernel, height, width))
    return _on_grid(kernel, height + reach_y, width + reach_x)


def _checked(kernel: Tensor, height: int, width: int) -> tuple[Tensor, int, int]:
    if kernel.dim() != 4 or not kernel.is_floating_point() or kernel.numel() == 0:
        raise ArgumentError(
            f"kernel: expected real (out, in, kh, kw), got {kernel.dtype} of shape {tuple(kernel.shape)}"
        )
    if height < 1 or width < 1:
        raise ArgumentError(f"height, width: expected at least 1x1, got {height}x{width}")
    return _float64(kernel), height, width


def _float64(x: Tensor) -> Tensor:
    # GPUs may invert diagonal blocks in triangular solves, which the error analysis does not cover: always
    # the CPU.
    return x.detach().to(device="cpu", dtype=torch.complex128 if x.is_complex() else torch.float64)


def _dense_zero_padded(kernel: Tensor, height: int, width: int) -> Tensor:
    """The matrix (out * H * W, in * H * W) of the zero-padded convolution; a copy of entries, so exact."""
    out_channels, in_channels, rows, columns = kernel.shape
    dense = kernel.new_zeros(out_channels, height, width, in_channels, height, width)
    for ty in range(rows):
        for tx in range(columns):
            dy, dx = ty - rows // 2, tx - columns // 2
            y = torch.arange(max(0, -dy), min(height, height - dy), device="cpu").view(-1, 1)
            x = torch.arange(max(0, -dx), min(width, width - dx), device="cpu").view(1, -1)
            dense[:, y, x, :, y + dy, x + dx] = kernel[:, :, ty, tx]
    return dense.view(out_channels * height * width, in_channels * height * width)


@torch.no_grad()
def _on_grid(kernel: Tensor, height: int, width: int) -> float:
    """Largest norm over the frequencies of a height x width circle."""
    exponent = largest_entry_exponent(kernel)
    if not kernel.any():
        return 0.0
    kernel = times_power_of_two(kernel, -exponent)
    out_channels, in_channels, rows, columns = kernel.shape
    skew = kernel.shape[2:].numel() % 2 == 1 and out_channels == in_channels
    skew = skew and torch.equal(kernel, -kernel.transpose(0, 1).flip(2, 3))
    taps = rows * columns
    table = kernel.permute(2, 3, 0, 1).reshape(taps, -1)
    bound = 0.0
    for cos, sin, symmetric in _phases(
        rows, columns, height, width, max(1, CHUNK // kernel[:, :, 0, 0].numel())
    ):
        real = (cos @ table).view(-1, out_channels, in_channels)
        imaginary = (sin @ table).view(-1, out_channels, in_channels)
        if skew:
            # A frequency and its negative have conjugate matrices, so iA has opposite eigenvalues there: the
            # largest and the smallest on half the grid are the largest on the whole.
            hermitian = torch.complex(-imaginary, real)
            bound = _largest_eigenvalue_upper_bound(
                hermitian, SKEW_GAP, proved=bound, symmetric_spectrum=symmetric
            )
        else:
            bound = max(bound, _norm_through_gram(torch.complex(real, imaginary), bound))
    return scale_up(sum_up(bound, transform_error(taps, frobenius_upper_bound(table)), TINY), exponent)


def _phases(
    rows: int, columns: int, height: int, width: int, chunk: int
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Cosines and sines (frequencies, taps) of half the grid; first those that are their own negatives."""
    if rows * columns == 1:
        one = torch.ones(1, 1, dtype=torch.float64, device="cpu")
        yield one, torch.zeros_like(one), True
        return
    size = height * width
    fy, fx = (f.reshape(-1, 1) for f in _integer_grid(height, width))
    ty, tx = (t.reshape(1, -1) for t in _integer_grid(rows, columns))
    index, negative = fy * width + fx, (-fy % height) * width + (-fx % width)
    own, half = (index == negative).flatten(), (index < negative).flatten()
    for keep, symmetric in ((own, True), (half, False)):
        if not keep.any():
            continue
        for y, x in zip(torch.split(fy[keep], chunk), torch.split(fx[keep], chunk), strict=True):
            turns = (y * (ty - rows // 2) * width + x * (tx - columns // 2) * height) % size
            turns = torch.where(turns * 2 > size, turns - size, turns)
            angle = turns.double() * (2 * math.pi) / size
            yield torch.cos(angle), torch.sin(angle), symmetric


def _integer_grid(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    y, x = torch.arange(rows, device="cpu"), torch.arange(columns, device="cpu")
    return y.view(-1, 1).expand(rows, columns), x.view(1, -1).expand(rows, columns)


def _norm_through_gram(matrices: Tensor, proved: float) -> float:
    """Bound on the norms of a stack of scaled matrices, not below `proved`."""
    if matrices.shape[1] < matrices.shape[2]:
        matrices = matrices.mH.resolve_conj()
    gram = matrices.mH @ matrices
    error = gram_error(matrices.shape[1], frobenius_upper_bound(matrices))
    # Nearly orthogonal matrices need no factorisation: c <= lambda_max <= c + ||G - c I||_F for the mean
    # eigenvalue c.
    center = float(gram.diagonal(dim1=1, dim2=2).real.mean())
    deviation = gram.clone()
    deviation.diagonal(dim1=1, dim2=2).sub_(center)
    spread = product_up(frobenius_upper_bound(deviation), 1 + 4 * UNIT)
    if spread <= GAP * center:
        eigenvalue = sum_up(center, spread)
    else:
        eigenvalue = _largest_eigenvalue_upper_bound(
            gram, GAP, proved=proved * proved, symmetric_spectrum=True
        )
    return max(proved, sqrt_up(sum_up(eigenvalue, error)))


def _largest_eigenvalue_upper_bound(
    h: Tensor, gap: float, *, proved: float, symmetric_spectrum: bool
) -> float:
    """Bound on the eigenvalues of Hermitian matrices given by their lower triangles, not below `proved`.

    With `symmetric_spectrum` only the largest eigenvalue is bounded, else the largest absolute value.
    """
    signs = (1,) if symmetric_spectrum else (1, -1)
    floor = max(proved, h.shape[-1] * 2.0**-44)  # below this, rounding errors of the proof are all there is
    estimate = _largest_eigenvalue_estimate(h, signs)
    failed, guess = 0.0, max(estimate * (1 + gap), floor)
    while (bound := prove_eigenvalue_bound(h, guess, signs)) is None:
        failed, gap = guess, 10 * gap
        guess = max(guess, estimate) * (1 + gap)
    while failed and guess > failed * (1 + BISECT):
        middle = math.sqrt(failed * guess)
        if (better := prove_eigenvalue_bound(h, middle, signs)) is None:
            failed = middle
        else:
            guess, bound = middle, better
    return max(bound, proved)


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
        # A completed factorisation has a positive diagonal, so its computed sum is within gamma_n of the
        # trace.
        trace = product_up(trace, sum_up(1.0, gamma(2 * n)))
        bound = max(bound, sum_up(guess, cholesky_error(n, trace), TINY))
    return bound


def _largest_eigenvalue_estimate(h: Tensor, signs: tuple[int, ...]) -> float:
    """Estimate of the largest eigenvalue of every sign * H: exact for small matrices, else Lanczos."""
    if h.shape[-1] <= 64:
        values = torch.linalg.eigvalsh(h)
    else:
        generator = torch.Generator(device="cpu").manual_seed(0)
        start = torch.randn(*h.shape[:2], 1, dtype=torch.float64, device="cpu", generator=generator).to(
            h.dtype
        )
        values = _ritz_values(h, start, steps=60)
    return max(float((sign * values).max()) for sign in signs)


def _ritz_values(h: Tensor, start: Tensor, steps: int) -> Tensor:
    """Eigenvalues of H on the Krylov space of `start`; orthogonalised twice, which is as good as exactly."""
    basis = torch.zeros(*h.shape[:2], steps, dtype=h.dtype, device=h.device)
    image = torch.zeros_like(basis)
    vector = start
    for step in range(steps):
        before = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        for _ in range(2):
            vector = vector - basis[:, :, :step] @ (basis[:, :, :step].mH @ vector)
        size = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
        # What is left of an exhausted Krylov space is noise, not orthogonal to it: go on with zero.
        vector = torch.where(size > 1e-10 * before, vector / size, torch.zeros_like(vector))
        basis[:, :, step : step + 1] = vector
        vector = h @ vector
        image[:, :, step : step + 1] = vector
    projected = basis.mH @ image
    values: Tensor = torch.linalg.eigvalsh((projected + projected.mH) / 2)
    return values
