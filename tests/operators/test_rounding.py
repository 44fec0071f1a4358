"""Rounding bounds. The analysis knows u as a number: with u = 2^-24 it must hold for float32."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import scipy.fft
import torch
from torch import Tensor

import lipcert as lc
from lipcert.kernels.householder import sector_starts
from lipcert.kernels.skew import horner
from lipcert.kernels.taps import every_tap
from lipcert.kernels.torus import PRODUCT_PRICE, TorusOperator, torus_pays, torus_size
from lipcert.operators import (
    EXACT,
    Concatenation,
    Flow,
    Householder,
    HouseholderND,
    HouseholderOrder,
    Matrix,
    Operator,
    Reshape,
    RoundingError,
    Sequence,
    Shape,
    SkewPolynomial,
    WeightedSum,
    convolution,
)
from lipcert.operators.convolution import fourier_error
from lipcert.operators.linear import absolute_norm_upper_bound
from lipcert.operators.operator import LARGEST_RADIUS
from lipcert.operators.skew import circular_norm_upper_bound, error_on_a_torus, error_on_maps
from lipcert.proofs import rounding as units
from tests.operators.cases import (
    CASES,
    Frozen,
    affine,
    circular,
    draw,
    every_case,
    inputs,
    norms,
    roundings_of_float32,
    skew,
    spectral,
)


def counts_a_torus(operator: Operator, shape: Shape) -> bool:
    if not isinstance(operator, SkewPolynomial):
        return False
    return torus_pays(torch.float64, operator.channels, operator.kernel_size, *shape[1:])


def exact_case(name: str) -> bool:
    exact = ("maxmin", "nothing", "relu", "abs", "repeated pixels")
    return CASES[name].kind == "moved" or "sort" in name or "max pooling" in name or name in exact


def far_points(radius: float) -> Tensor:
    step = torch.randn(200, 2)
    return torch.tensor([[0.3, 0.7]]) + radius * 0.999 * step / step.norm(dim=1, keepdim=True)


def runs_on_a_torus(name: str) -> bool:
    return isinstance(CASES[name].build(), SkewPolynomial)


SINGLE = [name for name, case in CASES.items() if case.single]


@pytest.mark.parametrize(
    ("name", "torus"), [(n, t) for t in (False, True) for n in SINGLE if not t or runs_on_a_torus(n)]
)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@torch.no_grad()
def test_float32_is_within_the_bound_for_float32(
    name: str, torus: bool, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    operator = case.build()
    if torus:
        monkeypatch.setitem(PRODUCT_PRICE, torch.float32, 0.0)
        monkeypatch.setitem(PRODUCT_PRICE, torch.float64, 0.0)
    with roundings_of_float32():
        error = case.build().rounding_error(case.shape)
    x = inputs(case.shape, 64 if len(case.shape) > 1 else 5_000, size)
    exact, computed = operator.apply(x), operator.to(dtype=torch.float32).apply(x.float())
    actual, allowed = norms(computed.double() - exact), error.relative * norms(x) + error.absolute
    assert (actual <= allowed).all()
    if exact_case(name):
        assert error == EXACT
    elif exact.any() and not (name in ("tanh", "softplus") and size > 100):  # which are -1, 1, 0 or x there
        assert actual.max() > 0, "the test sees no rounding at all"
        # Worst cases of products in a row multiply; polynomials on a torus have three of them per power.
        useless = 1e5 if counts_a_torus(operator, case.shape) or case.kind == "tree" else 3e3
        assert (allowed <= useless * actual.max()).all(), "a bound that is useless in practice"


@every_case(lambda case: case.kind == "moved")
def test_what_moves_numbers_rounds_none(name: str) -> None:
    case = CASES[name]
    operator = case.build()
    assert operator.rounding_error(case.shape) == EXACT
    x = inputs(case.shape)
    assert torch.equal(operator.apply(x.float()).double(), operator.apply(x))


def test_the_bound_of_an_inner_product_is_met_by_the_worst_order_of_summation() -> None:
    """1 + u + u + ... from left to right in float32: every u is a tie that rounds away."""
    n, small = 4000, 2.0**-12  # small * small is u
    row = torch.full((1, n), small)
    row[0, 0] = 1.0
    total = np.float32(0.0)
    for term in (row[0] * row[0]).numpy():
        total = np.float32(total + term)
    exact = Fraction(1) + (n - 1) * Fraction(1, 2**24)
    actual = float(exact - Fraction(float(total)))
    assert actual == (n - 1) * 2.0**-24
    with roundings_of_float32():
        error = Matrix(row, None).rounding_error((n,))
        # One application of an operator with n terms per output, || |A| || = 1.
        on_maps = error_on_maps([0.0, 1.0], 1.0, 1.0, n)
    allowed = error.relative * float(row.double().norm()) + error.absolute
    # || |W| || is bounded by the root of its largest row and column sum, sqrt((1 + n small) 1) = 1.41.
    assert actual <= allowed <= 1.42 * actual
    assert actual <= on_maps <= 8 * actual


@torch.no_grad()
def test_a_bias_takes_part_in_every_rounding_of_its_sum() -> None:
    """Libraries begin the sum with the bias: n small products are added to one large number."""
    n, outputs, large = 4096, 64, 2.0**46
    weight = torch.zeros(outputs, n, dtype=torch.float64)
    weight[0] = 1 / 64
    bias = torch.zeros(outputs, dtype=torch.float64)
    bias[0] = large
    operator = Matrix(weight, bias)
    x = torch.full((16, n), 0.5 - 2.0**-40, dtype=torch.float64)
    exact = (0.5 - 2.0**-40) * n / 64  # to the bit, in front of the bias
    claimed = operator.rounding_error((n,))
    allowed = claimed.relative * float(x[0].norm()) + claimed.absolute
    assert float((operator.apply(x)[:, 0] - large - exact).abs().max()) <= allowed
    # Whatever this library does, one that adds the products one by one loses half of each to the bias.
    one_by_one = torch.tensor(large, dtype=torch.float64)
    for product in (weight[0] * x[0]).tolist():
        one_by_one += product
    assert 1 < abs(float(one_by_one) - large - exact) <= allowed


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("affine", "mean"),
        ("circular", "bias"),
        ("spectral", "bias"),
        ("skew 3x3", "bias"),
        ("skew on a torus", "bias"),
        ("matrix", "bias"),
    ],
)
def test_the_rounding_of_a_bias_grows_with_it(name: str, field: str) -> None:
    """Sums with a bias of 2^20 lose 20 digits more."""
    case = CASES[name]
    operator = case.build()
    grown = dataclasses.replace(operator, **{field: getattr(operator, field) * 2.0**20})
    assert grown.rounding_error(case.shape).absolute >= 2.0**19 * operator.rounding_error(case.shape).absolute
    x = inputs(case.shape, 64)
    with roundings_of_float32():
        error = grown.rounding_error(case.shape)
    with torch.no_grad():
        actual = norms(grown.to(dtype=torch.float32).apply(x.float()).double() - grown.apply(x))
    assert (actual <= error.relative * norms(x) + error.absolute).all()
    assert (actual > error.relative * norms(x)).any(), "a bound without the bias would do"


@pytest.mark.parametrize(
    "build",
    [
        lambda side: affine(6),
        lambda side: skew(6, 3, 6, 4),
        lambda side: circular(4, 6, 3),
        lambda side: spectral(4, 6, side, side),
    ],
    ids=["affine", "skew", "circular", "spectral"],
)
def test_a_bias_is_rounded_at_every_pixel(build: Callable[[int], Operator]) -> None:
    """Four times the pixels, twice the norm of the bias over all of them."""
    small, large = (build(side).rounding_error((6, side, side)).absolute for side in (4, 8))
    assert large == pytest.approx(2 * small, rel=1e-9, abs=0)


@torch.no_grad()
def test_the_bound_on_a_torus_covers_the_worst_tables() -> None:
    """Rounding is far from its worst case; here every entry of the tables is off by all that is allowed."""
    shape, keep = (8, 4, 3), 6
    operator = lc.SOC(8, keep, 3).double().freeze(shape)
    assert isinstance(operator, SkewPolynomial)
    kernel, taps = operator.kernel(), operator.held_taps()
    spread = absolute_norm_upper_bound(kernel.flatten(2))
    waves = torus_size(3, *shape[1:])
    exact = TorusOperator(taps, *shape[1:])
    size = every_tap(taps).abs().sum(0)
    with roundings_of_float32():
        bound = error_on_a_torus(
            [abs(c) for c in operator.coefficients],
            operator.operator_norm_bound(shape),
            spread,
            min(spread, circular_norm_upper_bound(kernel)),
            shape[0],
            3,
            waves,
        )
        off = units.gamma(9 + 64) + units.gamma(2 * shape[0] + 8)
        table_error, product_error = 64 * units.UNIT / waves**0.5, units.gamma(waves)

    def signs(like: Tensor) -> Tensor:
        """Of rank one, so that errors add up."""
        rows, columns = (torch.randn(n, dtype=like.dtype).sign() for n in like.shape[-2:])
        return rows[:, None] * columns

    def dense(frame: TorusOperator) -> Tensor:
        basis = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
        return horner(frame, basis, operator.coefficients, keep)[0].flatten(1).T

    worst = 0.0
    for _ in range(8):
        rough = TorusOperator(taps, *shape[1:])
        analysis, padding = (
            table + signs(table) * (table_error + product_error * table.abs())
            for table in (exact.basis.analysis, exact.basis.padding)
        )
        rough.basis = exact.basis._replace(analysis=analysis, padding=padding)
        rough.a = exact.a + off * size * signs(size)
        rough.b_minus_a = exact.b_minus_a + 2 * off * size * signs(size)
        rough.b_plus_a = exact.b_plus_a + 2 * off * size * signs(size)
        worst = max(worst, float(torch.linalg.matrix_norm(dense(rough) - dense(exact), 2)))
    assert worst <= bound <= 100 * worst


@pytest.mark.parametrize("degree", [4, 5])
def test_taps_that_only_the_torus_sees_are_counted(degree: int) -> None:
    """On maps of one row the taps below it meet nothing but zeros, on the torus they meet rounding errors.

    Those grow by the size of the taps with every power, to more than what tells the classes apart.
    """
    layer = lc.SOC(16, 16, 3, bias=False).double()
    with torch.no_grad():
        layer.weight[2:] *= 1e16
    frozen = layer.freeze((16, 1, 8))
    assert isinstance(frozen, SkewPolynomial)
    coefficients = tuple(1 / math.factorial(k) for k in range(degree + 1))
    sums = torch.ones(2, 128, dtype=torch.float64)
    sums[0] = -1
    head = Matrix(sums, torch.tensor([1e30, 0.0], dtype=torch.float64))
    operator = Sequence.of(dataclasses.replace(frozen, coefficients=coefficients), Reshape(), head)
    proved, images = lc.prove(Frozen(operator), (16, 1, 8)), torch.rand(512, 16, 1, 8)
    found = proved.certify(images, batch_size=1)
    at_once = proved.logits(images, batch_size=512).argmax(1)
    assert (at_once != found.prediction).any(), "the two ways agree, so nothing is tested"
    assert not (found.radius[at_once != found.prediction] > 0).any()


@torch.no_grad()
def test_the_bound_of_a_weighted_sum_is_met_by_the_worst_order_of_summation() -> None:
    """2^24 + 1 + 1 + ... in float32: every 1 is a tie that rounds away, on branches that round nothing."""
    count = 60
    operator = WeightedSum((Sequence(()),) * count, (2.0**24, *(1.0,) * (count - 1)))
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    lost = float(operator.apply(one.double()) - operator.apply(one))
    assert lost == count - 1
    with roundings_of_float32():
        error = operator.rounding_error((1,))
        at_one, around_zero = (operator.run(Flow.of_images(x.double()), (1,)) for x in (one, zero))
    assert lost <= error.relative <= 1.1 * lost
    assert lost <= at_one.fixed.item() <= 1.1 * lost
    assert around_zero.fixed.item() < 1e-100
    assert lost <= around_zero.slope <= 1.1 * lost  # 1 is at a distance of 1 from 0


@torch.no_grad()
def test_a_weighted_sum_rounds_the_constants_of_its_branches_too() -> None:
    count, zero = 60, torch.zeros(1, 1)
    eye = torch.eye(1)
    branches = [Matrix(eye, torch.tensor([2.0**24 if k == 0 else 1.0])) for k in range(count)]
    operator = WeightedSum(tuple(branches), (1.0,) * count)
    exact = operator.to(dtype=torch.float64)
    lost = float(exact.apply(zero.double()) - operator.apply(zero))
    assert lost == count - 1
    with roundings_of_float32():
        error = exact.rounding_error((1,))
        flow = exact.run(Flow.of_images(zero.double()), (1,))
        own = sum(branch.rounding_error((1,)).absolute for branch in exact.branches)
    assert own < lost / 2, "the roundings of the branches cover those of their sum"
    assert lost <= error.absolute <= 1.5 * lost
    assert lost <= flow.fixed.item() <= 1.5 * lost


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 7), (16, 12), (17, 31), (32, 32), (1, 3), (64, 1)])
def test_the_fourier_transform_is_within_its_bound(height: int, width: int) -> None:
    x = np.random.default_rng(0).standard_normal((height, width))
    exact = scipy.fft.fft2(x.astype(np.longdouble))  # 64 bits of mantissa
    difference = (torch.fft.fft2(torch.from_numpy(x)).numpy() - exact).astype(np.complex128)
    error = np.linalg.norm(difference) / np.linalg.norm(exact.astype(np.complex128))
    assert 0 < error <= fourier_error(height, width)


def test_both_fourier_transforms_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "fourier_error", lambda h, w: 1e-3)
    operator = lc.Cayley(6, 8, 3, bias=False).double().freeze((6, 5, 6))
    assert operator.rounding_error((6, 5, 6)).relative >= 4e-3


@pytest.mark.parametrize(
    ("operator", "least"),
    [
        # docs/layers/activations.md: (|theta| + 30) u, (3 |theta| + 40 n + 300) u and n (4 m + 20) u.
        (Householder(torch.full((4,), 1000.0).double()), 1030),
        (HouseholderOrder(torch.full((4,), 1000.0).double(), torch.zeros(2, 2, 4).double()), 3420),
        (HouseholderND(torch.ones(3, 4, 2).double()), 3 * 36),
    ],
    ids=["order 1", "order 3", "reflections"],
)
def test_activations_count_their_angles_and_their_length(operator: Operator, least: float) -> None:
    assert least * 2.0**-53 <= operator.rounding_error((8,)).relative <= 20 * least * 2.0**-53


@pytest.mark.parametrize("order", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [0.1, 10.0, 1000.0])
@torch.no_grad()
def test_the_bound_of_activations_holds_next_to_their_boundaries(order: int, size: float) -> None:
    """Where rounding decides for the wrong piece: pairs at angles of 1e-1 to 1e-10 from a boundary."""
    theta, widths = draw(4, scale=size).float().double(), draw(2, order - 1, 4, seed=1)
    operator = HouseholderOrder(theta, widths) if order > 1 else Householder(theta)
    starts = sector_starts(theta, widths) if order > 1 else torch.stack([theta / 2, theta / 2 + math.pi])
    angles = starts[torch.randint(len(starts), (4000, 4)), torch.arange(4)]
    angles = angles + torch.randn(4000, 4).double() * 10 ** (-1 - 9 * torch.rand(4000, 4).double())
    lengths = 10 ** (8 * torch.rand(4000, 4).double() - 4)
    x = torch.cat([lengths * angles.cos(), lengths * angles.sin()], dim=1).float().double()
    with roundings_of_float32():
        error = operator.rounding_error((8,))
    actual = norms(operator.to(dtype=torch.float32).apply(x.float()).double() - operator.apply(x))
    allowed = error.relative * norms(x) + error.absolute
    assert (actual <= allowed).all()
    assert (actual > 0.01 * allowed).any(), "the test stays far away from the worst case"


@dataclass(frozen=True, eq=False, repr=False)
class Rough(Operator):
    """Constant, errors and value that make arithmetic by hand easy."""

    lipschitz: float
    relative: float
    absolute: float
    value: float

    def apply(self, x: Tensor) -> Tensor:
        return torch.full_like(x, self.value)

    def output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def lipschitz_bound(self, input_shape: Shape) -> float:
        return self.lipschitz

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        return RoundingError(self.relative, self.absolute)


FIRST, SECOND = Rough(2.0, 0.5, 0.25, 4.0), Rough(3.0, 0.125, 0.0, 8.0)


def test_the_error_of_two_operators_by_hand() -> None:
    start = Flow.of_images(torch.ones(1, 1, dtype=torch.float64))
    assert (start.fixed.item(), start.slope, start.reach) == (0.0, 0.0, 1.0)
    first = FIRST.run(start, (1,))
    # size 1 + r, so E = (1 + r) / 2 + 1/4
    assert first.fixed.item() == pytest.approx(0.75, rel=2e-5)
    assert first.slope == pytest.approx(0.5, rel=2e-5)
    assert first.reach == pytest.approx(2, rel=1e-15)
    size = first.size()
    assert size[0].item() == pytest.approx(4 + 2 * 0.75, rel=2e-5)
    assert size[1] == pytest.approx(2 * 0.5 + 2, rel=2e-5)
    second = SECOND.run(first, (1,))
    # 3 (0.75 + r / 2) + (5.5 + 3 r) / 8
    assert second.fixed.item() == pytest.approx(2.25 + 0.6875, rel=2e-5)
    assert second.slope == pytest.approx(1.5 + 0.375, rel=2e-5)
    assert second.reach == pytest.approx(6, rel=1e-15)
    assert second.largest.item() == pytest.approx(5.5 + 3 * LARGEST_RADIUS, rel=2e-5)


def test_only_what_rounds_nothing_and_has_the_constant_1_leaves_bounds_alone() -> None:
    start = FIRST.run(Flow.of_images(torch.ones(1, 1, dtype=torch.float64)), (1,))
    same = Rough(1.0, 0.0, 0.0, 0.0).run(start, (1,))
    assert (same.fixed, same.slope, same.reach) == (start.fixed, start.slope, start.reach)
    assert Rough(1.0, 0.5, 0.0, 0.0).run(start, (1,)).slope > start.slope + 0.5
    assert Rough(1.0, 0.0, 0.25, 0.0).run(start, (1,)).fixed.item() > 0.99
    stretched = Rough(2.0, 0.0, 0.0, 0.0).run(start, (1,))
    assert stretched.slope >= 2 * start.slope
    assert stretched.reach == pytest.approx(4, rel=1e-15)


def test_the_rounding_error_of_a_sequence_by_hand() -> None:
    found = Sequence((FIRST, SECOND)).rounding_error((1,))
    # The second meets numbers of (2 + 1/2) |x| + 4 + 1/4 + 1/4: f(0) as computed, its error, and that again.
    assert found.relative == pytest.approx(3 * 0.5 + 0.125 * 2.5, rel=2e-6)
    assert found.absolute == pytest.approx(3 * 0.25 + 0.125 * 4.5, rel=2e-6)


def test_the_rounding_error_of_branches_by_hand() -> None:
    side_by_side = Concatenation((FIRST, SECOND))
    found = side_by_side.rounding_error((1,))
    assert found.relative == pytest.approx(math.hypot(0.5, 0.125), rel=1e-12)
    assert found.absolute == pytest.approx(0.25, rel=1e-12)
    added = WeightedSum((FIRST, SECOND), (-2.0, 0.5)).rounding_error((1,))
    assert added.relative == pytest.approx(2 * 0.5 + 0.5 * 0.125, rel=1e-12)
    assert added.absolute == pytest.approx(2 * 0.25, rel=1e-12)
    start = Flow.of_images(torch.ones(1, 1, dtype=torch.float64))
    joined = side_by_side.run(start, (1,))
    assert joined.fixed.item() == pytest.approx(math.hypot(0.75, 0.125), rel=1e-5)
    assert joined.slope == pytest.approx(math.hypot(0.5, 0.125), rel=1e-5)
    assert joined.reach == pytest.approx(math.hypot(2, 3), rel=1e-12)
    total = WeightedSum((FIRST, SECOND), (-2.0, 0.5)).run(start, (1,))
    assert total.fixed.item() == pytest.approx(2 * 0.75 + 0.5 * 0.125, rel=1e-5)
    assert total.slope == pytest.approx(2 * 0.5 + 0.5 * 0.125, rel=1e-5)
    assert total.reach == pytest.approx(2 * 2 + 0.5 * 3, rel=1e-12)


def test_the_error_of_horners_rule_by_hand() -> None:
    """p(A) = A^2 with ||A|| = 2: errors s, then 2 s + s, then 2 (3 s) + 2 s, for steps that err by s."""
    step = 2 * units.gamma(10 + 8)
    assert error_on_maps([0.0, 0.0, 1.0], 2.0, 1.0, 10) == pytest.approx(8 * step, rel=1e-9, abs=0)
    # With || |A| || = 3 a step errs by 3 s |v|: s, then 2 s + 3 s, then 2 (5 s) + 3 s 2.
    assert error_on_maps([0.0, 0.0, 1.0], 2.0, 3.0, 10) == pytest.approx(16 * step, rel=1e-9, abs=0)


def test_bounds_on_flows_are_rounded_up() -> None:
    start = Flow.of_images(torch.ones(1, 3, dtype=torch.float64))
    made = Rough(1.0, 1.0, 0.0, 1.0).run(start, (3,))
    assert made.fixed.item() > math.sqrt(3)
    assert made.size()[0].item() > 3 * math.sqrt(3)
    assert Flow.of_images(torch.full((1, 4), 1e-300).double()).size()[0].item() > 2e-300


@torch.no_grad()
def test_the_size_of_the_ball_is_needed() -> None:
    operator, points = Matrix(torch.eye(2) / 3, None), far_points(1e7)
    exact = operator.to(dtype=torch.float64)
    actual = norms(operator.apply(points).double() - exact.apply(points.double())).max()
    with roundings_of_float32():
        flow = exact.run(Flow.of_images(torch.tensor([[0.3, 0.7]]).double()), (2,))
    assert flow.fixed.item() < actual < flow.fixed.item() + 1e7 * flow.slope
