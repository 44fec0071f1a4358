import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipcert.kernels.karatsuba import KaratsubaOperator, karatsuba_pays
from lipcert.kernels.skew import SkewOperator
from lipcert.kernels.skew_norms import (
    kernel_norm_estimate,
    kernel_norm_vectors,
    operator_norm_estimate,
    start_vector,
)
from lipcert.kernels.taps import kernel_from_taps, skew_taps
from lipcert.kernels.torus import MATRIX_PIXELS, TorusOperator
from tests.reference.exponential import dense_convolution, dense_polynomial
from tests.reference.skew import skew_series_reference, taps_from_kernel, transpose_kernel

COEFFICIENTS = [(0.9, 0.8), (0.99, 0.8, 0.3), (1.0, 0.9, 0.4, 0.1), (1.0, 0.8, 0.4, 0.1, 0.02)]
# channels, inputs, outputs, kernel, height, width: every path, with partial inputs and outputs
SHAPES = [
    (6, 6, 6, 3, 5, 4),
    (6, 3, 6, 3, 5, 5),
    (6, 3, 2, 3, 3, 6),
    (6, 6, 4, 3, 4, 4),
    (6, 4, 3, 3, 4, 2),
    (6, 6, 6, 3, 2, 2),
    (6, 6, 2, 3, 2, 2),
    (6, 4, 3, 3, 2, 2),
    (6, 4, 3, 3, 2, 1),
    (4, 4, 4, 3, 1, 1),
    (5, 5, 3, 1, 3, 3),
    (6, 6, 3, 5, 3, 7),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same choices on every processor."""
    monkeypatch.setattr("lipcert.kernels.torus.is_amd_with_avx512", lambda: False)


@pytest.fixture(params=["on maps", "on a torus", "by Karatsuba's trick"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polynomials of every shape in all ways that `SkewOperator.frame` chooses from."""
    torus, karatsuba = request.param == "on a torus", request.param == "by Karatsuba's trick"
    monkeypatch.setattr(
        "lipcert.kernels.skew.torus_pays",
        lambda dtype, channels, size, height, width, batch: (
            torus and size > 1 and height * width > MATRIX_PIXELS
        ),
    )
    monkeypatch.setattr(
        "lipcert.kernels.skew.karatsuba_pays",
        lambda dtype, *shape: karatsuba and karatsuba_pays(torch.bfloat16, *shape),
    )


def draw(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    c, i, _, k, h, w = shape
    weight = torch.randn((k * k + 1) // 2, c, c, dtype=dtype, requires_grad=True)
    return weight, torch.randn(3, i, h, w, dtype=dtype, requires_grad=True)


@given(st.integers(1, 5), st.sampled_from([1, 3, 5]), st.sampled_from([torch.float32, torch.bfloat16]))
def test_kernels_are_skew_to_the_bit(channels: int, size: int, dtype: torch.dtype) -> None:
    kernel = kernel_from_taps(skew_taps(torch.randn((size**2 + 1) // 2, channels, channels), dtype))
    assert kernel.shape == (channels, channels, size, size)
    assert torch.equal(transpose_kernel(kernel), -kernel)


def test_the_held_taps_come_back_from_a_kernel() -> None:
    taps = skew_taps(torch.randn(13, 3, 3))
    assert torch.equal(taps_from_kernel(kernel_from_taps(taps)), taps)


def test_the_transposed_kernel_is_the_transposed_operator() -> None:
    kernel = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    dense = dense_convolution(kernel, 4, 5)
    assert torch.equal(dense_convolution(transpose_kernel(kernel), 4, 5), dense.T)


def test_half_the_taps_move_as_the_skew_part_of_a_full_kernel_does() -> None:
    """A step of gradient descent with weight decay, once on half the taps and once on M with (M - M^T) /
    2.
    """
    weight = torch.randn(5, 4, 4, dtype=torch.float64, requires_grad=True)
    kernel = kernel_from_taps(skew_taps(weight))
    full = (
        kernel.detach() / math.sqrt(2)
    ).requires_grad_()  # its skew part is itself; sqrt(2) is the common factor
    target = torch.randn_like(full)
    ours = (kernel / math.sqrt(2) * target).sum()
    theirs = ((full - transpose_kernel(full)) / 2 * target).sum()
    (grad,), (grad_full,) = torch.autograd.grad(ours, weight), torch.autograd.grad(theirs, full)
    step = kernel_from_taps(skew_taps(weight - 0.1 * (grad + 5e-4 * weight))) / math.sqrt(2)
    step_full = full - 0.1 * (grad_full + 5e-4 * full)
    torch.testing.assert_close(step, (step_full - transpose_kernel(step_full)) / 2)


@every_shape
@pytest.mark.parametrize("coefficients", COEFFICIENTS, ids=lambda c: f"degree{len(c) - 1}")
def test_the_fast_path_is_the_plain_path(
    shape: tuple[int, ...], coefficients: tuple[float, ...], form: None
) -> None:
    _, _, keep, _, h, w = shape
    weight, x = draw(shape)
    scale = torch.tensor(0.13, dtype=torch.float64, requires_grad=True)
    taps = skew_taps(weight)
    fast = SkewOperator(taps, h, w).scaled(scale).series(x, coefficients, keep)
    plain = skew_series_reference(x, kernel_from_taps(taps) * scale, coefficients, keep)
    torch.testing.assert_close(fast, plain)
    cotangent = torch.randn_like(fast)
    inputs = (x, weight, scale)
    for a, b in zip(
        torch.autograd.grad(fast, inputs, cotangent, retain_graph=True),
        torch.autograd.grad(plain, inputs, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(("h", "w"), [(1, 2), (2, 2), (3, 5), (4, 4), (8, 8)])
@pytest.mark.parametrize(("i", "keep"), [(5, 5), (2, 5), (5, 3), (3, 4)])
def test_one_small_map_has_ways_of_its_own(size: int, h: int, w: int, i: int, keep: int) -> None:
    taps = skew_taps(torch.randn((size**2 + 1) // 2, 5, 5, dtype=torch.float64))
    x = torch.randn(1, i, h, w, dtype=torch.float64)
    operator = SkewOperator(taps, h, w, scale=torch.tensor(0.7, dtype=torch.float64))
    assert operator.one_is_special
    padded = torch.zeros(1, 5, h, w, dtype=torch.float64)
    padded[:, :i] = x
    dense = dense_convolution(kernel_from_taps(taps), h, w)
    image = (padded.flatten(1) @ dense.T).view(1, 5, h, w)
    expected = (0.7 * 1.5 * image + 2.0 * padded)[:, :keep]
    torch.testing.assert_close(operator.finish(x, keep, 1.5, (x, 2.0)), expected)


@every_shape
def test_the_plain_path_is_the_dense_polynomial(shape: tuple[int, ...]) -> None:
    c, i, keep, _, h, w = shape
    weight, x = draw(shape)
    kernel = kernel_from_taps(skew_taps(weight)).detach() * 0.1
    dense = dense_polynomial(dense_convolution(kernel, h, w), COEFFICIENTS[2])
    padded = torch.zeros(len(x), c, h, w, dtype=x.dtype)
    padded[:, :i] = x.detach()
    expected = (padded.flatten(1) @ dense.T).view(len(x), c, h, w)[:, :keep]
    torch.testing.assert_close(skew_series_reference(x.detach(), kernel, COEFFICIENTS[2], keep), expected)


@every_shape
@pytest.mark.parametrize("coefficients", COEFFICIENTS[:3], ids=lambda c: f"degree{len(c) - 1}")
def test_a_pivot_is_the_derivative_through_the_scale(
    shape: tuple[int, ...], coefficients: tuple[float, ...], form: None
) -> None:
    c, _, keep, _, h, w = shape
    weight, x = draw(shape)
    left, right = torch.randn(2, 1, c, h, w, dtype=torch.float64)
    operator = SkewOperator(skew_taps(weight), h, w)
    dense = dense_convolution(kernel_from_taps(operator.taps), h, w)
    product = left.flatten() @ dense @ right.flatten()
    scale = 0.5 / product
    pivot = (left, right, product.detach())
    pivoted = operator.scaled(scale.detach(), pivot).series(x, coefficients, keep)
    through = operator.scaled(scale).series(x, coefficients, keep)
    cotangent = torch.randn_like(pivoted)
    (a,) = torch.autograd.grad(pivoted, weight, cotangent, retain_graph=True)
    (b,) = torch.autograd.grad(through, weight, cotangent)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10 * float(b.abs().max()))


@pytest.mark.parametrize(
    ("dtype", "values", "gradients"), [(torch.float32, 1e-5, 1e-4), (torch.bfloat16, 1e-2, 3e-2)]
)
@every_shape
def test_low_precision_stays_close(
    shape: tuple[int, ...], dtype: torch.dtype, values: float, gradients: float, form: None
) -> None:
    """Relative to the float64 result: 1e-5 and 1e-4 in float32; a few units of 2^-8 in bfloat16."""
    _, _, keep, _, h, w = shape
    weight, x = draw(shape)
    *_, norm = operator_norm_estimate(
        SkewOperator(skew_taps(weight).detach(), h, w), start_vector(weight, 1, shape[0], h, w), 200
    )
    cotangent = torch.randn(len(x), keep, h, w, dtype=torch.float64)
    outputs = []
    for kind in (torch.float64, dtype):
        operator = SkewOperator(skew_taps(weight, kind), h, w).scaled(1.2 / norm)
        y = operator.series(x.to(kind), COEFFICIENTS[2], keep)
        outputs.append((y.detach().double(), *torch.autograd.grad(y, (x, weight), cotangent.to(kind))))
    for index, (exact, rough) in enumerate(zip(*outputs, strict=True)):
        error = float((exact - rough).norm() / exact.norm())
        assert error < (values if index == 0 else gradients)


@pytest.mark.parametrize("shape", [(6, 3, 6, 3, 5, 5), (6, 4, 3, 3, 2, 2), (5, 5, 3, 1, 3, 3)], ids=str)
def test_gradcheck(shape: tuple[int, ...], form: None) -> None:
    _, _, keep, _, h, w = shape
    weight, x = draw(shape)
    scale = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return SkewOperator(skew_taps(weight), h, w).scaled(scale).series(x, COEFFICIENTS[2], keep)

    assert torch.autograd.gradcheck(function, (x, weight, scale))


def test_the_torus_is_for_large_batches_of_small_maps() -> None:
    operator = SkewOperator(skew_taps(torch.randn(5, 64, 64)), 8, 8)
    assert [type(operator.frame(n)) for n in (0, 1, 256)] == [SkewOperator, SkewOperator, TorusOperator]
    large = SkewOperator(skew_taps(torch.randn(5, 64, 64)), 32, 32)
    assert large.frame(256) is large


def test_karatsuba_is_for_maps_of_2x2_in_bfloat16() -> None:
    for dtype, kind in ((torch.bfloat16, KaratsubaOperator), (torch.float32, SkewOperator)):
        assert type(SkewOperator(skew_taps(torch.randn(5, 4, 4), dtype), 2, 2).frame(1)) is kind
    assert not karatsuba_pays(torch.bfloat16, 3, 2, 1)
    assert not karatsuba_pays(torch.bfloat16, 5, 2, 2)


def test_autocast_leaves_a_torus_alone() -> None:
    """A frozen layer says itself in which precision it runs, and what it keeps must serve later calls."""
    operator = SkewOperator(skew_taps(torch.randn(5, 64, 64)), 8, 8)
    x = torch.randn(256, 64, 8, 8, requires_grad=True)
    outputs = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = operator.series(x, COEFFICIENTS[1], 64)
            outputs.append((y, *torch.autograd.grad(y, x, torch.ones_like(y))))
    for cast, plain in zip(*outputs, strict=True):
        assert torch.equal(cast, plain)


def test_a_torus_that_inference_made_serves_an_attack() -> None:
    operator = SkewOperator(skew_taps(torch.randn(5, 64, 64)), 8, 8)
    with torch.inference_mode():
        quiet = operator.series(torch.ones(256, 64, 8, 8), COEFFICIENTS[1], 64)
    x = torch.ones(256, 64, 8, 8, requires_grad=True)
    loud = operator.series(x, COEFFICIENTS[1], 64)
    torch.testing.assert_close(loud, quiet.clone())
    (gradient,) = torch.autograd.grad(loud.sum(), x)
    assert gradient.shape == x.shape


@every_shape
def test_norm_estimates_are_norms(shape: tuple[int, ...]) -> None:
    c, _, _, size, h, w = shape
    taps = skew_taps(draw(shape)[0]).detach()
    kernel = kernel_from_taps(taps)
    operator = SkewOperator(taps, h, w)
    left, right, norm = operator_norm_estimate(operator, start_vector(taps, 1, c, h, w), 2000)
    exact = torch.linalg.matrix_norm(dense_convolution(kernel, h, w), 2)
    torch.testing.assert_close(norm, exact, rtol=1e-6, atol=0)
    torch.testing.assert_close((left * operator(right)).sum(), norm, rtol=1e-12, atol=0)
    reshapes = [
        kernel.reshape(c, -1),
        kernel.transpose(0, 1).reshape(c, -1),
        kernel.permute(0, 2, 1, 3).reshape(c * size, c * size),
        kernel.permute(0, 3, 1, 2).reshape(c * size, c * size),
    ]
    smallest = min(float(torch.linalg.matrix_norm(m, 2)) for m in reshapes)
    estimate, _ = kernel_norm_estimate(taps, kernel_norm_vectors(taps, c, size), 2000)
    assert float(estimate) == pytest.approx(smallest, rel=1e-6)
    assert float(exact) <= size * smallest * (1 + 1e-12)


@pytest.mark.parametrize("seed", [0, 2**50 + 3])
def test_a_start_is_drawn_to_the_same_bits_also_where_inputs_are_mapped(seed: int) -> None:
    """Runs that were begun by another version resume from these bits."""
    drawn = torch.randn(1, 4, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = (drawn / torch.linalg.vector_norm(drawn)).float()
    assert torch.equal(start_vector(torch.empty(0), 1, 4, 3, 3, seed=seed), expected)
    mapped = torch.vmap(lambda x: x * start_vector(torch.empty(0), 1, 4, 3, 3, seed=seed))(torch.ones(2))
    assert torch.equal(mapped, expected.expand(2, -1, -1, -1, -1))
