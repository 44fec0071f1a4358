"""Numbers at the edge of float64: subnormal, infinite, or too large somewhere in the ball."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.certify.prove import SMALLEST
from lipcert.errors import ArgumentError, LipcertError, NotProvedError
from lipcert.operators import (
    ChannelAffine,
    Matrix,
    Reshape,
    Sequence,
    Shape,
    WeightedSum,
)
from tests.operators.cases import Frozen

SHAPE = (1, 4, 4)


def double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows if len(rows) > 1 else rows[0], dtype=torch.float64)


@pytest.fixture
def flushed() -> Iterator[None]:
    """Subnormal numbers count as zero, in this thread."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    yield
    torch.set_flush_denormal(False)


def same(found: lc.Certificates, expected: lc.Certificates) -> bool:
    pairs = ((found.prediction, expected.prediction), (found.radius, expected.radius))
    return all(torch.equal(*pair) for pair in pairs) and found.lipschitz == expected.lipschitz


def small_head(size: float) -> nn.Sequential:
    """Two classes that are told apart by weights of this size alone."""
    return nn.Sequential(lc.Flatten(), Frozen(Matrix(size * torch.eye(2).double(), None)))


@pytest.mark.parametrize("size", [5e-324, 1e-310, 2.0**-1022, 2.0**-1001, 2.0**-1000, 2.0**-990])
def test_subnormal_weights_count_the_same_where_they_are_flushed(size: float, flushed: None) -> None:
    images = double([0.2, 0.9]).view(1, 2, 1, 1)
    torch.set_flush_denormal(False)
    model = small_head(size)
    torch.set_flush_denormal(True)
    under_flush = lc.prove(model, (2, 1, 1))
    found = under_flush.certify(images)
    torch.set_flush_denormal(False)
    proved = lc.prove(model, (2, 1, 1))
    expected = proved.certify(images)
    assert proved.operator == under_flush.operator
    assert same(found, expected)
    assert bool(proved.operator.arrays()[0].any()) == (size >= SMALLEST)
    torch.set_flush_denormal(True)
    assert same(proved.certify(images), expected)


