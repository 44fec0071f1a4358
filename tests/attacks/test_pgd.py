"""Our own attack: exact on a linear classifier, l2 steps, and nothing outside the ball."""

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.attacks import pgd
from lipcert.attacks.balls import Balls, choose_targets, norms, units
from lipcert.attacks.classifier import certified_classifier
from lipcert.attacks.settings import AttackSettings
from lipcert.nn import ConstantHead, Flatten
from tests.attacks.networks import SHAPE, linear_network, tiny_lipconvnet


def balls_of(model: nn.Module, images: Tensor, targets: int = 1) -> Balls:
    cert = lc.certify(model, images)
    classifier = certified_classifier(lc.prove(model, tuple(images.shape[1:])))
    aims = choose_targets(classifier.logits(images), cert.prediction, cert.runner_up, targets)
    return Balls(classifier, images.double(), cert.prediction, cert.radius, units(cert.radius), aims, False)


@pytest.mark.parametrize(("epsilon", "succeeds"), [(0.999, False), (1.001, True)])
def test_one_step_solves_a_linear_classifier(epsilon: float, succeeds: bool) -> None:
    balls = balls_of(linear_network(), torch.rand(10, *SHAPE))
    start = torch.zeros(10, *SHAPE)
    z, lead = pgd.descend(balls, start, torch.full((10,), epsilon), balls.targets[:, 0], steps=1)
    assert torch.equal(lead < 0, torch.full((10,), succeeds))
    # One float32 rounding per pixel and of the norm: 16 pixels of relative error 2^-24, and room to spare.
    torch.testing.assert_close(norms(z), torch.full((10,), epsilon), rtol=1e-6, atol=0)


def test_steps_are_those_of_l2() -> None:
    # The gradient is (1, 0.1, ..., 0.1); its sign, (1, ..., 1), is far from the steepest way in l2.
    gap = torch.full((16,), 0.1)
    gap[0] = 1.0
    model = nn.Sequential(Flatten(), ConstantHead(torch.stack([gap, -gap]), None))
    balls = balls_of(model, torch.full((1, *SHAPE), 0.5))
    edge = torch.tensor([1.01])
    z, lead = pgd.descend(balls, torch.zeros(1, *SHAPE), edge, balls.targets[:, 0], steps=10)
    assert lead < 0
    step_by_sign = -torch.sign(gap).view(1, *SHAPE)
    trap = step_by_sign / norms(step_by_sign) * edge
    assert balls.lead(balls.logits(trap)) > 0, "the case does not tell sign steps from l2 steps"
    direction = -gap / gap.norm()
    torch.testing.assert_close(z.flatten() / z.norm(), direction, rtol=1e-5, atol=1e-6)


def test_descents_stay_in_the_ball_and_go_down() -> None:
    torch.manual_seed(1)
    balls = balls_of(tiny_lipconvnet(), torch.rand(8, *SHAPE), targets=2)
    settings = AttackSettings(steps=15, restarts=2, targets=2)
    candidates = list(pgd.inside(balls, settings, torch.Generator().manual_seed(0)))
    assert len(candidates) == 4
    before = balls.lead(balls.logits(torch.zeros(8, *SHAPE)))
    for z in candidates:
        assert (norms(z) <= 0.999 * (1 + 1e-6)).all()
    assert (balls.lead(balls.logits(candidates[0])) < before).all()


def test_the_minimal_attack_bisects_to_the_boundary() -> None:
    balls = balls_of(linear_network(), torch.rand(10, *SHAPE))
    (z,) = pgd.minimal(balls, AttackSettings(steps=20, targets=1), torch.Generator())
    # Radii 1.25, then halvings of [0, 1.25]: eight rounds leave an interval of 1.25 / 2^7.
    assert (norms(z) >= 1).all()
    assert (norms(z) <= 1 + 1.25 / 2**7).all()


def test_the_minimal_attack_grows_where_the_certificate_is_loose() -> None:
    model = linear_network()
    images = torch.rand(6, *SHAPE)
    tight = balls_of(model, images)
    loose = Balls(
        tight.classifier,
        tight.images,
        tight.prediction,
        tight.radius / 20,
        tight.scale / 20,
        tight.targets,
        False,
    )
    (z,) = pgd.minimal(loose, AttackSettings(steps=20, targets=1), torch.Generator())
    assert (loose.lead(loose.logits(z)) < 0).all()
    assert (norms(z) <= 20 * 1.5).all()


def test_noise_is_on_the_sphere_and_reproducible() -> None:
    balls = balls_of(linear_network(), torch.rand(3, *SHAPE))
    settings = AttackSettings(inside=0.5)
    first, second = (list(pgd.noise(balls, settings, torch.Generator().manual_seed(7))) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for z in first:
        torch.testing.assert_close(norms(z), torch.full((3,), 0.5), rtol=1e-6, atol=0)


def test_a_vanishing_gradient_moves_nothing() -> None:
    model = nn.Sequential(Flatten(), ConstantHead(torch.zeros(2, 16), torch.tensor([1.0, 0.0])))
    balls = balls_of(model, torch.rand(2, *SHAPE))
    z, lead = pgd.descend(balls, torch.zeros(2, *SHAPE), torch.ones(2), balls.targets[:, 0], steps=3)
    assert z.abs().max() == 0
    assert lead.tolist() == [1.0, 1.0]


def test_targets_begin_with_the_class_that_binds() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0]])
    assert choose_targets(logits, torch.tensor([0]), None, 2).tolist() == [[1, 2]]
    assert choose_targets(logits, torch.tensor([0]), torch.tensor([3]), 2).tolist() == [[3, 1]]
    assert choose_targets(logits, torch.tensor([0]), torch.tensor([3]), 9).tolist() == [[3, 1, 2]]


def test_units_where_nothing_is_certified() -> None:
    radius = torch.tensor([0.0, 0.2, 0.4, float("inf")], dtype=torch.float64)
    assert units(radius).tolist() == [0.2, 0.2, 0.4, 0.2]
    assert units(torch.zeros(2, dtype=torch.float64)).tolist() == [0.1, 0.1]
