"""The audit: runs every attack on every certificate, and checks each result again.

An attack searches with a float32 surrogate and returns candidates. Each candidate is classified again by the
certified classifier, and its distance is computed from the float64 images. A certificate is broken if and
only if that classifier predicts another class within the radius, decided in rational arithmetic.
"""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lipcert.attacks import foolbox_attacks, pgd
from lipcert.attacks.balls import Balls, choose_targets, units
from lipcert.attacks.classifier import Classifier, certified_classifier
from lipcert.attacks.distance import is_within
from lipcert.attacks.nearest import Nearest
from lipcert.attacks.report import AuditRecord, AuditReport, CounterExample, counter_example
from lipcert.attacks.settings import AttackSettings
from lipcert.certify.curve import Certified
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import proved_for
from lipcert.errors import ArgumentError, check_positive, choose

if TYPE_CHECKING:
    from lipcert.certify.images import Images

Progress = Callable[[int, int, str], None]
"""progress(done, total, attack): called before each attack on a batch, and once more at the end."""


@dataclass(frozen=True)
class Attack:
    """How to find candidates, and whether to search along the rays through them.

    Rays in random directions rarely reach the boundary in many dimensions, so only their ends are tried.
    """

    run: Callable[[Balls, AttackSettings, torch.Generator], Iterator[Tensor]]
    along_rays: bool = True


ATTACKS = {
    "noise": Attack(pgd.noise, along_rays=False),
    "pgd": Attack(pgd.inside),
    "pgd-minimal": Attack(pgd.minimal),
    "foolbox-deepfool": Attack(foolbox_attacks.deepfool),
    "foolbox-ddn": Attack(foolbox_attacks.ddn),
    "foolbox-cw": Attack(foolbox_attacks.carlini_wagner),
    "foolbox-pgd": Attack(foolbox_attacks.pgd),
}
"""Every attack by name. At 0.999 of the radius: noise, pgd, foolbox-pgd; the others minimise the norm."""

ITSELF = "image itself"
INTERRUPTED = "interrupted"


class InterruptedAudit(KeyboardInterrupt):
    """Ctrl-C during an audit; `report` has the images that were done."""

    def __init__(self, report: AuditReport) -> None:
        super().__init__(f"interrupted after {len(report.records)} images")
        self.report = report


