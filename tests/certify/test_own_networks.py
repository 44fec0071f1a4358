"""Random small networks of plain modules under every combinator: constants, pair bounds and certificates."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.operators import Operator
from tests.operators.cases import dense_jacobian, jacobian_error
from tests.operators.test_certificates import steps_along_the_gradient

QUICK, SOME, ALL = 6, 60, 1000


class Own(nn.Module):
    """A module whose forward is given."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def keeping(draw: random.Random, channels: int) -> nn.Module:
    """A layer from maps to maps of the same shape."""
    size = draw.choice([1, 3, 5])
    dilation = draw.choice([1, 1, 2])
    groups = channels if draw.random() < 0.3 else 1
    convolution = nn.Conv2d(
        channels, channels, size, padding=dilation * (size // 2), dilation=dilation, groups=groups
    )
    norm = nn.BatchNorm2d(channels)
    norm.running_mean, norm.running_var = torch.randn(channels), torch.rand(channels) + 0.1
    nn.init.normal_(norm.weight)
    axis = draw.choice([2, 3])
    center = lc.Center(channels)
    center.mean.normal_()
    return draw.choice(
        [
            convolution, nn.Sequential(convolution, norm), nn.Sequential(norm, convolution), norm, center,
            nn.ReLU(), nn.LeakyReLU(draw.uniform(-2, 2)), nn.Tanh(), nn.Sigmoid(),
            nn.Softplus(draw.choice([1, 0.5, 3])), nn.Identity(), nn.Dropout(), lc.SOC(channels, channels, 3),
            Own(lambda m, x: x.abs()), Own(lambda m, x: torch.flip(x, [axis])),
            nn.Sequential(nn.Upsample(scale_factor=2), nn.MaxPool2d(3, 2, 1)),
            nn.Sequential(nn.Upsample(scale_factor=2), nn.AvgPool2d(3, 2, 1)),
            nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4 * channels, 4 * channels, 1), nn.PixelShuffle(2)),
        ]
    )  # fmt: skip


def body(draw: random.Random, channels: int) -> nn.Sequential:
    return nn.Sequential(*(keeping(draw, channels) for _ in range(draw.randint(1, 3))))


def residual(draw: random.Random, channels: int) -> nn.Module:
    return lc.Residual(body(draw, channels), weight=draw.random())


def weighted(draw: random.Random, channels: int) -> nn.Module:
    a, b, c = (draw.uniform(-1.5, 1.5) for _ in range(3))
    return Own(
        lambda m, x: a * x + m.f(x) * b - m.g(x) / (c + 2), f=body(draw, channels), g=body(draw, channels)
    )


def joined(draw: random.Random, channels: int) -> nn.Module:
    cut = draw.randint(1, channels - 1)
    parts = {"f": body(draw, cut), "g": body(draw, channels - cut)}
    return Own(lambda m, x: torch.cat([m.f(x[:, :cut]), m.g(x[:, cut:])], dim=1), **parts)


def pooled(draw: random.Random, channels: int) -> nn.Module:
    window, stride = draw.choice([2, 3]), draw.choice([1, 2])
    padding = draw.choice([0, 1])
    pool = draw.choice([
        nn.MaxPool2d(window, stride, padding), nn.AvgPool2d(window, stride, padding),
        nn.LPPool2d(2, window, stride),
    ])  # fmt: skip
    return nn.Sequential(body(draw, channels), lc.MaxMin() if channels % 2 == 0 else nn.ReLU(), pool)


def strided(draw: random.Random, channels: int) -> nn.Module:
    size, padding = draw.choice([2, 3, 4]), draw.choice([0, 1])
    down = nn.Conv2d(
        channels, 3, size, stride=draw.choice([1, 2, 3]), padding=padding, bias=draw.random() < 0.5
    )
    return nn.Sequential(body(draw, channels), down, nn.BatchNorm2d(3), nn.ReLU())


