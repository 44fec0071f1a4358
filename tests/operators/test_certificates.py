"""Certificates of random small networks under attack: no prediction changes within a radius, but beyond."""

import math

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.operators import (
    ChannelAffine,
    CircularConvolution,
    Concatenation,
    GroupSort,
    Householder,
    Matrix,
    Mirror,
    Operator,
    Reshape,
    Sequence,
    SkewPolynomial,
    WeightedSum,
)
from tests.operators.cases import Frozen

SHAPE, CLASSES = (2, 3, 3), 4
KINDS = ("plain", "average", "joined", "mirrored", "residual", "without a last matrix", "difference")


def body(channels: int = 4) -> Operator:
    """A random body from images to channels * 9 features."""
    number = (
        torch.randn(4, channels, channels).double() / 4,
        torch.randn(channels * (channels - 1) // 2).double(),
    )
    skew = SkewPolynomial(
        number[1], number[0], 0.5, 0.5, (1.0, 1.0, 0.5), channels, channels, torch.randn(channels).double()
    )
    return Sequence.of(
        ChannelAffine(torch.rand(2).double(), torch.rand(2).double() + 0.25),
        CircularConvolution(torch.randn(channels, 2, 3, 3).double() / 4, torch.randn(channels).double()),
        GroupSort(2),
        skew,
        Householder(torch.randn(channels // 2).double()),
        Reshape(),
    )


def head(features: int) -> Operator:
    return Matrix(torch.randn(CLASSES, features).double() / 4, torch.randn(CLASSES).double())


def network(kind: str) -> Operator:
    """One random classifier of images of `SHAPE`."""
    first, second = Sequence.of(body(), head(36)), Sequence.of(body(), head(36))
    if kind == "average":
        return WeightedSum((first, second), (0.5, 0.5))
    if kind == "difference":
        return WeightedSum((first, second), (1.25, -0.75))
    if kind == "joined":
        return Sequence.of(Concatenation((body(), body(2))), head(54))
    if kind == "mirrored":
        return WeightedSum((first, Sequence.of(Mirror(), first)), (0.5, 0.5))
    if kind == "residual":
        block = WeightedSum(
            (Sequence(()), Sequence.of(Matrix(torch.randn(36, 36).double() / 6, None), GroupSort(2))),
            (0.5, 0.5),
        )
        return Sequence.of(body(), block, head(36))
    return (
        Sequence.of(first, Householder(torch.randn(CLASSES // 2).double()))
        if kind == "without a last matrix"
        else first
    )


def directions(operator: Operator, images: Tensor, prediction: Tensor, target: Tensor) -> Tensor:
    """Unit vectors along which the margin between two classes shrinks the fastest."""
    x = images.clone().requires_grad_()
    logits = operator.apply(x)
    margins = logits.gather(1, prediction[:, None]) - logits.gather(1, target[:, None])
    (gradient,) = torch.autograd.grad(margins.sum(), x)
    return -gradient / torch.linalg.vector_norm(gradient.flatten(1), dim=1).view(-1, 1, 1, 1)


def steps_along_the_gradient(
    operator: Operator, images: Tensor, found: lc.Certificates, limit: Tensor
) -> Tensor:
    """Points that follow the gradient towards the runner-up, and stay within `limit`."""
    points, bound = images, limit.view(-1, 1, 1, 1)
    for _ in range(12):
        points = points + 0.25 * bound * directions(operator, points, found.prediction, found.runner_up)
        length = torch.linalg.vector_norm((points - images).flatten(1), dim=1).view(-1, 1, 1, 1)
        points = images + (points - images) * (bound / length).clamp(max=1) * (1 - 2.0**-40)
    return points


@torch.no_grad()
def change_along_rays(operator: Operator, images: Tensor, rays: Tensor, prediction: Tensor) -> Tensor:
    """Distances at which predictions change along unit rays, by doubling and bisection; infinite if never."""
    low, high = (
        torch.zeros(len(images), dtype=torch.float64),
        torch.full((len(images),), 1e-3, dtype=torch.float64),
    )

    def changed(distance: Tensor) -> Tensor:
        return operator.apply(images + distance.view(-1, 1, 1, 1) * rays).argmax(1) != prediction

    for _ in range(16):
        flips = changed(high)
        low, high = torch.where(flips, low, high), torch.where(flips, high, 2 * high)
    ever = changed(high)
    for _ in range(30):
        middle = (low + high) / 2
        flips = changed(middle)
        low, high = torch.where(flips, low, middle), torch.where(flips, middle, high)
    points = images + high.view(-1, 1, 1, 1) * rays
    distance = torch.linalg.vector_norm((points - images).flatten(1), dim=1)
    return torch.where(ever, distance, math.inf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(10))
def test_no_prediction_changes_within_its_radius_and_some_do_beyond(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    proved = lc.prove(nn.Sequential(Frozen(network(kind))), SHAPE)
    images = torch.rand(12, *SHAPE, dtype=torch.float64)
    found = proved.certify(images)
    assert (found.radius > 0).all()
    operator = proved.operator
    for share in (0.5, 1.0):
        points = steps_along_the_gradient(operator, images, found, share * found.radius)
        distance = torch.linalg.vector_norm((points - images).flatten(1), dim=1)
        assert (distance <= found.radius).all()
        assert (distance >= 0.4 * share * found.radius).all(), "the attack stays where it is"
        with torch.no_grad():
            assert torch.equal(operator.apply(points).argmax(1), found.prediction)
    rays = directions(operator, images, found.prediction, found.runner_up)
    random = torch.randn(36, *SHAPE, dtype=torch.float64)
    random /= torch.linalg.vector_norm(random.flatten(1), dim=1).view(-1, 1, 1, 1)
    distances = change_along_rays(
        operator, images.repeat(4, 1, 1, 1), torch.cat([rays, random]), found.prediction.repeat(4)
    ).view(4, -1)
    assert (distances > found.radius).all()
    assert distances[0].isfinite().any(), "the attack finds nothing at any distance"
    far = steps_along_the_gradient(operator, images, found, 100 * found.radius)
    with torch.no_grad():
        assert (operator.apply(far).argmax(1) != found.prediction).any(), (
            "no attack succeeds beyond the radius"
        )


def test_a_linear_network_is_certified_up_to_its_boundary() -> None:
    """Two classes and one matrix: the nearest other prediction is exactly at margin / ||w_0 - w_1||."""
    weight = torch.randn(2, 18, dtype=torch.float64)
    proved = lc.prove(nn.Sequential(Frozen(Sequence.of(Reshape(), Matrix(weight, None)))), SHAPE)
    images = torch.rand(50, *SHAPE, dtype=torch.float64)
    found = proved.certify(images)
    rays = directions(proved.operator, images, found.prediction, found.runner_up)
    nearest = change_along_rays(proved.operator, images, rays, found.prediction)
    assert (nearest > found.radius).all()
    assert (nearest <= found.radius * (1 + 1e-9)).all()


def test_a_radius_that_forgets_one_branch_is_broken() -> None:
    """The attack is strong enough to see a constant that is too small by a factor of two."""
    weight = torch.randn(2, 18, dtype=torch.float64)
    single = Sequence.of(Reshape(), Matrix(weight, None))
    proved = lc.prove(nn.Sequential(Frozen(WeightedSum((single, single), (1.0, 1.0)))), SHAPE)
    images = torch.rand(20, *SHAPE, dtype=torch.float64)
    found = proved.certify(images)
    points = steps_along_the_gradient(proved.operator, images, found, 2 * found.radius)
    with torch.no_grad():
        assert (proved.operator.apply(points).argmax(1) != found.prediction).all()
