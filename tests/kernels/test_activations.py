"""MaxMin, GroupSort and sigma_theta against the paper's formulas, to the bit where numbers only move."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.activations import (
    SHORT_RUN,
    _Fold,
    _FoldByProducts,
    groupsort,
    householder,
    maxmin,
)
from tests.reference.householder import sigma_theta

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = [(5, 6), (3, 6, 2, 2), (3, 6, 1, 1), (2, 4, 5, 3), (2, 2, 9, 9)]
FORMATS = [torch.contiguous_format, torch.channels_last]
angles = st.floats(-20, 20)
coordinates = st.floats(-4, 4)


def unit_roundoff(*tensors: Tensor) -> float:
    return max(torch.finfo(t.dtype).eps for t in tensors) / 2


def plain_householder(z: Tensor, theta: Tensor) -> Tensor:
    """Corollary 1 for autograd to differentiate."""
    z1, z2 = z.chunk(2, dim=1)
    theta = theta.view(1, -1, *(1 for _ in z.shape[2:]))
    keep = z1 * (theta / 2).sin() - z2 * (theta / 2).cos() > 0
    y1 = torch.where(keep, z1, z1 * theta.cos() + z2 * theta.sin())
    y2 = torch.where(keep, z2, z1 * theta.sin() - z2 * theta.cos())
    return torch.cat((y1, y2), dim=1)


def jacobians(function, z: Tensor) -> Tensor:
    """Jacobian at every row of z, (N, C, C), of a map that treats the rows alike."""
    z = z.clone().requires_grad_()
    y = function(z)
    rows = [torch.autograd.grad(y[:, i].sum(), z, retain_graph=True)[0] for i in range(y.shape[1])]
    return torch.stack(rows, dim=1)


def random_input(shape, dtype=torch.float64, memory_format=torch.contiguous_format) -> Tensor:
    z = torch.randn(shape, dtype=torch.float64).to(dtype)
    return z.contiguous(memory_format=memory_format) if len(shape) == 4 else z


# --- MaxMin and GroupSort


def test_maxmin_pairs_channel_halves():
    z = torch.tensor([[1.0, 5.0, -2.0, 3.0, 4.0, -2.0]])
    assert maxmin(z).tolist() == [[3.0, 5.0, -2.0, 1.0, 4.0, -2.0]]


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_maxmin_moves_numbers_and_gradients_to_the_bit(dtype, shape, memory_format):
    z, g = (
        random_input(shape, dtype, memory_format).requires_grad_(),
        random_input(shape, dtype, memory_format),
    )
    y = maxmin(z)
    y.backward(g)
    z1, z2 = z.detach().chunk(2, dim=1)
    g1, g2 = g.chunk(2, dim=1)
    keep = z1 > z2
    assert torch.equal(y, torch.cat((torch.maximum(z1, z2), torch.minimum(z1, z2)), dim=1))
    assert torch.equal(z.grad, torch.cat((torch.where(keep, g1, g2), torch.where(keep, g2, g1)), dim=1))
    assert y.stride() == z.stride()
    assert z.grad.stride() == z.stride()


def test_maxmin_at_a_tie_still_has_a_permutation_as_jacobian():
    jacobian = jacobians(maxmin, torch.zeros(1, 2, dtype=torch.float64))[0]
    assert jacobian.tolist() == [[0.0, 1.0], [1.0, 0.0]]  # z1 > z2 is false, as in the paper's second case


@pytest.mark.parametrize("group_size", [2, 3, 4, 6])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_groupsort_sorts_each_group(group_size, memory_format):
    z = random_input((2, 12, 3, 2), memory_format=memory_format)
    y = groupsort(z, group_size)
    groups = z.reshape(2, group_size, 12 // group_size, 3, 2)
    assert torch.equal(y.reshape(groups.shape), groups.sort(dim=1, descending=True).values)
    assert y.stride() == z.stride()


@pytest.mark.parametrize("dtype", DTYPES)
def test_groupsort_of_two_is_maxmin(dtype):
    z = random_input((4, 6), dtype)
    assert torch.equal(groupsort(z, 2), maxmin(z))


@pytest.mark.parametrize("group_size", [2, 3, 6])
def test_groupsort_jacobian_is_a_permutation(group_size):
    jacobian = jacobians(lambda z: groupsort(z, group_size), random_input((7, 6)))
    assert set(jacobian.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(jacobian @ jacobian.mT, torch.eye(6, dtype=torch.float64).expand(7, 6, 6))


# --- sigma_theta


@given(coordinates, coordinates, angles)
def test_householder_is_corollary_1(z1, z2, theta):
    y = householder(torch.tensor([[z1, z2]], dtype=torch.float64), torch.tensor([theta], dtype=torch.float64))
    expected = torch.tensor(sigma_theta((z1, z2), theta), dtype=torch.float64)
    # Twice the stated error: the reference rounds too.
    assert (y[0] - expected).norm() <= 2 * (abs(theta) + 48) * 2**-53 * math.hypot(z1, z2) + 1e-300


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("theta_dtype", DTYPES)
def test_householder_at_a_right_angle_is_maxmin_to_the_bit(theta_dtype, dtype, shape, memory_format):
    z = random_input(shape, dtype, memory_format)
    z[:, 0] = z[:, shape[1] // 2]  # ties
    theta = torch.full((shape[1] // 2,), math.pi / 2, dtype=theta_dtype)
    y = householder(z, theta)
    assert y.stride() == z.stride()
    if dtype != torch.bfloat16:
        assert torch.equal(y, maxmin(z))
        return
    # z1 - fl(z1 - z2): 2 u of the larger number for the difference and u for the result.
    largest = torch.maximum(*z.float().abs().chunk(2, dim=1)).repeat(1, 2, *(1 for _ in shape[2:]))
    assert ((y.float() - maxmin(z).float()).abs() <= 3 * 2**-8 * largest).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_householder_is_as_exact_as_stated(dtype, scale):
    theta = torch.randn(64, dtype=torch.float64).mul(scale).float()
    # Half of the points sit on the boundary up to rounding: there a wrong side must cost next to nothing.
    on_boundary = torch.stack(((theta.double() / 2).cos(), (theta.double() / 2).sin())).expand(50, 2, 64)
    z = torch.cat((torch.randn(50, 2, 64), on_boundary.float())).flatten(1).to(dtype)
    error = (
        (householder(z, theta).double() - plain_householder(z.double(), theta.double()))
        .view(-1, 2, 64)
        .norm(dim=1)
    )
    bound = (theta.double().abs() + 48) * unit_roundoff(z, theta) * z.double().view(-1, 2, 64).norm(dim=1)
    assert (error <= bound).all()


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_householder_gradients_are_those_of_the_plain_formula(dtype, shape, memory_format):
    z = random_input(shape, dtype, memory_format).requires_grad_()
    g = random_input(shape, dtype, memory_format)
    theta = torch.randn(shape[1] // 2, dtype=torch.float64).requires_grad_()
    y = householder(z, theta)
    y.backward(g)
    z_plain, theta_plain = z.detach().double().requires_grad_(), theta.detach().clone().requires_grad_()
    expected = plain_householder(z_plain, theta_plain)
    expected.backward(g.double())
    # A few roundings per entry; no point of these seeds is so near to a boundary that its side is in doubt.
    tolerance = 32 * unit_roundoff(z)
    assert (y.detach().double() - expected).abs().max() <= tolerance * z.detach().abs().max()
    assert (z.grad.double() - z_plain.grad).abs().max() <= tolerance * g.abs().max()
    # |y1 g2 - y2 g1| <= |z| |g| for each pair; what is summed up are a few roundings of these.
    sizes = [t.detach().double().unflatten(1, (2, -1)).norm(dim=1) for t in (z, g)]
    terms = (sizes[0] * sizes[1]).transpose(0, 1).flatten(1).sum(1)
    assert ((theta.grad - theta_plain.grad).abs() <= 4 * unit_roundoff(z) * terms).all()
    assert z.grad.stride() == y.stride() == z.stride()


@pytest.mark.parametrize("channels", [4, 2 * SHORT_RUN])
def test_a_fold_does_not_mind_how_its_gradient_lies(channels):
    """Few channels fold by products of matrices, many by elementwise passes."""
    z = random_input((3, channels, 4, 2), torch.bfloat16, torch.channels_last)
    theta = torch.randn(channels // 2)
    g = random_input(z.shape, torch.bfloat16)
    orders = (
        g,
        g.contiguous(memory_format=torch.channels_last),
        g.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
    )
    results = []
    for grad in orders:
        inputs = z.clone().requires_grad_(), theta.clone().requires_grad_()
        results.append(torch.autograd.grad(householder(*inputs), inputs, grad))
    for grad_z, grad_theta in results[1:]:
        assert torch.equal(grad_z, results[0][0])
        torch.testing.assert_close(grad_theta, results[0][1], rtol=2**-6, atol=2**-6)


def test_both_ways_to_fold_agree():
    z = random_input((3, 8, 4, 2), torch.bfloat16, torch.channels_last)
    g = random_input(z.shape, torch.bfloat16, torch.channels_last)
    theta = torch.randn(4)
    results = []
    for fold in (_Fold, _FoldByProducts):
        inputs = z.clone().requires_grad_(), theta.clone().requires_grad_()
        y = fold.apply(*inputs)
        results.append((y.detach(), *torch.autograd.grad(y, inputs, g)))
    for one, other in zip(*results, strict=True):
        # A few roundings of numbers below 4; the sum over 24 pixels adds up.
        torch.testing.assert_close(one, other, rtol=0, atol=2**-5 if one.dim() == 4 else 2**-4)


@pytest.mark.parametrize("memory_format", FORMATS)
def test_angles_of_large_float16_maps_do_not_overflow(memory_format):
    z = random_input((2, 8, 32, 32), torch.float16, memory_format).requires_grad_()
    theta = torch.randn(4).requires_grad_()
    (householder(z, theta) * 200 * z.detach()).sum(dtype=torch.float32).backward()
    assert theta.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 2, 2), (1, 4, 1, 3)])
def test_householder_passes_gradcheck_to_the_second_order(shape):
    z = random_input(shape).requires_grad_()
    theta = torch.tensor([0.3, 2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(householder, (z, theta))
    assert torch.autograd.gradgradcheck(householder, (z, theta))
    assert torch.autograd.gradcheck(maxmin, z)
    assert torch.autograd.gradgradcheck(maxmin, z)


@given(angles)
def test_householder_jacobians_are_the_identity_and_the_reflection(theta):
    v = torch.tensor([math.sin(theta / 2), -math.cos(theta / 2)], dtype=torch.float64)
    along = torch.stack((-v[1], v[0]))
    sides = torch.stack((along + v, along - v))
    kept, reflected = jacobians(lambda z: householder(z, torch.tensor([theta], dtype=torch.float64)), sides)
    eye = torch.eye(2, dtype=torch.float64)
    assert torch.equal(kept, eye)
    assert (reflected - (eye - 2 * torch.outer(v, v))).abs().max() <= 64 * 2**-53


@given(coordinates, coordinates, angles)
def test_householder_is_idempotent_and_lands_on_one_side(z1, z2, theta):
    """Appendix E."""
    parameter = torch.tensor([theta], dtype=torch.float64)
    once = householder(torch.tensor([[z1, z2]], dtype=torch.float64), parameter)
    twice = householder(once, parameter)
    tolerance = 2 * (abs(theta) + 48) * 2**-53 * math.hypot(z1, z2) + 1e-300
    assert once[0, 0] * math.sin(theta / 2) - once[0, 1] * math.cos(theta / 2) >= -tolerance
    assert (once - twice).norm() <= 2 * tolerance


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_a_piecewise_orthogonal_map_is_continuous_iff_it_reflects(m, seed):
    """Theorem 1: on the hyperplane Q1 and Q2 agree if Q2 = Q1 (I - 2 v v^T), and for no other Q2 != Q1."""
    generator = torch.Generator().manual_seed(seed)
    q1, other = torch.linalg.qr(torch.randn(2, m, m, generator=generator, dtype=torch.float64))[0]
    basis = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64))[0]
    v, hyperplane = basis[:, :1], basis[:, 1:]
    reflected = q1 @ (torch.eye(m, dtype=torch.float64) - 2 * v @ v.T)
    assert ((q1 - reflected) @ hyperplane).norm() <= 20 * m * 2**-53
    assert ((q1 - other) @ hyperplane).norm() > 1e-6
    assert torch.linalg.det(q1) * torch.linalg.det(reflected) < 0


# --- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: maxmin(torch.zeros(2, 3)), "z: expected a number of channels divisible by 2, got 3"),
        (lambda: groupsort(torch.zeros(2, 6, 1, 1), 4), "divisible by 4, got 6"),
        (
            lambda: maxmin(torch.zeros(4)),
            r"z: expected floating point \(N, C\) or \(N, C, H, W\), got .* \(4,\)",
        ),
        (lambda: maxmin(torch.zeros(2, 2, dtype=torch.int64)), r"expected floating point .* got torch.int64"),
        (
            lambda: householder(torch.zeros(2, 6), torch.zeros(1)),
            r"theta: expected one angle per pair, \(3,\), got \(1,\)",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


# --- layouts of memory


def with_gaps(z: Tensor, order: tuple[int, ...]) -> Tensor:
    """The same numbers with a gap after each, as real parts are laid out, and the axes in that order."""
    spread = torch.full((*(z.shape[axis] for axis in order), 2), math.nan, dtype=z.dtype)
    spread[..., 0] = z.permute(order)
    return spread[..., 0].permute([order.index(axis) for axis in range(z.dim())])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 3, 1), (2, 3, 1, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "activation", [maxmin, lambda z: householder(z, torch.full((4,), 0.7)), lambda z: groupsort(z, 4)]
)
def test_every_layout_of_inputs_and_gradients_gives_the_same_numbers(activation, dtype, order):
    z, g = random_input((3, 8, 2, 2), dtype), random_input((3, 8, 2, 2), dtype)
    dense, sparse = z.clone().requires_grad_(), with_gaps(z, order).requires_grad_()
    activation(dense).backward(g)
    junk = [torch.full((z.numel(),), math.nan, dtype=dtype) for _ in range(8)]
    del junk  # memory that nobody writes to would now hold NaN
    y = activation(sparse)
    assert torch.equal(y, activation(dense))
    y.backward(with_gaps(g, order))
    assert torch.equal(sparse.grad, dense.grad)