def nested(draw: random.Random, channels: int) -> nn.Module:
    inner = nn.Sequential(residual(draw, channels), joined(draw, channels))
    return lc.Residual(nn.Sequential(inner, weighted(draw, channels)), weight=0.5)


BLOCKS = {
    "residual": residual, "weighted sum": weighted, "concatenation": joined, "pooling": pooled,
    "strided convolution": strided, "nested": nested,
}  # fmt: skip
WHOLE = {"mirrored", "average"}


def network(kind: str, seed: int) -> tuple[nn.Module, tuple[int, int, int]]:
    """The same network for the same seed, in evaluation mode and float64."""
    draw = random.Random(f"{kind} {seed}")
    torch.manual_seed(seed)
    shape = (draw.randint(2, 4), *(2 * draw.randint(2, 3) for _ in range(2)))

    def classifier() -> nn.Module:
        block = BLOCKS.get(kind, residual)(draw, shape[0]).eval()
        with torch.no_grad():
            features = block.float()(torch.zeros(1, *shape)).numel()
        return nn.Sequential(block, nn.Flatten(), nn.Linear(features, 3))

    if kind == "mirrored":
        model: nn.Module = lc.mirrored(classifier())
    elif kind == "average":
        model = lc.average([classifier() for _ in range(draw.randint(1, 3))])
    else:
        model = classifier()
    return model.double().eval(), shape


def check(kind: str, seed: int) -> int:
    """Assert what has to hold; returns how many certificates were attacked."""
    model, shape = network(kind, seed)
    proved = lc.prove(model, shape)
    operator: Operator = proved.operator
    images = torch.rand(4, *shape, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(proved.logits(images), model(images), rtol=1e-9, atol=1e-8)
    bound = operator.lipschitz_bound(shape)
    for _ in range(2):
        jacobian = dense_jacobian(operator, shape)
        error = jacobian_error(operator, jacobian, shape)
        assert float(torch.linalg.matrix_norm(jacobian, 2)) <= bound + error
        steepness = torch.linalg.vector_norm(jacobian[:, None] - jacobian[None], dim=2)
        assert (steepness <= proved.pair_bounds + 2 * error).all()
    found = proved.certify(images)
    keep = (found.radius > 0) & (found.radius < 1e3)
    if not bool(keep.any()):
        return 0
    points = steps_along_the_gradient(operator, images, found, found.radius.clamp(max=1e3) * 0.999)
    points = torch.where(points.isfinite(), points, images)  # a gradient of zero leads nowhere
    moved = torch.linalg.vector_norm((points - images).flatten(1), dim=1)
    with torch.no_grad():
        same = operator.apply(points).argmax(1) == found.prediction
    assert (same | ~keep | (moved > found.radius)).all(), "a certificate is broken"
    return int(keep.sum())


@pytest.mark.parametrize("kind", [*BLOCKS, *sorted(WHOLE)])
def test_no_random_network_exceeds_its_bound_or_breaks_a_certificate(kind: str) -> None:
    assert sum(check(kind, seed) for seed in range(QUICK)) > QUICK


@pytest.mark.parametrize(
    "count",
    [pytest.param(SOME, marks=pytest.mark.slow), pytest.param(ALL, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("kind", [*BLOCKS, *sorted(WHOLE)])
def test_none_of_many_networks_does(kind: str, count: int) -> None:
    assert sum(check(kind, seed) for seed in range(count)) > count


@pytest.mark.parametrize("kind", ["residual", "mirrored"])
def test_the_attack_sees_constants_that_are_too_small(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a twentieth of every pair bound, certificates are broken."""
    honest = lc.ProvedNetwork.pair_bounds.func  # type: ignore[attr-defined]
    monkeypatch.setattr(lc.ProvedNetwork, "pair_bounds", property(lambda self: honest(self) / 20))
    with pytest.raises(AssertionError):
        sum(check(kind, seed) for seed in range(QUICK))
