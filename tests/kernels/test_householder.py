"""sigma_Theta of order n, chains and reflections in more dimensions against the paper's formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.activations import householder
from lipcert.kernels.householder import (
    householder_chain,
    householder_nd,
    householder_order,
    sector_starts,
    sector_widths,
)
from tests.kernels.test_activations import DTYPES, FORMATS, SHAPES, jacobians, random_input, unit_roundoff
from tests.reference.householder import sector_matrix, sigma_order, sigma_theta, sigma_v

orders = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)


def random_parameters(order: int, seed: int, scale: float = 1.0, pairs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = 4 * torch.randn(pairs, generator=generator, dtype=torch.float64)
    widths = scale * torch.randn(2, order - 1, pairs, generator=generator, dtype=torch.float64)
    return theta, widths


def on_circle(phases: Tensor) -> Tensor:
    return torch.stack((phases.cos(), phases.sin()), dim=1)


def expected_order(z: Tensor, theta: Tensor, widths: Tensor) -> Tensor:
    """The slow oracle on one pair per row."""
    starts = sector_starts(theta, widths)[:, 0].tolist()
    return torch.tensor([sigma_order(tuple(row), starts) for row in z.tolist()], dtype=torch.float64)


def error_bound(order: int, theta: Tensor, u: float) -> float:
    return (3 * theta.abs().max().item() + 40 * order + 300) * u


# --- order n


@given(orders, seeds, st.sampled_from([1.0, 5.0, 1e4]))
def test_widths_are_valid_whatever_the_parameters(order, seed, scale):
    """Theorem 2 asks for increasing angles whose det -1 sectors sum to pi; so do the det +1 sectors."""
    theta, widths = random_parameters(order, seed, scale, pairs=3)
    reflecting, turning = sector_widths(widths)
    starts = sector_starts(theta, widths)
    assert (reflecting >= 0).all()
    assert (turning >= 0).all()
    tolerance = 8 * order * 2**-53 * math.pi
    assert (reflecting.sum(0) - math.pi).abs().max() <= tolerance
    assert (turning.sum(0) - math.pi).abs().max() <= tolerance
    assert (starts[0] == theta / 2).all()
    gaps = torch.cat((starts, starts[:1] + 2 * math.pi)).diff(dim=0)
    assert (gaps >= -1e-14).all()
    assert (gaps[::2].sum(0) - math.pi).abs().max() <= 1e-13


@given(orders, seeds, st.sampled_from([1.0, 5.0]))
def test_order_n_is_theorem_2(order, seed, scale):
    theta, widths = random_parameters(order, seed, scale)
    z = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    error = (householder_order(z, theta, widths) - expected_order(z, theta, widths)).norm(dim=1)
    assert (error <= 2 * error_bound(order, theta, 2**-53) * z.norm(dim=1)).all()  # the oracle rounds too


@given(orders, seeds)
def test_order_n_has_2n_regions_with_alternating_determinants(order, seed):
    theta, widths = random_parameters(order, seed)
    starts = sector_starts(theta, widths)[:, 0]
    middles = torch.cat((starts, starts[:1] + 2 * math.pi)).unfold(0, 2, 1).mean(dim=1)
    found = jacobians(lambda z: householder_order(z, theta, widths), on_circle(middles))
    expected = torch.tensor(
        [sector_matrix(starts.tolist(), i) for i in range(2 * order)], dtype=torch.float64
    )
    tolerance = 4 * error_bound(order, theta, 2**-53)
    assert (found - expected).abs().max() <= tolerance
    assert (found @ found.mT - torch.eye(2)).abs().max() <= 16 * 2**-53
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(order)
    assert (torch.linalg.det(found) - signs).abs().max() <= 16 * 2**-53
    assert torch.equal(found[-1], torch.eye(2, dtype=torch.float64))
    neighbours = (found - found.roll(1, 0)).flatten(1).norm(dim=1)
    assert (neighbours > 1).all()  # a reflection and a rotation are always 2 apart: no two sectors merge


@given(orders, seeds)
def test_order_n_is_continuous_across_every_boundary(order, seed):
    theta, widths = random_parameters(order, seed)
    starts = sector_starts(theta, widths)[:, 0]
    step = 1e-9
    before, after = on_circle(starts - step), on_circle(starts + step)
    jump = householder_order(after, theta, widths) - householder_order(before, theta, widths)
    assert (jump.norm(dim=1) <= 2 * step + 2 * error_bound(order, theta, 2**-53)).all()


@given(st.integers(2, 6), seeds, st.sampled_from([1.0, 1e4]), st.sampled_from([torch.float64, torch.float32]))
def test_order_n_leaves_no_gap(order, seed, scale, dtype):
    """The float neighbours of every boundary, and of theta_0 + 2 pi, keep their norm."""
    theta, widths = random_parameters(order, seed, scale)
    starts = sector_starts(theta, widths)[:, 0]
    phases = torch.cat((starts, starts + 2 * math.pi, starts - 2 * math.pi))
    nudges = torch.linspace(-4, 4, 9, dtype=torch.float64)[:, None] * torch.finfo(dtype).eps
    z = on_circle((phases + nudges).flatten()).to(dtype)
    norms = householder_order(z, theta.to(dtype), widths.to(dtype)).double().norm(dim=1)
    assert (norms - z.double().norm(dim=1)).abs().max() <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("theta", [0.0, math.pi / 2, -3.0])
@pytest.mark.parametrize("first", [-30.0, 0.0, 30.0])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_order_n_survives_opposite_boundaries(order, first, theta, dtype):
    """Boundaries that fall on each other, or exactly opposite each other, must not confuse the sectors."""
    theta, widths = (
        torch.tensor([theta], dtype=torch.float64),
        torch.zeros(2, order - 1, 1, dtype=torch.float64),
    )
    widths[:, 0] = first
    phases = sector_starts(theta, widths)[:, 0]
    nudges = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None] * torch.finfo(dtype).eps
    opposite = torch.cat((phases, phases + math.pi, phases + 2 * math.pi))
    z = on_circle((opposite + nudges).flatten()).to(dtype)
    error = (householder_order(z, theta, widths).double() - expected_order(z.double(), theta, widths)).norm(
        dim=1
    )
    assert (error <= 2 * error_bound(order, theta, unit_roundoff(z)) * z.double().norm(dim=1)).all()


@given(seeds, st.sampled_from([torch.float32, torch.bfloat16]))
def test_order_n_is_as_exact_as_stated(seed, dtype):
    theta, widths = (p.float() for p in random_parameters(3, seed))
    starts = sector_starts(theta.double(), widths.double())[:, 0]
    z = torch.cat((on_circle(starts), torch.randn(20, 2, dtype=torch.float64))).to(dtype)
    expected = expected_order(z.double(), theta.double(), widths.double())
    error = (householder_order(z, theta, widths).double() - expected).norm(dim=1)
    assert (error <= error_bound(3, theta, unit_roundoff(z, theta)) * z.double().norm(dim=1)).all()


@given(seeds)
def test_order_1_is_sigma_theta(seed):
    theta, widths = random_parameters(1, seed, pairs=3)
    z = random_input((5, 6))
    assert torch.equal(householder_order(z, theta, widths), householder(z, theta))


@pytest.mark.parametrize("order", [2, 3, 5])
@pytest.mark.parametrize("collapsed", [0, 1])
def test_order_n_with_collapsed_sectors_is_sigma_theta(order, collapsed):
    """If all but the last sector of one kind vanish, those of the other kind merge into a half plane."""
    theta, widths = random_parameters(order, 1)
    widths[collapsed] = -1e4
    z = torch.randn(50, 2, dtype=torch.float64)
    merged = theta + 2 * sector_widths(widths)[1][:-1].sum(
        0
    )  # where the last reflecting sector begins, twice
    error = (householder_order(z, theta, widths) - householder(z, merged)).norm(dim=1)
    assert (error <= 2 * error_bound(order, theta, 2**-53) * z.norm(dim=1)).all()


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_order_n_treats_every_pixel_and_pair_alike(dtype, shape, memory_format):
    pairs = shape[1] // 2
    theta, widths = random_parameters(2, 3, pairs=pairs)
    z = random_input(shape, dtype, memory_format)
    y = householder_order(z, theta, widths)
    rows = z.double().unflatten(1, (2, pairs)).movedim(2, 0).reshape(pairs, shape[0], 2, -1).movedim(2, 3)
    expected = torch.stack(
        [
            expected_order(r.reshape(-1, 2), theta[k : k + 1], widths[..., k : k + 1])
            for k, r in enumerate(rows)
        ]
    )
    found = y.double().unflatten(1, (2, pairs)).movedim(2, 0).reshape(pairs, shape[0], 2, -1).movedim(2, 3)
    bound = 2 * error_bound(2, theta, unit_roundoff(z)) * z.double().abs().max() * 2
    assert (found.reshape(expected.shape) - expected).abs().max() <= bound
    assert y.stride() == z.stride()


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 2, 2)])
def test_order_n_passes_gradcheck_to_the_second_order(order, shape):
    theta, widths = (p.requires_grad_() for p in random_parameters(order, 5, pairs=2))
    z = random_input(shape).requires_grad_()
    assert torch.autograd.gradcheck(householder_order, (z, theta, widths))
    assert torch.autograd.gradgradcheck(householder_order, (z, theta, widths))


# --- chains


@given(st.integers(1, 4), seeds)
def test_chain_applies_the_first_row_first(length, seed):
    theta = 3 * torch.randn(length, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    z = torch.randn(20, 2, dtype=torch.float64)
    expected = [tuple(row) for row in z.tolist()]
    for angle in theta[:, 0].tolist():
        expected = [sigma_theta(row, angle) for row in expected]
    error = (householder_chain(z, theta) - torch.tensor(expected, dtype=torch.float64)).norm(dim=1)
    bound = 2 * (theta.abs() + 48).sum() * 2**-53
    assert (error <= bound * z.norm(dim=1)).all()


# --- more dimensions


@given(st.integers(2, 5), st.integers(1, 3), seeds)
def test_nd_is_definition_1_in_sequence(m, length, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(length, m, 1, dtype=torch.float64, generator=generator)
    z = torch.randn(20, m, dtype=torch.float64, generator=generator)
    expected = z.tolist()
    for v in vectors[..., 0].tolist():
        expected = [sigma_v(row, v) for row in expected]
    error = (householder_nd(z, vectors) - torch.tensor(expected, dtype=torch.float64)).norm(dim=1)
    assert (error <= 2 * length * (4 * m + 20) * 2**-53 * z.norm(dim=1)).all()


@given(st.integers(2, 5), seeds, st.sampled_from([torch.float32, torch.bfloat16]))
def test_nd_is_as_exact_as_stated(m, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(2, m, 3, generator=generator)
    z = torch.randn(20, 3 * m, generator=generator).to(dtype)
    exact = householder_nd(z.double(), vectors.double())
    error = (householder_nd(z, vectors).double() - exact).view(20, m, 3).norm(dim=1)
    bound = 2 * (4 * m + 20) * unit_roundoff(z, vectors) * z.double().view(20, m, 3).norm(dim=1)
    assert (error <= bound).all()


@given(st.integers(2, 5), st.integers(1, 3), seeds)
def test_nd_jacobians_are_orthogonal_and_jump_by_a_reflection(m, length, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(length, m, 1, dtype=torch.float64, generator=generator)
    z = torch.randn(6, m, dtype=torch.float64, generator=generator)
    found = jacobians(lambda x: householder_nd(x, vectors), z)
    tolerance = 4 * length * (4 * m + 20) * 2**-53
    assert (found @ found.mT - torch.eye(m)).abs().max() <= tolerance
    v = vectors[0, :, 0] / vectors[0].norm()
    above = z[:1] - (z[:1] @ v)[:, None] * v + 1e-7 * v
    q1, q2 = jacobians(lambda x: householder_nd(x, vectors[:1]), torch.cat((above, above - 2e-7 * v)))
    assert (q2 - q1 @ (torch.eye(m) - 2 * torch.outer(v, v))).abs().max() <= tolerance


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_nd_does_not_depend_on_the_length_of_its_vectors(scale):
    vectors = torch.randn(2, 3, 2)
    z = torch.randn(5, 6)
    assert torch.allclose(householder_nd(z, scale * vectors), householder_nd(z, vectors), rtol=0, atol=1e-5)


@given(st.floats(-20, 20))
def test_nd_in_two_dimensions_is_sigma_theta(theta):
    z = torch.randn(20, 2, dtype=torch.float64)
    vectors = torch.tensor([[[math.sin(theta / 2)], [-math.cos(theta / 2)]]], dtype=torch.float64)
    error = householder_nd(z, vectors) - householder(z, torch.tensor([theta], dtype=torch.float64))
    assert (error.norm(dim=1) <= (abs(theta) + 48 + 28) * 2**-53 * z.norm(dim=1)).all()


@pytest.mark.parametrize("memory_format", FORMATS)
def test_nd_keeps_the_memory_format_and_takes_pixels_alike(memory_format):
    vectors = torch.randn(2, 3, 2, dtype=torch.float64)
    z = random_input((2, 6, 3, 5), memory_format=memory_format)
    y = householder_nd(z, vectors)
    pixels = householder_nd(z.movedim(1, -1).reshape(-1, 6), vectors)
    # sums of three products may be taken in another order
    assert (y.movedim(1, -1).reshape(-1, 6) - pixels).abs().max() <= 16 * 2**-53 * z.abs().max()
    assert y.stride() == z.stride()


def test_nd_passes_gradcheck():
    vectors = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    z = random_input((2, 6, 1, 2)).requires_grad_()
    assert torch.autograd.gradcheck(householder_nd, (z, vectors))


# --- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: householder_order(torch.zeros(1, 3), torch.zeros(1), torch.zeros(2, 1, 1)),
            "divisible by 2, got 3",
        ),
        (
            lambda: householder_nd(torch.zeros(1, 4), torch.zeros(0, 2, 2)),
            r"vectors: .* length at least 1 .* got \(0, 2, 2\)",
        ),
        (
            lambda: householder_order(torch.zeros(1, 4), torch.zeros(1), torch.zeros(2, 1, 2)),
            r"theta: .* got \(1,\)",
        ),
        (
            lambda: householder_order(torch.zeros(1, 4), torch.zeros(2), torch.zeros(2, 1, 1)),
            r"widths: .* \(2, 1, 1\)",
        ),
        (
            lambda: householder_order(torch.zeros(1, 2), torch.zeros(1), torch.zeros(2, 128, 1)),
            "order at most 128",
        ),
        (
            lambda: householder_nd(torch.zeros(1, 4), torch.ones(1, 3, 1)),
            r"vectors: .* got \(1, 3, 1\) .* \(1, 4\)",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
