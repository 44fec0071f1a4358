"""The losses, against sums done by hand."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lipcert.certify.certificates import certificates_from
from lipcert.errors import ArgumentError
from lipcert.nn import Flatten, Head, Normalize, NormalizedLinear, OrthogonalHead
from lipcert.training.losses import AnnealingLoss, CertificateLoss, EMMALoss

LOGITS = torch.tensor([[3.0, 1.0], [0.0, 4.0]])
LABELS = torch.tensor([0, 0])  # right by 2, wrong by 4
CROSS_ENTROPY = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(4))) / 2


def model(head: Head) -> nn.Sequential:
    return nn.Sequential(Flatten(), head)


def test_orthogonal_head_by_hand() -> None:
    # Only the correct image is rewarded, with its margin 2 / sqrt(2), averaged over both.
    loss = CertificateLoss(gamma=0.5)(model(OrthogonalHead(4, 2)), LOGITS, LABELS)
    assert loss.item() == pytest.approx(CROSS_ENTROPY - 0.5 * (2 / math.sqrt(2)) / 2, rel=1e-6)


def test_the_offset_acts_on_the_cross_entropy_alone() -> None:
    loss = CertificateLoss(gamma=0.5, offset=2.0)(model(OrthogonalHead(4, 2)), LOGITS, LABELS)
    # 2 less for the true class: the first image ties, the second is wrong by 6; the certificate stays.
    shifted = (math.log(2) + math.log(1 + math.exp(6))) / 2
    assert loss.item() == pytest.approx(shifted - 0.5 * (2 / math.sqrt(2)) / 2, rel=1e-6)


def test_lln_head_by_hand() -> None:
    head = NormalizedLinear(2, 2)
    head.load_state_dict({"weight": torch.tensor([[5.0, 0.0], [-0.1, 0.0]]), "bias": torch.zeros(2)})
    loss = CertificateLoss(gamma=0.5)(model(head), LOGITS, LABELS)
    assert loss.item() == pytest.approx(CROSS_ENTROPY - 0.5 * (2 / 2) / 2, rel=1e-6)


def test_the_certificate_is_in_pixels_with_a_normalisation() -> None:
    # A pixel moves the normalised image by up to 1 / 0.25, so the radius is a quarter of the margin's.
    network = nn.Sequential(Normalize((0.5, 0.4), (0.25, 0.5)), Flatten(), OrthogonalHead(2, 2))
    loss = CertificateLoss(gamma=0.5)(network, LOGITS, LABELS)
    assert loss.item() == pytest.approx(CROSS_ENTROPY - 0.5 * 0.25 * (2 / math.sqrt(2)) / 2, rel=1e-6)
    steepness = torch.full((2, 2), math.sqrt(2) / 0.25)
    certified = certificates_from(LOGITS, steepness, torch.zeros(2), 1 / 0.25)
    assert loss.item() == pytest.approx(CROSS_ENTROPY - 0.5 * certified.radius[0].item() / 2, rel=1e-6)


def test_gamma_zero_is_cross_entropy_for_any_model() -> None:
    loss = CertificateLoss(0)(nn.Identity(), LOGITS, LABELS)
    assert torch.equal(loss, nn.functional.cross_entropy(LOGITS, LABELS))


def test_the_certificate_pulls_margins_apart_and_moves_the_rows() -> None:
    head = NormalizedLinear(4, 3)
    network, x, labels = model(head), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    CertificateLoss(1.0)(network, network(x), labels).backward()
    with_reward = head.weight.grad.clone()  # type: ignore[union-attr]
    network.zero_grad()
    CertificateLoss(0.0)(network, network(x), labels).backward()
    assert not torch.allclose(with_reward, head.weight.grad)  # type: ignore[arg-type]


def test_wrong_images_feel_cross_entropy_alone() -> None:
    logits = torch.tensor([[0.0, 4.0]], requires_grad=True)
    CertificateLoss(10.0)(model(OrthogonalHead(4, 2)), logits, torch.tensor([0])).backward()
    reference = torch.tensor([[0.0, 4.0]], requires_grad=True)
    nn.functional.cross_entropy(reference, torch.tensor([0])).backward()
    torch.testing.assert_close(logits.grad, reference.grad)


@pytest.mark.parametrize("head", [NormalizedLinear(4, 1), OrthogonalHead(4, 1)], ids=["lln", "orthogonal"])
def test_one_class_gives_a_finite_loss(head: Head) -> None:
    network = model(head)
    loss = CertificateLoss(0.5)(network, network(torch.randn(3, 4)), torch.zeros(3).long())
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_equal_rows_give_finite_gradients() -> None:
    head = NormalizedLinear(2, 2)
    nn.init.ones_(head.weight)
    network = model(head)
    loss = CertificateLoss(0.5)(network, network(torch.randn(3, 2)), torch.tensor([0, 1, 0]))
    loss.backward()
    assert loss.isfinite()
    assert head.weight.grad is not None
    assert head.weight.grad.isfinite().all()


def test_a_diverged_network_is_not_hidden() -> None:
    loss = CertificateLoss(0.5)(model(OrthogonalHead(4, 2)), LOGITS * math.nan, LABELS)
    assert loss.isnan()


def test_half_precision_logits_give_a_single_precision_loss() -> None:
    network = model(NormalizedLinear(4, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network(torch.randn(5, 4))
        loss = CertificateLoss(0.5)(network, logits, torch.tensor([0, 1, 2, 0, 1]))
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    plain = CertificateLoss(0.5)(network, logits.float(), torch.tensor([0, 1, 2, 0, 1]))
    torch.testing.assert_close(loss, plain)


def test_wrapped_models() -> None:
    network = model(OrthogonalHead(4, 2))
    plain = CertificateLoss(0.5)(network, LOGITS, LABELS)
    assert torch.equal(CertificateLoss(0.5)(nn.DataParallel(network), LOGITS, LABELS), plain)


def test_fabric_wrapped_models() -> None:
    from lightning_fabric import Fabric

    network = model(OrthogonalHead(4, 2))
    wrapped = Fabric(accelerator="cpu", devices=1).setup(network)
    torch.testing.assert_close(
        CertificateLoss(0.5)(wrapped, LOGITS, LABELS), CertificateLoss(0.5)(network, LOGITS, LABELS)
    )


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ArgumentError, match="ends in a head"):
        CertificateLoss(0.5)(nn.Sequential(nn.Linear(4, 2)), LOGITS, LABELS)


def test_repr() -> None:
    assert repr(CertificateLoss(0.5)) == "CertificateLoss(gamma=0.5)"


THREE = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.25, 3.0], [30.0, -30.0, 0.0]], dtype=torch.float64)
TRUE = torch.tensor([0, 1, 0])


def lln_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Normalize(0.5, 0.25), NormalizedLinear(4, 3)).double()


@pytest.mark.parametrize(("offset", "temperature"), [(0.0, 1.0), (0.4, 0.25), (1.5, 3.0)])
def test_offset_and_temperature_as_written(offset: float, temperature: float) -> None:
    expected = 0.0
    for row, label in zip(THREE.tolist(), TRUE.tolist(), strict=True):
        shifted = [(z - offset * (i == label)) / temperature for i, z in enumerate(row)]
        top = max(shifted)
        total = sum(math.exp(z - top) for z in shifted)
        expected += temperature * (top + math.log(total) - shifted[label]) / len(THREE)
    for loss in (
        CertificateLoss(0, offset=offset, temperature=temperature),
        AnnealingLoss(0, offset=offset, temperature=temperature),
        EMMALoss(0, offset=offset, temperature=temperature),
    ):
        assert loss(lln_model(), THREE, TRUE).item() == pytest.approx(expected, rel=1e-12)


def test_annealing_lets_go_of_certain_images_and_its_gradient_is_finite() -> None:
    logits = THREE.float().requires_grad_()
    loss = AnnealingLoss(5.0)(nn.Identity(), logits, TRUE)
    p = THREE.softmax(dim=1).gather(1, TRUE[:, None])[:, 0]
    assert loss.item() == pytest.approx(float((-((1 - p) ** 5) * p.log()).mean()), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    assert gradient[2].abs().max() < 1e-12 < gradient[1].abs().max()


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_emma_raises_every_rival_by_what_it_could_gain(progress: float) -> None:
    model, epsilon = lln_model(), 0.3
    logits = THREE.clone().requires_grad_()
    distances = model[1].pair_distances().detach()  # type: ignore[operator, union-attr]
    radius = (0.1 + 0.9 * progress) * epsilon / 0.25
    raised = THREE.clone()
    for n, label in enumerate(TRUE.tolist()):
        for i in range(3):
            if i != label:
                certificate = float((THREE[n, label] - THREE[n, i]) / distances[label, i])
                raised[n, i] += min(max(certificate, 0), radius) * float(distances[label, i])
    expected = F.cross_entropy(raised, TRUE)
    loss = EMMALoss(epsilon)(model, logits, TRUE, progress)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    # What a rival is raised by carries no gradient: that of the logits is softmax minus one-hot.
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, (raised.softmax(1) - F.one_hot(TRUE, 3)) / 3)


@pytest.mark.parametrize("name", ["offset", "temperature", "beta", "epsilon", "gamma"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, True, "1"])
def test_bad_numbers_are_refused_by_name(name: str, value: Any) -> None:
    arguments = {"gamma": 0.5} | {name: value}
    kind = {"beta": AnnealingLoss, "epsilon": EMMALoss}.get(name, CertificateLoss)
    if kind is not CertificateLoss:
        del arguments["gamma"]
    with pytest.raises(ArgumentError, match=f"{name}: expected a finite number"):
        kind(**arguments)
