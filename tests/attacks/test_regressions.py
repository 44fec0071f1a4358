"""Recipes that are in use elsewhere and certify too much: an attack breaks them, and ours it does not."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.attacks.audit import attack_claims, audit
from lipcert.attacks.classifier import any_classifier
from lipcert.attacks.report import AuditReport
from lipcert.attacks.settings import AttackSettings
from lipcert.nn import ConstantHead, Flatten, Normalize
from lipcert.nn.carried import carried_vectors
from tests.attacks.networks import SHAPE, claims_as_if_one_lipschitz, tiny_lipconvnet

ATTACKS = ["noise", "pgd", "pgd-minimal"]
QUICK = AttackSettings(steps=15, restarts=1, targets=2)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


def attacked(
    network: nn.Module, images: Tensor, claims: SimpleNamespace, dtype: torch.dtype = torch.float64
) -> AuditReport:
    return attack_claims(
        any_classifier(network, dtype),
        images,
        claims.prediction,
        claims.radius,
        attacks=ATTACKS,
        settings=QUICK,
    )


def test_the_largest_std_makes_radii_too_large() -> None:
    # The classes differ in the channel of the smallest std, where the normalisation stretches most.
    rows = torch.zeros(2, 3, 4, 4)
    rows[0, 1], rows[1, 1] = torch.randn(2, 4, 4)
    head = ConstantHead(rows.flatten(1), None)
    model = nn.Sequential(Normalize((0.4914, 0.4822, 0.4465), CIFAR_STD), Flatten(), head)
    images = torch.rand(8, 3, 4, 4)
    ours = lc.certify(model, images)
    naive = SimpleNamespace(
        prediction=ours.prediction, radius=ours.margin / head.pair_distances()[0, 1] * max(CIFAR_STD)
    )
    assert (naive.radius / ours.radius).mean().item() == pytest.approx(1.074, abs=1e-3)
    assert len(attacked(model, images, naive).broken) == 8
    assert audit(model, images, attacks=ATTACKS, settings=QUICK).ratios[-1] <= 1.001


@pytest.mark.parametrize("scale", [1e-3, 1e3], ids=["short vectors", "long vectors"])
def test_scaled_power_iteration_vectors(scale: float) -> None:
    # Elsewhere a layer is W / (u W v), u and v from the checkpoint, and is taken for 1-Lipschitz.
    weight = torch.randn(16, 16)
    left, _, right = torch.linalg.svd(weight)
    u, v = left[:, 0] * scale, right[0]
    layer = nn.Linear(16, 16)
    layer.weight.data = weight / (u @ weight @ v)
    rows = torch.linalg.qr(torch.randn(16, 16)).Q[:4]
    naive = nn.Sequential(nn.Flatten(), layer, ConstantHead(rows, None))
    images = torch.rand(8, *SHAPE)
    claims = claims_as_if_one_lipschitz(naive, images)
    broken = len(attacked(naive, images, claims).broken)
    assert (broken == 8) if scale < 1 else (broken == 0), "long vectors only shrink the layer"

    model = tiny_lipconvnet().train()
    model(torch.rand(8, *SHAPE))  # the vectors are there after the first training step
    vectors = list(carried_vectors(model).values())
    assert any(vector.numel() for vector in vectors)
    before = lc.certify(model, images)
    for vector in vectors:
        vector.mul_(scale)
    assert torch.equal(lc.certify(model, images).radius, before.radius)
    assert not audit(model, images, attacks=ATTACKS, settings=QUICK).broken


def test_vectors_of_another_filter() -> None:
    # A fresh layer in eval mode: random vectors instead of leading ones, so the quotient is far too small.
    weight, u, v = torch.randn(16, 16), *torch.nn.functional.normalize(torch.randn(2, 16), dim=1)
    layer = nn.Linear(16, 16)
    layer.weight.data = weight / (u @ weight @ v)
    naive = nn.Sequential(nn.Flatten(), layer, ConstantHead(torch.eye(16)[:4], None))
    images = torch.rand(8, *SHAPE)
    assert len(attacked(naive, images, claims_as_if_one_lipschitz(naive, images)).broken) == 8
    assert not audit(tiny_lipconvnet(), images, attacks=ATTACKS, settings=QUICK).broken


def with_a_huge_bias(size: float) -> nn.Sequential:
    """A bias in front of the head that the head's own bias takes away again: in exact arithmetic, nothing."""
    linear = lc.OrthogonalLinear(16, 16)
    head = lc.NormalizedLinear(16, 4)
    assert linear.bias is not None
    assert head.bias is not None
    with torch.no_grad():
        linear.bias.fill_(size)
        head.bias.copy_(-size * head.normalized_weight().double().sum(1))
    return nn.Sequential(Normalize(0.5, 0.5), Flatten(), linear, head).eval()


