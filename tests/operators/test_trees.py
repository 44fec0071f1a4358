"""Random trees: constants, pair bounds and the rounding error of every point of a ball."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipcert.operators import (
    ChannelAffine,
    ChannelSlice,
    Concatenation,
    Flow,
    GroupSort,
    Matrix,
    Operator,
    Sequence,
    Shape,
    WeightedSum,
)
from tests.operators.cases import (
    body,
    circular,
    dense_jacobian,
    inputs,
    jacobian_error,
    matrix,
    norms,
    residual,
    roundings_of_float32,
)
from tests.operators.trees import VECTORS, WEIGHTS, tree, trees


@settings(max_examples=120)
@given(trees())
def test_no_jacobian_of_a_tree_exceeds_its_bound(drawn: tuple[Operator, Shape]) -> None:
    operator, shape = drawn
    bound = operator.lipschitz_bound(shape)
    for _ in range(3):
        jacobian = dense_jacobian(operator, shape)
        norm = float(torch.linalg.matrix_norm(jacobian, 2))
        assert norm <= bound + jacobian_error(operator, jacobian, shape)


@settings(max_examples=120)
@given(trees(), st.sampled_from([0.0, 0.1, 10.0]), st.integers(0, 2**32))
@torch.no_grad()
def test_every_computed_point_of_a_ball_is_within_the_error_that_flows(
    drawn: tuple[Operator, Shape], radius: float, seed: int
) -> None:
    operator, shape = drawn
    torch.manual_seed(seed)
    images = inputs(shape, 4)
    with roundings_of_float32():
        flow = operator.run(Flow.of_images(images), shape)
    assert torch.equal(flow.value, operator.apply(images))
    single = operator.to(dtype=torch.float32)
    for _ in range(4):
        points = in_ball(images, radius)
        exact, computed = operator.apply(points), single.apply(points.float()).double()
        assert (norms(computed - exact) <= flow.fixed + flow.slope * radius).all()
        moved = norms(exact - flow.value)
        assert (moved <= flow.reach * radius + 1e-11 * (flow.size()[0] + flow.size()[1] * radius)).all()
        assert (norms(computed) <= flow.size()[0] + flow.size()[1] * radius).all()


def in_ball(images: Tensor, radius: float) -> Tensor:
    """Points of float32 at most so far away, most of them nearly that far."""
    step = torch.randn_like(images)
    step *= 0.9999 * radius / norms(step).view(-1, *(1,) * (step.dim() - 1))
    points = (images + step).float().double() if radius else images
    assert (norms(points - images) <= radius).all()
    return points


@settings(max_examples=80)
@given(trees(), st.sampled_from([1e-3, 1.0, 1e4]), st.integers(0, 2**32))
@torch.no_grad()
def test_float32_is_within_the_rounding_error_of_a_tree(
    drawn: tuple[Operator, Shape], size: float, seed: int
) -> None:
    operator, shape = drawn
    torch.manual_seed(seed)
    x = inputs(shape, 8, size)
    with roundings_of_float32():
        error = operator.rounding_error(shape)
    off = norms(operator.to(dtype=torch.float32).apply(x.float()).double() - operator.apply(x))
    assert (off <= error.relative * norms(x) + error.absolute).all()


@st.composite
def several_networks(draw: st.DrawFn) -> tuple[WeightedSum, Shape]:
    shape, made = (draw(st.integers(1, 3)), 2, 2), draw(VECTORS)
    weights = tuple(draw(st.lists(WEIGHTS, min_size=1, max_size=3)))
    features = (4,)
    networks = tuple(
        Sequence.of(
            draw(tree(shape, features, 2)), matrix(made[0], 4, scale=draw(st.sampled_from([1.0, 4.0])))
        )
        for _ in weights
    )
    return WeightedSum(networks, weights), shape


@settings(max_examples=60)
@given(several_networks())
def test_pair_bounds_of_several_networks_hold(drawn: tuple[WeightedSum, Shape]) -> None:
    operator, shape = drawn
    bounds = operator.pair_bounds(shape)
    by_hand = sum(
        abs(w) * branch.pair_bounds(shape)
        for branch, w in zip(operator.branches, operator.weights, strict=True)
    )
    torch.testing.assert_close(bounds, by_hand, rtol=1e-14, atol=0)
    for _ in range(3):
        jacobian = dense_jacobian(operator, shape)
        steepness = torch.linalg.vector_norm(jacobian[:, None] - jacobian[None], dim=2)
        assert (steepness <= bounds + 2 * jacobian_error(operator, jacobian, shape)).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_an_average_of_equal_networks_keeps_the_constant(count: int) -> None:
    network = Sequence.of(body(), matrix(3, 16))
    weights = (1 / count,) * count
    average = WeightedSum((network,) * count, weights)
    assert sum(map(Fraction, weights)) <= 1, "not an average in exact arithmetic"
    shape = (2, 4, 4)
    assert average.lipschitz_bound(shape) == network.lipschitz_bound(shape)
    assert average.feature_bound(shape) == network.feature_bound(shape)
    torch.testing.assert_close(average.pair_bounds(shape), network.pair_bounds(shape), rtol=1e-14, atol=0)


def test_weights_that_sum_to_more_than_one_are_rounded_up() -> None:
    """Ten times 0.1 is above 1: the float is."""
    weights = (0.1,) * 10
    total = sum(map(Fraction, weights))
    assert total > 1
    bound = WeightedSum((GroupSort(2),) * 10, weights).lipschitz_bound((2,))
    assert total <= Fraction(bound) <= total * (1 + Fraction(1, 2**48))


def test_a_residual_block_of_halves_has_the_mean_of_both_constants() -> None:
    turn = Matrix(torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64), None)
    inner = Sequence.of(turn, GroupSort(2))
    block = WeightedSum((Sequence(()), inner), (0.5, 0.5))
    assert 1 <= block.lipschitz_bound((2,)) <= inner.lipschitz_bound((2,)) <= 1 + 1e-4
    half = (1 + circular(4, 4, 3).lipschitz_bound((4, 3, 2))) / 2
    assert residual().lipschitz_bound((4, 3, 2)) == pytest.approx(half, rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((1.0, 1.0), 5.0), ((-1.0, 2.0), 8.0), ((0.5, -1.5), 5.5), ((2.0, 0.0), 4.0)],
)
def test_the_constant_of_a_weighted_sum_by_hand(weights: tuple[float, float], expected: float) -> None:
    """Branches of constants 2 and 3."""
    ones = torch.ones(2, dtype=torch.float64)
    double, triple = ChannelAffine(0 * ones, ones / 2), Matrix(3 * torch.eye(2).double(), None)
    assert WeightedSum((double, triple), weights).lipschitz_bound((2,)) == pytest.approx(expected, rel=1e-6)
    assert Concatenation((double, triple)).lipschitz_bound((2,)) == pytest.approx(13**0.5, rel=1e-6)
    assert Sequence.of(double, triple, double).lipschitz_bound((2,)) == pytest.approx(12, rel=1e-6)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        (((0, 1), (1, 3)), 3.0),
        (((2, 3), (0, 2)), 3.0),
        (((0, 2), (1, 3)), 13**0.5),
        (((0, 1), (0, 1)), 13**0.5),
    ],
)
def test_branches_with_channels_of_their_own(slices: tuple[tuple[int, int], ...], expected: float) -> None:
    """Branches of constants 2 and 3: the largest counts, unless they read a common channel."""
    branches = tuple(
        Sequence.of(ChannelSlice(start, stop), Matrix(factor * torch.eye(stop - start).double(), None))
        for (start, stop), factor in zip(slices, (2, 3), strict=True)
    )
    whole = Concatenation(branches)
    assert whole.lipschitz_bound((3,)) == pytest.approx(expected, rel=1e-12)
    start = Flow.of_images(torch.ones(1, 3, dtype=torch.float64))
    assert whole.run(start, (3,)).reach == pytest.approx(expected, rel=1e-12)


def test_a_product_with_one_half_halves_the_constant() -> None:
    assert WeightedSum((GroupSort(2),), (0.5,)).lipschitz_bound((2,)) == pytest.approx(0.5, rel=1e-12)


@settings(max_examples=40)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6))
def test_the_product_of_constants_is_rounded_up(stds: list[float]) -> None:
    parts = [ChannelAffine(torch.zeros(1).double(), torch.tensor([std], dtype=torch.float64)) for std in stds]
    bounds = [part.lipschitz_bound((1,)) for part in parts]
    exact = Fraction(1)
    for bound in bounds:
        exact *= Fraction(bound)
    whole = Sequence.of(*parts)
    found = whole.lipschitz_bound((1,)) if len(parts) > 1 else bounds[0]
    assert exact <= Fraction(found) <= exact * (1 + Fraction(len(stds), 2**50))
    length = Concatenation(tuple(parts)).lipschitz_bound((1,))
    assert Fraction(length) ** 2 >= sum(Fraction(bound) ** 2 for bound in bounds)


def test_the_largest_number_of_every_branch_is_kept() -> None:
    """A number that overflows in a branch is not hidden by the next one, which makes it small again."""
    ones = torch.ones(1, dtype=torch.float64)
    branch = Sequence.of(ChannelAffine(0 * ones, ones * 2.0**-400), ChannelAffine(0 * ones, ones * 2.0**400))
    start = Flow.of_images(torch.ones(1, 1, dtype=torch.float64))
    alone = branch.run(start, (1,))
    assert alone.largest.item() >= 2.0**400
    assert WeightedSum((Sequence(()), branch), (0.5, 0.5)).run(start, (1,)).largest.item() >= 2.0**400
    assert Concatenation((branch, Sequence(()))).run(start, (1,)).largest.item() >= 2.0**400
    huge = WeightedSum((Sequence(()), Sequence(())), (2.0**400, -(2.0**400)))
    assert huge.run(start, (1,)).largest.item() >= 2.0**400, "what is added, although the sum is zero"
