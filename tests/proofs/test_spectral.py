"""The bounds against float64 SVDs of dense matrices, built here entry by entry from the definition."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.proofs import eigenvalues, modulus, spectral, strips
from lipcert.proofs.modulus import polynomial_modulus_lower_bound, polynomial_modulus_upper_bound
from lipcert.proofs.spectral import (
    circular_convolution_norm_upper_bound,
    matrix_norm_upper_bound,
    spectral_matrices_norm_upper_bound,
    zero_padded_convolution_norm_upper_bound,
)

SVD_ERROR = 1e-13  # numpy's largest singular value is good to a few n u, n <= 300


def dense(kernel: Tensor, height: int, width: int, *, circular: bool) -> np.ndarray:
    """Matrix of y[o, p] = sum_{i, t} K[o, i, t] x[i, p + t - k // 2], the definition of the layer."""
    k = kernel.double().numpy()
    out_channels, in_channels, rows, columns = k.shape
    matrix = np.zeros((out_channels, height, width, in_channels, height, width))
    for py, px, ty, tx in np.ndindex(height, width, rows, columns):
        qy, qx = py + ty - rows // 2, px + tx - columns // 2
        if circular:
            matrix[:, py, px, :, qy % height, qx % width] += k[:, :, ty, tx]
        elif 0 <= qy < height and 0 <= qx < width:
            matrix[:, py, px, :, qy, qx] += k[:, :, ty, tx]
    return matrix.reshape(out_channels * height * width, -1)


def norm(matrix: np.ndarray) -> float:
    """Largest singular value; scaled by a power of two so that squares inside LAPACK stay in range."""
    exponent = math.frexp(np.abs(matrix).max())[1] if matrix.any() else 0
    parts = np.ldexp(matrix.real, -exponent) + 1j * np.ldexp(matrix.imag, -exponent)
    return math.ldexp(float(np.linalg.norm(parts, 2)), exponent)


def random_kernel(
    seed: int, out: int, inp: int, k: tuple[int, int], skew: bool, scale: float, spread: float
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    kernel = torch.randn(out, inp, *k, dtype=torch.float64, generator=generator)
    kernel = kernel * torch.exp(spread * torch.randn(kernel.shape, dtype=torch.float64, generator=generator))
    if skew and out == inp:
        kernel = (kernel - kernel.transpose(0, 1).flip(2, 3)) / 2
    return kernel * scale


kernels = st.builds(
    random_kernel,
    seed=st.integers(0, 2**32),
    out=st.integers(1, 4),
    inp=st.integers(1, 4),
    k=st.sampled_from([(1, 1), (3, 3), (1, 3), (5, 3), (5, 5)]),
    skew=st.booleans(),
    scale=st.sampled_from([1.0, 1e-30, 1e30, 3e-150, 1e-290, 1e290]),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
)
sides = st.integers(1, 6)


def check(bound: float, truth: float, slack: float = 1e-4) -> None:
    assert bound >= truth * (1 - SVD_ERROR)
    assert bound <= truth * (1 + slack) + 5e-324


@settings(max_examples=1000, deadline=None)
@given(kernel=kernels, height=sides, width=sides)
def test_circular_bound_holds_and_is_tight(kernel: Tensor, height: int, width: int) -> None:
    truth = norm(dense(kernel, height, width, circular=True))
    bound = circular_convolution_norm_upper_bound(kernel, height, width)
    # A kernel that cancels when it wraps is known only to the rounding errors of its own size.
    cancelled = 1e-11 * float(kernel.abs().max()) * kernel.shape[2:].numel()
    assert truth * (1 - SVD_ERROR) - cancelled * 1e-3 <= bound <= truth * (1 + 1e-4) + cancelled


@settings(max_examples=1000, deadline=None)
@given(kernel=kernels, height=st.integers(1, 4), width=st.integers(1, 4))
def test_zero_padded_bound_holds_and_is_tight_on_small_maps(kernel: Tensor, height: int, width: int) -> None:
    truth = norm(dense(kernel, height, width, circular=False))
    check(zero_padded_convolution_norm_upper_bound(kernel, height, width), truth)


def around(kernel: Tensor, height: int, width: int, *, rows_only: bool) -> float:
    """Norm on the circle of n + h pixels around the map (or around its rows), h the reach of the taps."""
    reach = [min(k // 2, n - 1) for k, n in zip(kernel.shape[2:], (height, width), strict=True)]
    y, x = (slice(k // 2 - r, k // 2 + r + 1) for k, r in zip(kernel.shape[2:], reach, strict=True))
    kernel, tall, wide = kernel[:, :, y, x], height + reach[0], width + reach[1]
    matrix = dense(kernel, tall, wide, circular=True)
    if rows_only:
        matrix = matrix.reshape(kernel.shape[0], tall, wide, kernel.shape[1], tall, wide)
        matrix = matrix[:, :height, :, :, :height].reshape(kernel.shape[0] * height * wide, -1)
    return norm(matrix)


@settings(max_examples=300, deadline=None)
@given(kernel=kernels, height=sides, width=sides)
def test_zero_padded_bound_of_larger_maps(kernel: Tensor, height: int, width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectral, "DENSE", 0)
        patch.setattr(spectral, "EXACT_PIXELS", 0)
        patch.setattr(spectral, "EXACT_PRODUCTS", 0)
        bound = zero_padded_convolution_norm_upper_bound(kernel, height, width)
    assert bound >= norm(dense(kernel, height, width, circular=False)) * (1 - SVD_ERROR)
    if not spectral._is_skew(kernel):
        check(bound, around(kernel, height, width, rows_only=False))
    elif height > width:
        check(bound, around(kernel.transpose(2, 3), width, height, rows_only=True), slack=6e-4)
    else:
        check(bound, around(kernel, height, width, rows_only=True), slack=6e-4)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    channels=st.integers(1, 4),
    k=st.sampled_from([(1, 1), (3, 3), (1, 5), (5, 3), (5, 5), (7, 7)]),
    scale=st.sampled_from([1.0, 1e-30, 1e30]),
    height=sides,
    width=sides,
)
def test_exact_strips_are_tight(
    seed: int, channels: int, k: tuple[int, int], scale: float, height: int, width: int
) -> None:
    kernel = random_kernel(seed, channels, channels, k, True, scale, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectral, "DENSE", 0)
        bound = zero_padded_convolution_norm_upper_bound(kernel, height, width)
    check(bound, norm(dense(kernel, height, width, circular=False)), slack=6e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ritz_values_stay_below_the_norm_when_the_krylov_space_ends(dtype: torch.dtype) -> None:
    """Two eigenvalues, so two steps say all; what comes after is rounding errors in the same directions."""
    diagonal = torch.full((1, 60, 1), 0.3, dtype=dtype)
    diagonal[:, :30] = 0.7
    values = eigenvalues.ritz_values(
        lambda v: diagonal * v, eigenvalues.start_vectors(1, 60).to(dtype), spectral.SKEW_STEPS
    )
    assert 0.7 * (1 - 1e-5) <= float(values.max()) <= 0.7 * (1 + 1e-5)


@pytest.mark.parametrize("circle", [0, 7])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_estimate_is_the_norm_of_what_is_proved(circle: int, autocast: bool) -> None:
    """Further off than float32 and too few steps would leave it, the first guess would fail or be loose."""
    kernel = random_kernel(0, 24, 24, (3, 5), True, 1.0, 0.0)
    matrix = dense(kernel, 4, circle or 5, circular=False)
    if circle:  # rows around the map are cut off again
        matrix = dense(kernel, 5, circle, circular=True).reshape(24, 5, -1, 24, 5, circle)
        matrix = matrix[:, :4, :, :, :4].reshape(24 * 4 * circle, -1)
    with torch.autocast("cpu", enabled=autocast):
        estimate = spectral._skew_norm_estimate(kernel, 4, 5, circle)
    assert norm(matrix) * (1 - 1e-4) <= estimate <= norm(matrix) * (1 + 1e-5)


def broken_strip_proofs() -> int:
    """How many of 400 tridiagonal matrices with an eigenvalue near 0 are said to have none above 1e-17."""
    broken = 0
    for step in range(400):
        n, b = 3 + step % 4, 1 + step / 400
        d = 2 * math.cos(math.pi / (n + 1)) * b  # tridiag(b, -d, b) has eigenvalue 0, nearly
        taps = torch.tensor([b, -d, b], dtype=torch.float64).view(3, 1, 1, 1)
        bound = strips.Strips(taps, n, symmetric_spectrum=True)._prove(1e-17)
        full = torch.diag(torch.full((n,), -d, dtype=torch.float64))
        full += torch.diag(torch.full((n - 1,), b, dtype=torch.float64), 1)
        full += torch.diag(torch.full((n - 1,), b, dtype=torch.float64), -1)
        broken += bound is not None and exact_largest_eigenvalue_exceeds(full, bound)
    return broken


def test_strips_need_the_cholesky_error_term(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_strip_proofs() == 0
    monkeypatch.setattr(strips, "cholesky_error", lambda n, trace: 0.0)
    assert broken_strip_proofs() > 0


@settings(max_examples=800, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    rank=st.integers(0, 40),
    scale=st.sampled_from([1.0, 1e-30, 1e30, 1e-300, 1e300, 5e-320]),
    dtype=st.sampled_from([torch.float64, torch.complex128, torch.float32]),
)
def test_matrix_bound_holds_and_is_tight(
    seed: int, rows: int, columns: int, rank: int, scale: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, rank, dtype=dtype, generator=generator)
    matrix = (left @ torch.randn(rank, columns, dtype=dtype, generator=generator)) * scale
    # The scale may be out of range of float32.
    assume(bool(torch.isfinite(torch.view_as_real(matrix) if matrix.is_complex() else matrix).all()))
    if matrix.dtype == torch.float32:
        matrix = matrix.double()
    check(matrix_norm_upper_bound(matrix), norm(matrix.numpy()))


@pytest.mark.parametrize("n", [65, 130, 300])
@pytest.mark.parametrize(
    "kind", ["random", "skew", "orthogonal", "nearly orthogonal", "clustered", "one large"]
)
def test_wide_matrices_that_need_an_estimate(n: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(n)
    matrix = torch.randn(n, n, dtype=torch.float64, generator=generator)
    orthogonal = torch.linalg.qr(matrix)[0]
    if kind == "skew":
        matrix = matrix - matrix.mT
    elif kind == "orthogonal":
        matrix = orthogonal
    elif kind == "nearly orthogonal":
        matrix = orthogonal.float().double()
    elif kind == "clustered":
        matrix = orthogonal * torch.linspace(0.999, 1, n, dtype=torch.float64)
    elif kind == "one large":
        matrix = matrix * 1e-8
        matrix[n // 2, n // 3] = 1e8
    check(matrix_norm_upper_bound(matrix), norm(matrix.numpy()), slack=6e-5)


def test_orthogonal_matrices_are_bounded_to_ten_digits() -> None:
    stack = torch.linalg.qr(torch.randn(7, 96, 96, dtype=torch.complex128))[0]
    assert 1 - 1e-14 <= spectral_matrices_norm_upper_bound(stack) < 1 + 1e-11


def test_a_bad_estimate_only_costs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(20, 20, dtype=torch.float64)
    monkeypatch.setattr(eigenvalues, "_largest_eigenvalue_estimate", lambda h, signs: 1e-9)
    check(matrix_norm_upper_bound(matrix), norm(matrix.numpy()))


def test_many_frequencies_are_taken_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = random_kernel(1, 3, 5, (3, 3), False, 1.0, 0.0)
    skew = random_kernel(1, 4, 4, (3, 3), True, 1.0, 0.0)
    monkeypatch.setattr(spectral, "CHUNK", 64)
    check(circular_convolution_norm_upper_bound(kernel, 7, 5), norm(dense(kernel, 7, 5, circular=True)))
    check(circular_convolution_norm_upper_bound(skew, 5, 6), norm(dense(skew, 5, 6, circular=True)))


def test_the_grid_of_the_map_itself_proves_nothing_for_zero_padding() -> None:
    kernel = torch.tensor([1.0, 0.0, -1.0]).view(1, 1, 1, 3)
    assert circular_convolution_norm_upper_bound(kernel, 1, 2) < 1e-12
    assert 1 <= zero_padded_convolution_norm_upper_bound(kernel, 1, 2) < 1 + 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_weights_are_taken_exactly(dtype: torch.dtype) -> None:
    kernel = random_kernel(3, 3, 3, (3, 3), True, 1.0, 0.0).to(dtype)
    check(zero_padded_convolution_norm_upper_bound(kernel, 3, 3), norm(dense(kernel, 3, 3, circular=False)))


def test_bound_ignores_autocast_and_the_random_state() -> None:
    kernel = random_kernel(3, 70, 70, (1, 1), False, 1.0, 0.0)
    plain, state = circular_convolution_norm_upper_bound(kernel, 2, 2), torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert circular_convolution_norm_upper_bound(kernel, 2, 2) == plain
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    kernel = torch.full((1, 1, 3, 3), value)
    with pytest.raises(ArgumentError, match="expected finite numbers"):
        zero_padded_convolution_norm_upper_bound(kernel, 4, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: matrix_norm_upper_bound(torch.ones(2)), r"matrix: expected shape \(rows, columns\)"),
        (lambda: matrix_norm_upper_bound(torch.ones(2, 2).int()), "expected floating-point matrices"),
        (
            lambda: circular_convolution_norm_upper_bound(torch.ones(2, 2), 3, 3),
            r"expected real \(out, in, kh, kw\)",
        ),
        (lambda: circular_convolution_norm_upper_bound(torch.ones(1, 1, 3, 3), 0, 3), "1x1, got 0x3"),
        (lambda: zero_padded_convolution_norm_upper_bound(torch.ones(1, 1, 2, 2), 3, 3), "got 2x2"),
        (lambda: polynomial_modulus_upper_bound([], 1.0), "at least one"),
        (lambda: polynomial_modulus_upper_bound([math.nan], 1.0), "expected finite numbers"),
        (lambda: polynomial_modulus_upper_bound([1.0], math.inf), "rho: expected a finite number"),
        (lambda: polynomial_modulus_upper_bound([1.0], -1.0), "rho: expected a finite number"),
    ],
)
def test_wrong_arguments_are_refused(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


# Each error term is needed: with the term a bound holds, without it the same bound is false.


def exact_largest_eigenvalue_exceeds(matrix: Tensor, value: float) -> bool:
    """Whether value * I - matrix has a negative determinant minor: Sylvester's test in exact arithmetic."""
    n = matrix.shape[0]
    rows = [[(i == j) * Fraction(value) - Fraction(float(matrix[i, j])) for j in range(n)] for i in range(n)]
    for k in range(n):
        if rows[k][k] <= 0:
            return True
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return False


def broken_proofs() -> int:
    """How many of 100 eigenvalues near 0 are 'proved' to be at most 1e-17 when in truth they are larger."""
    broken = 0
    for seed in range(100):
        factor = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        h = torch.tril(-factor @ factor.mT)
        h = h + torch.tril(h, -1).mT  # the largest eigenvalue is the rounding error of the product
        bound = eigenvalues.prove_eigenvalue_bound(h.unsqueeze(0), 1e-17)
        broken += bound is not None and exact_largest_eigenvalue_exceeds(h, bound)
    return broken


def test_the_cholesky_error_term_is_needed_and_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_proofs() == 0
    monkeypatch.setattr(eigenvalues, "cholesky_error", lambda n, trace: 0.0)
    assert broken_proofs() > 0


def gram_deficit(rows: int) -> Fraction:
    """How far the computed Gram matrix of a column of ones and tiny numbers is below the exact one."""
    column = torch.full((rows, 1), 2.0**-27, dtype=torch.float64)
    column[:64] = 1.0  # tiny squares are lost against the partial sums of every lane
    exact = Fraction(64) + (rows - 64) * Fraction(1, 2**54)
    return exact - Fraction(float(column.mT @ column))


def test_the_gram_error_term_is_needed_and_suffices() -> None:
    deficit = gram_deficit(4096)
    assert deficit > 0
    assert deficit <= Fraction(spectral.gram_error(4096, 8.0))


def test_a_norm_through_its_gram_matrix_needs_that_term(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 4096
    column = torch.full((1, rows, 1), 2.0**-27, dtype=torch.float64)
    column[:, :64] = 1.0
    exact = Fraction(64) + (rows - 64) * Fraction(1, 2**54)
    assert Fraction(spectral._norm_through_gram(column, 0.0)) ** 2 >= exact
    monkeypatch.setattr(spectral, "gram_error", lambda *_: 0.0)
    assert Fraction(spectral._norm_through_gram(column, 0.0)) ** 2 < exact


@pytest.mark.parametrize("name", ["_on_grid", "_by_strips"])
def test_every_bound_through_a_transform_has_its_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = torch.randn(24, 24, 3, 3, dtype=torch.float64)
    kernel = kernel - kernel.flip(2, 3).transpose(0, 1)  # skew, as both take it
    plain = getattr(spectral, name)(kernel, 32, 32)
    monkeypatch.setattr(spectral, "transform_error", lambda *_: 1000.0)
    assert getattr(spectral, name)(kernel, 32, 32) > plain + 900


@pytest.mark.parametrize(("height", "width"), [(5, 7), (9, 9), (33, 33)])
def test_the_transform_error_term_is_needed_and_suffices(height: int, width: int) -> None:
    phases = list(spectral._phases(3, 3, height, width, 10**6))
    worst = 0.0
    with mpmath.workdps(40):
        (cos, _, own), (cos2, sin2, _) = phases if len(phases) == 2 else (*phases, (None,) * 3)
        assert own
        assert cos.shape[0] + 2 * cos2.shape[0] == height * width
        frequencies = [(y, x) for y in range(height) for x in range(width)]
        half = [(y, x) for y, x in frequencies if y * width + x < (-y % height) * width + (-x % width)]
        for row in range(0, len(half), 7):
            y, x = half[row]
            for tap, (ty, tx) in enumerate((a - 1, b - 1) for a in range(3) for b in range(3)):
                angle = 2 * mpmath.pi * (mpmath.mpf(y * ty) / height + mpmath.mpf(x * tx) / width)
                exact = mpmath.expj(angle)
                error = abs(mpmath.mpc(float(cos2[row, tap]), float(sin2[row, tap])) - exact)
                worst = max(worst, float(error))
    assert 0 < worst <= spectral.PHASE_ERROR


def test_underflow_is_covered() -> None:
    matrix = torch.tensor([[1.0, 2.0**-600]], dtype=torch.float64)  # its square is 0 in float64
    bound = matrix_norm_upper_bound(matrix)
    assert Fraction(bound) ** 2 >= 1 + Fraction(1, 2**1200)


# Polynomials on the imaginary axis.

ISOMETRIC = [1.0, 0.90042, 0.40874, 0.1082, 0.0177]
TAYLOR = [1 / math.factorial(j) for j in range(13)]


def modulus_on_grid(coefficients: list[float], rho: float) -> np.ndarray:
    return np.abs(np.polynomial.polynomial.polyval(1j * np.linspace(0, rho, 4001), np.array(coefficients)))


@settings(max_examples=200, deadline=None)
@given(
    coefficients=st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=1, max_size=13),
    rho=st.floats(0, 4, allow_subnormal=False),
)
def test_modulus_bounds_hold_and_are_tight(coefficients: list[float], rho: float) -> None:
    values = modulus_on_grid(coefficients, rho)
    upper = polynomial_modulus_upper_bound(coefficients, rho)
    lower = polynomial_modulus_lower_bound(coefficients, rho)
    size = sum(abs(c) * rho**j for j, c in enumerate(coefficients))
    noise = 1e-14 * size  # of polyval, whose intermediate values are as large as `size`
    assert upper >= values.max() - noise
    assert lower <= values.min() + noise
    # Between grid points |p| moves by at most h |p'|; at an interior maximum only by a second-order term.
    step = rho / 4000
    slope = sum(j * abs(c) * rho ** (j - 1) for j, c in enumerate(coefficients) if j)
    assert upper <= values.max() + step * slope + noise + 5e-324
    assert lower >= values.min() - step * slope - noise - 1e-6 * size


@pytest.mark.parametrize("coefficients", [ISOMETRIC, TAYLOR, [0.5, 0.0, 0.25], [0.0, 1.0], [2.0]])
@pytest.mark.parametrize("rho", [0.0, 0.5, 2.1, 3.0])
def test_modulus_bound_is_tight_to_twelve_digits(coefficients: list[float], rho: float) -> None:
    points = modulus_on_grid(coefficients, rho)
    best = int(points.argmax())
    fine = np.linspace(max(0, best - 1), min(4000, best + 1), 4001) * rho / 4000
    truth = np.abs(np.polynomial.polynomial.polyval(1j * fine, np.array(coefficients))).max()
    assert truth * (1 - 1e-15) <= polynomial_modulus_upper_bound(coefficients, rho) <= truth * (1 + 1e-12)


def test_modulus_bound_is_exact_where_the_maximum_is_at_an_end() -> None:
    assert polynomial_modulus_upper_bound([1.0, 0.0, 0.5], 1.0) == 1.0  # 1 - y^2 / 2
    assert polynomial_modulus_upper_bound([3.0, 4.0], 1.0) == 5.0
    assert polynomial_modulus_lower_bound([1.0, 0.0, 0.5], 1.0) == 0.5
    assert polynomial_modulus_lower_bound([1.0, 0.0, 1.0], 2.0) == 0.0  # 1 - y^2 has a zero inside


@pytest.mark.parametrize(
    "square", [Fraction(2), Fraction(1, 3), Fraction(10) ** 400, Fraction(1, 10**400), Fraction(1, 10**700)]
)
def test_modulus_root_rounds_to_the_right_side(square: Fraction) -> None:
    above, below = modulus._root(square, round_up=True), modulus._root(square, round_up=False)
    assert Fraction(below) ** 2 <= square <= Fraction(above) ** 2
    assert above <= math.nextafter(below, math.inf)


def test_a_modulus_beyond_every_float_is_infinite() -> None:
    assert polynomial_modulus_upper_bound([1.0, 1e200, 1e200], 1e200) == math.inf
    assert polynomial_modulus_lower_bound([1e300, 0.0], 1.0) == 1e300