class Scaled(nn.Module):
    """Logits that a number is multiplied to in forward."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.head, self.factor = Frozen(Matrix(torch.eye(2).double(), None)), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) * self.factor  # type: ignore[no-any-return]


@pytest.mark.parametrize("factor", [5e-324, 1e-310, 2.0**-1022, -(2.0**-501)])
def test_factors_that_could_be_flushed_are_refused_by_path(factor: float) -> None:
    with pytest.raises(
        ArgumentError, match=r"^mul: weights: expected finite numbers of at least 3e-151 or zero"
    ):
        lc.prove(Scaled(factor), (2, 1, 1))


@pytest.mark.parametrize("factor", [2.0**-500, 2.0**-499, 0.0])
def test_small_factors_count_the_same_where_subnormals_are_flushed(factor: float, flushed: None) -> None:
    images = double([0.2, 0.9]).view(1, 2, 1, 1)
    found = lc.prove(Scaled(factor), (2, 1, 1)).certify(images)
    torch.set_flush_denormal(False)
    expected = lc.prove(Scaled(factor), (2, 1, 1)).certify(images)
    assert same(found, expected)
    assert (expected.radius.item() > 0) == (factor > 0)


def test_what_underflows_in_a_weighted_sum_is_counted(flushed: None) -> None:
    """Weights and numbers that are ordinary, and products of them that are not."""
    model = nn.Sequential(lc.Flatten(), Frozen(WeightedSum((Sequence(()),), (2.0**-500,))))
    images = 2.0**-525 * double([0.2, 0.9]).view(1, 2, 1, 1)
    proved = lc.prove(model, (2, 1, 1))
    assert not proved.logits(images).any()
    torch.set_flush_denormal(False)
    found = proved.certify(images)
    assert found.margin.item() > 0, "nothing underflows, so nothing is tested"
    assert found.radius.item() == 0


def nothing_is_certified(build: Callable[[], nn.Module], shape: Shape, message: str) -> None:
    with pytest.raises(NotProvedError, match=message):
        lc.prove(build(), shape).certify(torch.full((1, *shape), 0.5))


def normalised(std: float, mean: float = 0.0) -> nn.Sequential:
    affine = Frozen(ChannelAffine(double([mean]), double([std])))
    return nn.Sequential(affine, lc.Flatten(), nn.Linear(4, 2))


@pytest.mark.parametrize("std", [1e-300, 2.0**-999, 1e-120])
@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_a_std_that_lets_pixels_overflow_is_refused(std: float, mean: float) -> None:
    nothing_is_certified(lambda: normalised(std, mean), (1, 2, 2), "no finite .*bound|too near to overflow")


def test_a_std_below_the_smallest_weight_is_refused_by_path() -> None:
    with pytest.raises(LipcertError, match=r"^0: std: expected finite numbers that are not zero"):
        lc.prove(normalised(6e-309), (1, 2, 2))


@pytest.mark.parametrize("scale", [1e90, 1e120, 1e150])
def test_a_chain_of_huge_constants_is_refused(scale: float) -> None:
    huge = [Frozen(Matrix(scale * torch.eye(4).double(), None)) for _ in range(4)]
    back = [Frozen(Matrix(torch.eye(4).double() / scale, None)) for _ in range(4)]
    nothing_is_certified(
        lambda: nn.Sequential(lc.Flatten(), *huge, *back, nn.Linear(4, 2)),
        (1, 2, 2),
        "no finite .*bound|too near to overflow|not finite",
    )


def test_logits_that_could_overflow_are_refused() -> None:
    """What the last operator makes counts too."""
    last = Frozen(ChannelAffine(double([0.0, 0.0]), double([1e-120, 1e-120])))
    nothing_is_certified(
        lambda: nn.Sequential(lc.Flatten(), nn.Linear(4, 2), last), (1, 2, 2), "too near to overflow"
    )


def test_an_overflow_in_one_branch_is_refused() -> None:
    up, down = (Matrix(scale * torch.eye(4).double(), None) for scale in (1e120, 1e-120))
    branch = WeightedSum((Sequence(()), Sequence.of(up, down)), (0.5, 0.5))
    nothing_is_certified(
        lambda: nn.Sequential(lc.Flatten(), Frozen(branch), nn.Linear(4, 2)),
        (1, 2, 2),
        "too near to overflow",
    )


def test_an_overflow_in_the_last_sum_is_refused() -> None:
    """1e300 f - 1e300 g with equal second logits: finite at the image, infinity minus infinity 1e5 away."""
    large = 1.7976e8
    first, second = (Matrix(torch.eye(2).double(), double([b, large])) for b in (1e7, 0.0))
    operator = Sequence.of(Reshape(), WeightedSum((first, second), (1e300, -1e300)))
    proved = lc.prove(nn.Sequential(Frozen(operator)), (2, 1, 1))
    images = torch.full((1, 2, 1, 1), 0.5, dtype=torch.float64)
    points = images.clone()
    points[:, 1] += 1e5
    assert proved.operator.apply(points).isnan().any(), "nothing overflows, so nothing is tested"
    with pytest.raises(NotProvedError, match="too near to overflow"):
        proved.certify(images)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Linear(16, 16),
        lambda: lc.OrthogonalLinear(16, 16),
        lambda: lc.OrthogonalLinear(16, 16, method="bjorck"),
        lambda: lc.OrthogonalLinear(16, 16, method="cayley"),
        lambda: lc.NormalizedLinear(16, 16),
        lambda: lc.Householder(16),
        lambda: lc.HouseholderOrder(16, order=3),
        lambda: lc.HouseholderND(16, group_size=4, length=2),
    ],
    ids=["linear", "soc linear", "bjorck", "cayley", "normalized", "hh", "hh3", "nd"],
)
def test_weights_that_are_not_finite_are_refused_by_path(
    layer: Callable[[], nn.Module], value: float
) -> None:
    model = nn.Sequential(lc.Flatten(), nn.Sequential(nn.Identity(), layer()), nn.Linear(16, 2))
    with torch.no_grad():
        next(model[1][1].parameters()).flatten()[0] = value  # type: ignore[index]
    with pytest.raises(LipcertError, match=r"^1\.1: "):
        lc.prove(model, (1, 4, 4))


@pytest.mark.parametrize("field", ["weight", "bias"])
def test_numbers_of_operators_that_are_not_finite_are_refused_by_path(field: str) -> None:
    """They are no parameters of a module, so nobody else looks at them."""
    numbers = {"weight": torch.eye(4).double(), "bias": torch.zeros(4).double()}
    numbers[field] = numbers[field] * math.nan
    model = nn.Sequential(lc.Flatten(), Frozen(Matrix(**numbers)), nn.Linear(4, 2))
    with pytest.raises(
        NotProvedError, match=r"^1: Frozen has weights that are not finite; the model diverged"
    ):
        lc.prove(model, (1, 2, 2))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("conv", [lc.SOC, lc.BCOP, lc.Cayley])
@pytest.mark.parametrize("parameter", ["weight", "bias"])
def test_convolutions_that_are_not_finite_are_refused_by_path(
    conv: Callable[..., nn.Module], parameter: str, value: float
) -> None:
    model = nn.Sequential(conv(1, 2, 3), lc.Flatten(), nn.Linear(32, 2))
    with torch.no_grad():
        found = dict(model[0].named_parameters())
        chosen = found[parameter] if parameter in found else next(iter(found.values()))
        chosen.view(-1)[0] = value
    with pytest.raises(NotProvedError, match=r"^0: "):
        lc.prove(model, SHAPE)


def test_subnormal_pixels_are_fine() -> None:
    found = lc.prove(lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1)).certify(
        torch.full((1, *SHAPE), 1e-310, dtype=torch.float64)
    )
    assert found.radius.isfinite().all()
