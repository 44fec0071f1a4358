"""The audit: it reaches tight certificates, breaks false ones, and believes nobody."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from torch import nn

import lipcert as lc
from lipcert.attacks.audit import ATTACKS, ITSELF, InterruptedAudit, _judge, attack_claims, audit
from lipcert.attacks.classifier import any_classifier, certified_classifier
from lipcert.attacks.distance import is_within
from lipcert.attacks.settings import AttackSettings
from lipcert.errors import ArgumentError, BrokenCertificateError, NotProvedError
from lipcert.nn import ConstantHead, Flatten
from tests.attacks.networks import (
    SHAPE,
    claims_as_if_one_lipschitz,
    digits,
    liar,
    linear_network,
    tiny_lipconvnet,
    unconstrained_network,
)

SEARCHING = [name for name in ATTACKS if name != "noise"]
OURS = ["noise", "pgd", "pgd-minimal"]
QUICK = AttackSettings(steps=15, restarts=1, targets=2)


@pytest.mark.parametrize("attack", ["pgd", "pgd-minimal", "foolbox-deepfool"])
def test_a_tight_certificate_is_reached(attack: str) -> None:
    report = audit(linear_network(), torch.rand(12, *SHAPE), attacks=[attack])
    assert len(report.ratios) == 12
    assert report.ratios[0] >= 1
    assert report.ratios[-1] <= 1.01, "an attack that comes no nearer proves nothing"


@pytest.mark.parametrize("attack", SEARCHING)
def test_a_tight_certificate_of_two_classes_is_reached_by_every_attack(attack: str) -> None:
    # With more classes an attack on the cross entropy goes between two of them, so that it comes less near.
    report = audit(linear_network(2), torch.rand(12, *SHAPE), attacks=[attack])
    assert len(report.ratios) == 12
    assert report.ratios[0] >= 1
    assert report.ratios[-1] <= 1.02


def test_the_whole_audit_reaches_a_tight_certificate() -> None:
    report = audit(linear_network(10), torch.rand(20, *SHAPE))
    assert len(report.ratios) == 20
    assert 1 <= report.ratios[0] <= report.ratios[-1] <= 1.001


@pytest.fixture(scope="module")
def unconstrained() -> nn.Module:
    torch.manual_seed(0)
    return unconstrained_network()


@pytest.mark.parametrize("attack", SEARCHING)
def test_an_unconstrained_network_is_broken(unconstrained: nn.Module, attack: str) -> None:
    images, _ = digits("test", 40)
    claims = claims_as_if_one_lipschitz(unconstrained, images)
    report = attack_claims(
        any_classifier(unconstrained), images, claims.prediction, claims.radius, attacks=[attack]
    )
    assert len(report.broken) >= 36


@pytest.mark.parametrize("excess", [1.001, 1.1])
def test_a_radius_that_is_a_little_too_large_is_broken(excess: float) -> None:
    model, images = linear_network(), torch.rand(10, *SHAPE)
    cert = lc.certify(model, images)
    claims = SimpleNamespace(prediction=cert.prediction, radius=cert.radius * excess)
    with pytest.raises(BrokenCertificateError, match="10 of 10 certificates are broken: image "):
        audit(model, images, claims, attacks=["pgd-minimal"], settings=AttackSettings(targets=4))


@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_our_certificates_hold(conv: str, head: str) -> None:
    report = audit(tiny_lipconvnet(conv, head), torch.rand(6, *SHAPE), settings=QUICK)
    summary = report.summary()
    assert summary["broken"] == 0
    assert summary["certified"] == summary["found"] == 6
    assert summary["points_inside"] > 50
    assert 1 <= summary["ratio"]["smallest"] < 2


def test_claims_of_the_surrogate_are_not_believed() -> None:
    truth, images = linear_network(), torch.rand(10, *SHAPE)
    cert = lc.certify(truth, images)
    report = attack_claims(
        liar(truth, linear_network()), images, cert.prediction, cert.radius, attacks=SEARCHING, settings=QUICK
    )
    assert not report.broken
    assert all(ratio >= 1 for ratio in report.ratios)


def test_a_counter_example_can_be_checked_by_anyone(tmp_path: Path) -> None:
    model, images = linear_network(), torch.rand(4, *SHAPE)
    cert = lc.certify(model, images)
    radius = cert.radius.clone()
    radius[2] *= 1.5
    with pytest.raises(BrokenCertificateError, match=r"1 of 4 .*image 2, .* changes from class \d to \d"):
        audit(
            model,
            images,
            SimpleNamespace(prediction=cert.prediction, radius=radius),
            attacks=["pgd"],
            out=tmp_path,
        )
    assert [path.name for path in sorted(tmp_path.glob("broken-*"))] == ["broken-2.safetensors"]
    with safe_open(tmp_path / "broken-2.safetensors", framework="pt") as file:
        image, adversarial = file.get_tensor("image"), file.get_tensor("adversarial")
        record = {key: json.loads(value) for key, value in file.metadata().items()}
    assert torch.equal(image, images[2].double())
    assert is_within(image, adversarial, record["radius"])
    with torch.no_grad():
        logits = model.double()(adversarial[None])
    assert logits.argmax().item() == record["found"] != record["prediction"] == cert.prediction[2].item()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["broken"] for line in lines] == [False, False, True, False]
    assert json.loads((tmp_path / "audit.json").read_text())["broken"] == 1


def test_a_wrong_prediction_is_broken_at_distance_zero() -> None:
    model, images = linear_network(), torch.rand(2, *SHAPE)
    cert = lc.certify(model, images)
    report = attack_claims(
        certified_classifier(lc.prove(model, SHAPE)), images, cert.runner_up, cert.radius, attacks=["noise"]
    )
    assert [(r.broken, r.distance, r.attack) for r in report.records] == [(True, 0.0, ITSELF)] * 2


def test_radius_zero_claims_nothing() -> None:
    model = nn.Sequential(Flatten(), ConstantHead(torch.ones(3, 16), None))
    images = torch.rand(3, *SHAPE)
    claims = SimpleNamespace(prediction=torch.tensor([0, 1, 2]), radius=torch.zeros(3).double())
    report = audit(model, images, claims, attacks=["pgd"], settings=QUICK)
    assert not report.broken
    assert [r.ratio for r in report.records] == [None] * 3


def test_an_infinite_claim_is_attacked_too() -> None:
    model, images = linear_network(), torch.rand(3, *SHAPE)
    claims = SimpleNamespace(
        prediction=lc.certify(model, images).prediction, radius=torch.full((3,), torch.inf)
    )
    with pytest.raises(BrokenCertificateError, match="3 of 3"):
        audit(model, images, claims, attacks=["pgd-minimal"])


def test_points_stay_in_the_box_if_asked() -> None:
    model, images = (
        linear_network(),
        torch.rand(8, *SHAPE).round(),
    )  # black and white: every step leaves the box
    cert = lc.certify(model, images)
    many = cert.radius * 50
    free, boxed = (
        attack_claims(
            certified_classifier(lc.prove(model, SHAPE)), images, cert.prediction, many,
            attacks=SEARCHING, settings=AttackSettings(steps=15, box=box),
        )
        for box in (False, True)
    )  # fmt: skip
    assert len(free.broken) == 8
    assert boxed.counter_examples
    assert all(0 <= e.adversarial.min() <= e.adversarial.max() <= 1 for e in boxed.counter_examples)
    assert any(e.adversarial.min() < 0 for e in free.counter_examples)
    for inside, outside in zip(boxed.records, free.records, strict=True):
        assert outside.distance is not None
        # Without a box the linear classifier is solved exactly, up to the resolution of the line search.
        assert inside.distance is None or inside.distance >= outside.distance * (1 - 1e-4)


def test_the_same_seed_finds_the_same_points() -> None:
    model, images = tiny_lipconvnet(), torch.rand(5, *SHAPE)
    first = audit(model, images, attacks=["pgd", "foolbox-pgd"], settings=QUICK, batch_size=2)
    state = torch.get_rng_state()
    again = audit(model, images, attacks=["pgd", "foolbox-pgd"], settings=QUICK, batch_size=2)
    assert first.records == again.records
    assert torch.equal(torch.get_rng_state(), state), "the audit drew global random numbers"


def test_the_model_is_left_as_it_is() -> None:
    model = tiny_lipconvnet().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        audit(model, torch.rand(2, *SHAPE), settings=QUICK)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_a_plain_linear_head_can_be_audited() -> None:
    model = nn.Sequential(Flatten(), nn.Linear(16, 3))
    assert not audit(model, torch.rand(3, *SHAPE), attacks=["pgd"], settings=QUICK).broken


def test_progress_counts_attacks_and_batches() -> None:
    seen: list[tuple[int, int, str]] = []
    audit(
        linear_network(), torch.rand(5, *SHAPE), attacks=["noise", "pgd"], settings=QUICK, batch_size=3,
        progress=lambda *state: seen.append(state),
    )  # fmt: skip
    assert seen == [(0, 4, "noise"), (1, 4, "pgd"), (2, 4, "noise"), (3, 4, "pgd"), (4, 4, "")]


def test_no_images() -> None:
    report = audit(tiny_lipconvnet(), torch.rand(0, *SHAPE))
    assert report.records == ()
    assert report.summary()["ratio"]["smallest"] is None


def test_foolbox_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(ArgumentError, match=r"foolbox cannot be imported .* run pip install foolbox"):
        audit(linear_network(), torch.rand(1, *SHAPE))
    assert not audit(linear_network(), torch.rand(1, *SHAPE), attacks=OURS, settings=QUICK).broken


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attacks": ["pdg"]}, "attacks: expected one of .*, got 'pdg'; did you mean 'pgd'?"),
        ({"attacks": []}, "attacks: expected a list of names, got "),
        ({"attacks": "pgd"}, "attacks: expected a list of names, got 'pgd'"),
        ({"batch_size": 0}, "batch_size: expected a positive integer, got 0"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        audit(linear_network(), torch.rand(1, *SHAPE), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: expected a positive integer, got 0"),
        ({"restarts": 1.5}, "restarts: expected a positive integer, got 1.5"),
        ({"targets": True}, "targets: expected a positive integer, got True"),
        ({"inside": 1.0}, "inside: expected a share of the radius between 0 and 1, got 1.0"),
        ({"seed": -1}, "seed: expected an integer of at least 0, got -1"),
    ],
)
def test_bad_settings(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AttackSettings(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prediction", "radius", "message"),
    [
        (
            torch.zeros(3).long(),
            torch.ones(2),
            r"prediction: expected one claim for each of 2 .* got shape \(3,\)",
        ),
        (
            torch.zeros(2).long(),
            torch.ones(1),
            r"radius: expected one claim for each of 2 images, got shape \(1,\)",
        ),
        (torch.zeros(2).long(), torch.tensor([1.0, -1.0]), "radius: expected numbers of at least 0"),
        (torch.zeros(2).long(), torch.tensor([1.0, torch.nan]), "radius: expected numbers of at least 0"),
    ],
)
def test_bad_claims(prediction: torch.Tensor, radius: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        audit(linear_network(), torch.rand(2, *SHAPE), SimpleNamespace(prediction=prediction, radius=radius))


def test_bad_targets() -> None:
    with pytest.raises(ArgumentError, match="model: expected at least two classes, got one"):
        audit(linear_network(1), torch.rand(2, *SHAPE), attacks=["pgd"])
    with pytest.raises(ArgumentError, match="images: expected raw pixels in"):
        audit(linear_network(), torch.rand(2, *SHAPE) + 1, attacks=["pgd"])
    with pytest.raises(NotProvedError, match="GroupNorm has no proved bound"):
        audit(nn.Sequential(nn.GroupNorm(1, 1), *linear_network()), torch.rand(2, *SHAPE), attacks=["pgd"])
    with pytest.raises(ArgumentError, match=r"module: expected a torch\.nn\.Module, got function"):
        any_classifier(audit)  # type: ignore[arg-type]


def test_an_interruption_keeps_what_was_done(tmp_path: Path) -> None:
    def stop(done: int, total: int, attack: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    images = torch.rand(6, *SHAPE)
    with pytest.raises(InterruptedAudit, match="interrupted after 4 images"):
        audit(
            linear_network(),
            images,
            attacks=["noise"],
            settings=QUICK,
            batch_size=2,
            out=tmp_path,
            progress=stop,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["interrupted"]  # no audit.json that looks whole
    summary = json.loads((tmp_path / "interrupted" / "audit.json").read_text())
    assert (summary["images"], summary["broken"], summary["interrupted"]) == (4, 0, True)
    assert len((tmp_path / "interrupted" / "audit.jsonl").read_text().splitlines()) >= 4


@pytest.mark.parametrize(("distance", "broken"), [(0.25, True), (math.nextafter(0.25, 1), False)])
def test_the_edge_of_the_ball_belongs_to_it(distance: float, broken: bool) -> None:
    at = torch.tensor([distance], dtype=torch.float64)
    balls = SimpleNamespace(
        radius=torch.tensor([0.25], dtype=torch.float64),
        prediction=torch.tensor([0]),
        images=torch.zeros(1, 1, 1, 1, dtype=torch.float64),
    )
    nearest = SimpleNamespace(
        balls=balls, distance=at, found=torch.tensor([1]), attack=["pgd"], points=at.view(1, 1, 1, 1)
    )
    assert _judge(nearest, 0, 0).broken is broken


def test_what_was_broken_before_ctrl_c_is_told() -> None:
    model, images = linear_network(), torch.rand(2, *SHAPE)
    true = lc.certify(model, images)
    false = SimpleNamespace(prediction=true.prediction, radius=true.radius * 100)

    def stop(done: int, total: int, attack: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(BrokenCertificateError):
        audit(model, images, false, attacks=["pgd"], batch_size=1, progress=stop)


def test_the_summary_names_the_network() -> None:
    network, images = lc.prove(tiny_lipconvnet()), torch.rand(3, *SHAPE)
    assert audit(network, images, attacks=["noise"]).about["network_sha256"] == network.hash