def audit(
    model: nn.Module | ProvedNetwork,
    images: "Images",
    certificates: Certified | None = None,
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    settings: AttackSettings | None = None,
    batch_size: int = 128,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack the certificates of a model and fail if one breaks.

    Args:
        model: a proved network, or a model that can be proved.
        images: as for `certify`, with pixels in [0, 1].
        certificates: the claims, of the same images; by default `certify` makes them.
        attacks: names from `ATTACKS`; those of foolbox need the extra `audit`.
        settings: effort of the attacks.
        batch_size: images that are attacked at once.
        out: folder for audit.jsonl, audit.json and counter-examples; written also if a certificate breaks.
            After Ctrl-C its subfolder "interrupted" has the images that were done.
        progress: called as progress(done, total, attack).

    Raises:
        ArgumentError: bad images, unknown attacks, claims about other images, or foolbox is missing.
        NotProvedError: as `certify`.
        BrokenCertificateError: an adversarial point within a certified radius.
        InterruptedAudit: Ctrl-C, after the first batch.

    >>> import lipcert as lc
    >>> from lipcert.nn import ConstantHead, Flatten
    >>> model = nn.Sequential(lc.Normalize(0.5, 0.5), Flatten(), ConstantHead(torch.eye(2), None))
    >>> report = audit(model, torch.tensor([0.9, 0.1]).view(1, 1, 1, 2), attacks=["pgd"])
    >>> len(report.broken), round(report.records[0].ratio, 3)
    (0, 1.0)
    """
    check_plan(attacks, batch_size)
    network = proved_for(model, images)
    batch = network.checked(images)
    claims = network.certify(batch) if certificates is None else certificates
    classifier = certified_classifier(network)
    try:
        report = attack_claims(
            classifier,
            batch,
            claims.prediction,
            claims.radius,
            runner_up=getattr(claims, "runner_up", None),
            attacks=attacks,
            settings=settings,
            batch_size=batch_size,
            about={"network_sha256": network.hash},
            progress=progress,
        )
    except InterruptedAudit as interruption:
        if out is not None:
            interruption.report.write(Path(out) / INTERRUPTED)  # keeps an earlier audit of all images
        interruption.report.check()
        raise
    if out is not None:
        report.write(Path(out))
    report.check()
    return report


def attack_claims(
    classifier: Classifier,
    images: Tensor,
    prediction: Tensor,
    radius: Tensor,
    *,
    runner_up: Tensor | None = None,
    attacks: Sequence[str] = tuple(ATTACKS),
    settings: AttackSettings | None = None,
    batch_size: int = 128,
    about: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack claims that predictions do not change within radii; returns a report, also if one is broken.

    Args:
        classifier: from `certified_classifier`, or `any_classifier` for claims that lipcert did not make.
        images: (N, C, H, W), floating point.
        prediction: (N,), the claimed classes.
        radius: (N,), the claimed radii.
        runner_up: (N,), classes to aim at first.
        attacks: names from `ATTACKS`.
        settings: effort of the attacks.
        batch_size: images that are attacked at once.
        about: further entries of the summary.
        progress: called as progress(done, total, attack).
    """
    check_plan(attacks, batch_size)
    _check_claims(images, prediction, radius)
    settings = settings or AttackSettings()
    total = len(attacks) * -(-len(images) // batch_size)
    scale, start_time = units(radius.double()), time.perf_counter()
    records: list[AuditRecord] = []
    examples: list[CounterExample] = []
    done = tried = inside = 0

    def report(**more: object) -> AuditReport:
        described = {**(about or {}), "attacks": list(attacks), "settings": asdict(settings), **_machine()}
        described |= more
        spent = time.perf_counter() - start_time
        return AuditReport(tuple(records), tuple(examples), described, tried, inside, spent)

    try:
        for start in range(0, len(images), batch_size):
            span = slice(start, start + batch_size)
            hints = None if runner_up is None else runner_up[span]
            balls = _balls(
                classifier, images[span], prediction[span], radius[span], scale[span], hints, settings
            )
            nearest = Nearest(balls)
            nearest.offer(torch.zeros_like(balls.images), ITSELF)
            for name in attacks:
                if progress is not None:
                    progress(done, total, name)
                for z in ATTACKS[name].run(balls, settings, _generator(settings.seed, name, start)):
                    if ATTACKS[name].along_rays:
                        nearest.search(z, name)
                    else:
                        nearest.offer(z, name)
                done += 1
            nearest.polish()
            for row in range(len(balls)):
                record = _judge(nearest, row, start + row)
                records.append(record)
                if record.broken:
                    examples.append(counter_example(record, balls.images[row], nearest.points[row]))
            tried, inside = tried + nearest.tried, inside + nearest.inside
    except KeyboardInterrupt as interruption:
        if not records:
            raise
        raise InterruptedAudit(report(interrupted=True)) from interruption
    if progress is not None:
        progress(total, total, "")
    return report()


def _balls(
    classifier: Classifier,
    images: Tensor,
    prediction: Tensor,
    radius: Tensor,
    scale: Tensor,
    runner_up: Tensor | None,
    settings: AttackSettings,
) -> Balls:
    device = classifier.device
    images, radius, scale = (t.detach().to(device, torch.float64) for t in (images, radius, scale))
    prediction = prediction.to(device)
    logits = classifier.logits(images)
    if logits.shape[1] < 2:
        raise ArgumentError("model: expected at least two classes, got one, whose prediction cannot change")
    hints = None if runner_up is None else runner_up.to(device)
    targets = choose_targets(logits, prediction, hints, settings.targets)
    return Balls(classifier, images, prediction, radius, scale, targets, settings.box)


def _judge(nearest: Nearest, row: int, index: int) -> AuditRecord:
    radius, distance = float(nearest.balls.radius[row]), float(nearest.distance[row])
    found = distance != float("inf")
    # The rational comparison takes a while, so it is made only where float64 cannot exclude a break.
    near = found and radius > 0 and distance <= radius * (1 + 1e-9)
    return AuditRecord(
        index=index,
        prediction=int(nearest.balls.prediction[row]),
        radius=radius,
        distance=distance if found else None,
        ratio=distance / radius if found and 0 < radius < float("inf") else None,
        found=int(nearest.found[row]) if found else None,
        attack=nearest.attack[row] if found else None,
        broken=near and is_within(nearest.balls.images[row], nearest.points[row], radius),
    )


def _generator(seed: int, attack: str, start: int) -> torch.Generator:
    """Random numbers of one attack on one batch, independent of the other attacks."""
    digest = hashlib.sha256(f"{seed} {attack} {start}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _machine() -> dict[str, Any]:
    versions = {"torch": str(torch.__version__)}
    for package in ("lipcert", "foolbox"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {"versions": versions, "machine": platform.platform()}


def check_plan(attacks: Sequence[str], batch_size: int) -> None:
    """Raise for unknown attacks, a missing foolbox, or a batch size below 1, before any work."""
    if isinstance(attacks, str) or not attacks:
        raise ArgumentError(f"attacks: expected a list of names, got {attacks!r}")
    for name in attacks:
        choose("attacks", name, ATTACKS)
    if any(name.startswith("foolbox-") for name in attacks):
        foolbox_attacks.import_foolbox()
    check_positive(batch_size=batch_size)


def _check_claims(images: Tensor, prediction: Tensor, radius: Tensor) -> None:
    if images.dim() != 4 or not images.is_floating_point():
        raise ArgumentError(
            f"images: expected floating point (N, C, H, W), got {images.dtype} of shape {tuple(images.shape)}"
        )
    for name, claim in (("prediction", prediction), ("radius", radius)):
        if claim.shape != (len(images),):
            raise ArgumentError(
                f"{name}: expected one claim for each of {len(images)} images, got shape {tuple(claim.shape)}"
            )
    if not bool((radius >= 0).all()):
        raise ArgumentError("radius: expected numbers of at least 0, got a negative one or NaN")
