"""One image -> Finding: the certificate is that of `certify`, the attack true, and the way leads there."""

import math

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.attacks.classifier import certified_classifier
from lipcert.data import Dataset, to_float
from lipcert.errors import ArgumentError
from lipcert.explore.state import FLIP_STEP, LAST_STEP, Attack, Explorer, Finding
from lipcert.models.lipconvnet import LipConvnet
from lipcert.nn import ConstantHead, Flatten, Normalize

INDICES = (0, 7, 123)
# Leads of the float32 copy: logits of size 10 after some ten layers.
NOISE = 10 * 10 * torch.finfo(torch.float32).eps


@pytest.fixture(scope="module", params=INDICES)
def finding(request: pytest.FixtureRequest, explorer: Explorer, digits: Dataset) -> Finding:
    return explorer.examine(digits.images[request.param])


def attack_of(finding: Finding) -> Attack:
    assert finding.attack is not None
    return finding.attack


def linear_explorer(rows: Tensor, bias: Tensor | None = None) -> Explorer:
    """Of a linear classifier: Proposition 1 is an equality, so the radius is the distance."""
    model = nn.Sequential(Normalize(0.5, 0.25), Flatten(), ConstantHead(rows, bias))
    return Explorer(lc.prove(model, (1, 4, 4)))


def test_certificate_is_that_of_certify(finding: Finding, network: LipConvnet) -> None:
    certificates = lc.certify(network, to_float(finding.image)[None])
    assert finding.prediction == int(certificates.prediction)
    assert finding.runner_up == int(certificates.runner_up)
    assert finding.radius == float(certificates.radius) > 0


def test_attack_is_a_picture_of_another_class_outside_the_certificate(
    finding: Finding, network: LipConvnet
) -> None:
    attack = attack_of(finding)
    assert 0 <= float(attack.image.min()) <= float(attack.image.max()) <= 1
    pairs = zip(
        attack.image.flatten().tolist(), to_float(finding.image).double().flatten().tolist(), strict=True
    )
    by_hand = math.sqrt(math.fsum((a - b) ** 2 for a, b in pairs))
    assert attack.distance == pytest.approx(by_hand, rel=1e-14)
    assert attack.distance > finding.radius
    exact = certified_classifier(lc.prove(network)).logits(attack.image[None])
    assert int(exact.argmax()) == attack.label != finding.prediction


def test_way_begins_at_the_image_and_flips_at_the_attack(finding: Finding) -> None:
    attack = attack_of(finding)
    way = attack.way
    assert len(way.distance) == len(way.lead) == len(way.label) == LAST_STEP + 1
    assert float(way.distance[0]) == 0
    assert float(way.distance[FLIP_STEP]) == pytest.approx(attack.distance, rel=1e-12)
    assert bool((way.distance.diff() >= 0).all())
    assert int(way.label[0]) == finding.prediction
    assert int(way.label[FLIP_STEP]) == attack.label
    # The search ends within 1.6 / 16^4 of the boundary; the margin may be steeper there than on the whole.
    assert abs(float(way.lead[FLIP_STEP])) < 1e-3 * float(way.lead[0])


def test_the_exact_classifier_has_the_last_word_where_the_label_flips(
    explorer: Explorer, digits: Dataset
) -> None:
    """On the boundary the float32 copy may be wrong; here it certainly is, since the label is made up."""
    image = to_float(digits.images[0])[None].double()
    balls = explorer._balls(image, explorer.network.certify(image))
    adversary = attack_of(explorer.examine(digits.images[0])).image
    made_up = next(
        k for k in range(10) if k not in explorer.classifier.logits(adversary[None]).topk(2).indices
    )
    labels = explorer._way(balls, adversary, made_up).label
    assert (labels == made_up).nonzero().flatten().tolist() == [FLIP_STEP]


def test_margin_stays_above_its_floor_within_the_certificate(finding: Finding) -> None:
    way = attack_of(finding).way
    inside = way.distance <= finding.radius
    assert 1 < int(inside.sum()) < FLIP_STEP
    assert bool((way.label[inside] == finding.prediction).all())
    floor = way.lead[0] * (1 - way.distance[inside] / finding.radius)
    assert bool((way.lead[inside] >= floor - NOISE).all())


def test_linear_classifier_is_attacked_at_its_radius() -> None:
    # Grey, and the boundary is nearer than black and white are, so no pixel is clipped.
    rows = torch.randn(4, 16)
    image = torch.full((1, 4, 4), 128, dtype=torch.uint8)
    finding = linear_explorer(rows, torch.tensor([1.0, 0.0, 0.2, 0.0])).examine(image)
    attack = attack_of(finding)
    assert attack.label == finding.runner_up
    # The first step is the solution; what is left is the grid, 1.6 / 16^4, and one push by 1e-5 beyond it.
    assert finding.radius < attack.distance < finding.radius * (1 + 5e-5)


def test_the_box_binds() -> None:
    """At a white pixel the only way out is downwards; here upwards is the way to the other class."""
    rows = torch.zeros(2, 16)
    rows[0, 0], rows[1, 1] = -1, 1
    image = torch.full((1, 4, 4), 128, dtype=torch.uint8)
    image[0, 0, 1] = 255
    finding = linear_explorer(rows, torch.tensor([1.4, -1.5])).examine(image)
    attack = attack_of(finding)
    assert finding.prediction == 0
    assert float(attack.image.max()) <= 1
    # Without the box both pixels would move by the same; now the first has to go all the way.
    assert attack.distance > finding.radius * 1.3


def test_a_prediction_that_cannot_change_has_no_attack() -> None:
    finding = linear_explorer(torch.ones(2, 16), torch.tensor([1.0, 0.0])).examine(
        torch.full((1, 4, 4), 128, dtype=torch.uint8)
    )
    assert finding.prediction == 0
    assert finding.attack is None


def test_the_same_image_gives_the_same_finding(explorer: Explorer, digits: Dataset) -> None:
    first, second = (attack_of(explorer.examine(digits.images[3])) for _ in range(2))
    assert first.distance == second.distance
    assert torch.equal(first.image, second.image)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (torch.zeros(1, 9, 9, dtype=torch.uint8), "expected images of shape"),
        (torch.zeros(1, 8, 8), "expected uint8"),
    ],
)
def test_images_that_do_not_fit(explorer: Explorer, image: Tensor, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        explorer.examine(image)


def test_a_glance_is_nearly_the_certificate(explorer: Explorer, network: LipConvnet, digits: Dataset) -> None:
    images = digits.images[:50]
    glance, proved = explorer.glance(images, batch_size=16), lc.certify(network, to_float(images))
    assert torch.equal(glance.prediction, proved.prediction)
    torch.testing.assert_close(glance.radius, proved.radius, rtol=0, atol=NOISE)