def test_a_huge_bias_that_cancels() -> None:
    model, images = with_a_huge_bias(2.0**16), torch.rand(64, *SHAPE)
    with torch.no_grad():
        logits = model(images)
    head = model[-1]
    assert isinstance(head, lc.NormalizedLinear)
    prediction = logits.argmax(1)
    naive = SimpleNamespace(prediction=prediction, radius=head.certificate(logits, prediction).detach() * 0.5)
    assert attacked(model, images, naive, torch.float32).broken
    ours = lc.certify(model, images)
    assert (ours.radius > 0).any()
    assert not audit(model, images, ours, attacks=ATTACKS, settings=QUICK).broken


@torch.no_grad()
def bisected_ties(model: nn.Module, count: int, dtype: torch.dtype) -> Tensor:
    """Images on a decision boundary, as near as `dtype` can hold: the end of a bisection between classes."""
    images = torch.rand(4 * count, *SHAPE, dtype=dtype)
    classes = model(images).argmax(1)
    partners = torch.stack([(classes != own).nonzero()[0, 0] for own in classes[:count]])
    a, b = images[:count], images[partners]
    for _ in range(80):
        middle = (a + b) / 2
        same = (model(middle).argmax(1) == classes[:count]).view(-1, 1, 1, 1)
        a, b = torch.where(same, middle, a), torch.where(same, b, middle)
    return a


def test_bisected_ties_in_float32() -> None:
    model = tiny_lipconvnet()
    ties = bisected_ties(model, 40, torch.float32)
    with torch.no_grad():
        logits = model(ties)
    prediction = logits.argmax(1)
    radius = model.head.certificate(logits, prediction).detach() * float(model.normalize.std.min())
    naive = SimpleNamespace(prediction=prediction, radius=radius.double())
    assert (radius > 0).any()
    assert attacked(model, ties, naive, torch.float32).broken
    assert not audit(model, ties, attacks=ATTACKS, settings=QUICK).broken


def test_bisected_ties_in_float64() -> None:
    model = tiny_lipconvnet()
    ties = bisected_ties(lc.freeze(model.double()), 40, torch.float64)
    report = audit(model, ties, attacks=ATTACKS, settings=QUICK)
    assert not report.broken
    # Within a few units in the last place of the boundary the rounding of the network certifies nothing.
    assert max(record.radius for record in report.records) < 1e-14


def test_margins_over_the_wrong_constant() -> None:
    # sqrt(2) is right for orthonormal rows only; rows of a free head may be 2 apart.
    rows = torch.tensor([[1.0] + [0.0] * 15, [-1.0] + [0.0] * 15])
    model = nn.Sequential(Flatten(), ConstantHead(rows, None))
    images = torch.rand(6, *SHAPE)
    claims = claims_as_if_one_lipschitz(model, images)
    assert len(attacked(model, images, claims).broken) == 6
    ours = audit(model, images, attacks=ATTACKS, settings=QUICK)
    assert math.isclose(ours.ratios[-1], 1, rel_tol=1e-4)
