r"""Proved upper bounds on spectral norms of matrices and convolutions, in float64 on the CPU.

Skew matrices are bounded through the Hermitian H = iA, all others through the Gram matrix, a convolution
frequency by frequency; `eigenvalues` and `strips` do the proof. Every error in the computation of H is
added: `gram_error`, `transform_error`, and `TINY` for underflow. Assumed: IEEE float64 rounded to nearest,
ordinary sums in matrix products and in LAPACK's substitution-based Cholesky, sine and cosine within 2 units
in the last place.

Reference: H. Sedghi et al., The singular values of convolutional layers, ICLR 2019.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.proofs.eigenvalues import largest_eigenvalue_upper_bound, ritz_values, start_vectors
from lipcert.proofs.rounding import (
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
)
from lipcert.proofs.strips import Strips

GAP = 1e-7  # first distance between estimate and guess; rounding errors of the proof are about 1e-10
SKEW_GAP = 1e-5  # the polynomial of a skew operator is flat: its norm to five digits is plenty
DENSE = 256  # zero-padded operators of at most this many rows and columns are bounded as one matrix
EXACT_PIXELS, EXACT_PRODUCTS = 4, 10**10  # skew operators beyond both are bounded row by row on a circle
SKEW_STEPS = 40  # of Lanczos: ends 1e-5 below the norm of a random kernel, and rarely more than 3e-4
CHUNK = 2**22  # complex numbers held at once (64 MB)
PHASE_ERROR = 32 * UNIT


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
            bound = largest_eigenvalue_upper_bound(hermitian, SKEW_GAP, proved=bound, symmetric_spectrum=True)
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
    if _is_skew(kernel):
        return _by_strips(kernel, height, width)
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


def _is_skew(kernel: Tensor) -> bool:
    """Whether the convolution is skew to the bit: K[o, i, t] = -K[i, o, -t]."""
    if kernel.shape[0] != kernel.shape[1] or kernel.shape[2] % 2 == 0 or kernel.shape[3] % 2 == 0:
        return False
    taps = kernel.permute(2, 3, 0, 1).flatten(0, 1)
    half = range(len(taps) // 2 + 1)  # the others say the same
    return all(torch.equal(taps[t], -taps[len(taps) - 1 - t].T) for t in half)


def _by_strips(kernel: Tensor, height: int, width: int) -> float:
    """Norm of a zero-padded skew convolution, exactly or with a circle around each row."""
    exponent = largest_entry_exponent(kernel)
    if not kernel.any():
        return 0.0
    kernel = times_power_of_two(kernel, -exponent)
    channels, rows = kernel.shape[0], kernel.shape[2]
    narrow = min(height, width)
    products = height * width // narrow * (channels * narrow) ** 3
    exact = height * width <= EXACT_PIXELS or products <= EXACT_PRODUCTS
    if (width > height) == exact and width != height:
        # Exact strips are cheapest when they are short, and the circle loses least around the longer side.
        kernel, height, width = kernel.transpose(2, 3), width, height
        rows = kernel.shape[2]
    columns = kernel.shape[3]
    circle = 0 if exact else width + columns // 2
    estimate = _skew_norm_estimate(kernel, height, width, circle)
    if exact:
        hermitian = _row_matrices(kernel, width).unsqueeze(1)
        bound = Strips(hermitian, height, symmetric_spectrum=True).eigenvalue_upper_bound(0.0, estimate)
        return scale_up(sum_up(bound, TINY), exponent)
    table = kernel.permute(3, 2, 0, 1).reshape(columns, -1)
    bound, chunk = 0.0, max(1, CHUNK // (channels * max(1, rows // 2)) ** 2)
    for cos, sin, symmetric in _phases(1, columns, 1, circle, chunk):
        hermitian = (
            torch.complex(-(sin @ table), cos @ table).view(-1, rows, channels, channels).transpose(0, 1)
        )
        strips = Strips(hermitian, height, symmetric_spectrum=symmetric)
        bound = strips.eigenvalue_upper_bound(bound, estimate)
    error = transform_error(rows * columns, frobenius_upper_bound(table)) if columns > 1 else 0.0
    return scale_up(sum_up(bound, error, TINY), exponent)


def _row_matrices(kernel: Tensor, width: int) -> Tensor:
    """(rows, n, n), n = width * channels: i times the zero-padded convolution of one row by each row of taps.

    Pixels first, then channels, so that every tap is copied as one block; copies are exact.
    """
    channels, _, rows, columns = kernel.shape
    shape = (rows, width, channels, width, channels)
    matrices = torch.zeros(shape, dtype=torch.complex128, device="cpu")
    for tap in range(columns):
        offset, block = tap - columns // 2, kernel[:, :, :, tap].permute(2, 0, 1)
        for x in range(max(0, -offset), min(width, width - offset)):
            matrices.imag[:, x, :, x + offset] = block
    return matrices.view(rows, width * channels, width * channels)


def _skew_norm_estimate(kernel: Tensor, height: int, width: int, circle: int) -> float:
    r"""Estimate of the norm of a skew convolution A, zero-padded or with a circle around each row.

    By Lanczos on :math:`A^T A = -A A`, whose Krylov space needs half the vectors that A itself would need for
    the same eigenvalues, and no complex numbers. On a circle all frequencies are estimated at once. Float32
    is enough: nothing is proved here, and the guess that is tried lies further away than its rounding.

    Args:
        kernel: (c, c, kh, kw), scaled to entries of about 1.
        height: rows of the map.
        width: columns of the map.
        circle: pixels of the circle around each row; 0 for zero padding.
    """
    channels, _, rows, columns = kernel.shape
    shape = (1, height, circle or width, channels)
    single = kernel.float().contiguous(memory_format=torch.channels_last)
    reach = columns // 2 if circle else 0

    def convolve(x: Tensor) -> Tensor:
        x = F.pad(x, (reach, reach, 0, 0), mode="circular") if reach else x
        return F.conv2d(x, single, padding=(rows // 2, columns // 2 - reach))

    def apply(vector: Tensor) -> Tensor:
        x = vector.view(shape).permute(0, 3, 1, 2)  # convolutions like channels to be last in memory
        return -convolve(convolve(x)).permute(0, 2, 3, 1).reshape(vector.shape)

    with torch.autocast("cpu", enabled=False):
        values = ritz_values(apply, start_vectors(1, math.prod(shape)).float(), SKEW_STEPS)
    return math.sqrt(max(0.0, float(values.max())))


@torch.no_grad()
def _on_grid(kernel: Tensor, height: int, width: int) -> float:
    """Largest norm over the frequencies of a height x width circle."""
    exponent = largest_entry_exponent(kernel)
    if not kernel.any():
        return 0.0
    kernel = times_power_of_two(kernel, -exponent)
    out_channels, in_channels, rows, columns = kernel.shape
    skew = _is_skew(kernel)
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
            bound = largest_eigenvalue_upper_bound(
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
        eigenvalue = largest_eigenvalue_upper_bound(
            gram, GAP, proved=proved * proved, symmetric_spectrum=True
        )
    return max(proved, sqrt_up(sum_up(eigenvalue, error)))
