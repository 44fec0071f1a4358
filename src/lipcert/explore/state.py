"""Certificate, attack and the line between them for one image; knows nothing of the page."""

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.attacks import pgd
from lipcert.attacks.balls import Balls, choose_targets, units
from lipcert.attacks.classifier import Classifier, certified_classifier
from lipcert.attacks.distance import l2_distances
from lipcert.attacks.nearest import Nearest
from lipcert.attacks.settings import AttackSettings
from lipcert.certify.certificates import Certificates, certificates_from
from lipcert.certify.network import ProvedNetwork
from lipcert.data import to_float
from lipcert.explore.boundary import attack_quickly

SETTINGS = AttackSettings(steps=20, targets=3, box=True)
"""Boxed, so that attacks are valid pictures; the steps are those of the fallback attack."""
FLIP_STEP, LAST_STEP = 40, 60
"""Steps of the way from the image to where the label flips, and half as far again beyond it."""


@dataclass(frozen=True)
class Way:
    """Classes and margins on the straight line from an image through an adversarial one.

    Step k is the image x + (k / FLIP_STEP) (adversary - x), clipped to [0, 1]: step 0 is the image, step
    FLIP_STEP the adversary.

    Attributes:
        distance: (S,), float64, l2 distance of each step to the image; never falls.
        lead: (S,), logit of the prediction minus the largest other: negative where the label has flipped.
            From a float32 copy, for the plot only.
        label: (S,), the class at each step, of the same copy.
    """

    distance: Tensor
    lead: Tensor
    label: Tensor


@dataclass(frozen=True)
class Attack:
    """The nearest picture of another class that the attack found.

    Attributes:
        image: (C, H, W), float64, pixels in [0, 1].
        label: its class by the certified classifier.
        distance: to the original in pixel units, in float64.
        way: from the original through it.
    """

    image: Tensor
    label: int
    distance: float
    way: Way


@dataclass(frozen=True)
class Finding:
    """Everything that the page shows about one image.

    Attributes:
        image: (C, H, W), uint8, what was examined.
        prediction: the class by the certified float64 classifier.
        runner_up: the class that limits the radius; -1 if there is one class.
        radius: certified, pixel units; 0 where nothing is.
        attack: None if no picture of another class was found.
    """

    image: Tensor
    prediction: int
    runner_up: int
    radius: float
    attack: Attack | None


class Explorer:
    """Examines images one at a time; what depends on the network alone is prepared once.

    Args:
        network: proved.
        settings: of the fallback attack.
    """

    def __init__(self, network: ProvedNetwork, settings: AttackSettings = SETTINGS) -> None:
        self.network, self.settings = network, settings
        self.classifier: Classifier = certified_classifier(network)
        # Requests arrive in threads, and each would use all cores.
        self._lock = threading.Lock()

    def examine(self, image: Tensor) -> Finding:
        """Certify one image, attack it, and look along the line between.

        Args:
            image: (C, H, W), uint8.

        Raises:
            ArgumentError: another shape or type than the network takes.
        """
        with self._lock:
            pixels = to_float(image)[None]
            certificates = self.network.certify(pixels)
            return Finding(
                image=image,
                prediction=int(certificates.prediction),
                runner_up=int(certificates.runner_up),
                radius=float(certificates.radius),
                attack=self._attack(pixels.double(), certificates),
            )

    @torch.no_grad()
    def glance(self, images: Tensor, batch_size: int = 256) -> Certificates:
        """Approximate certificates of a float32 copy, without rounding errors; only to sort images.

        Args:
            images: (N, C, H, W), uint8.
            batch_size: images that are in memory at once.
        """
        with self._lock:
            device = self.classifier.device
            starts = range(0, len(images), batch_size)
            batches = (to_float(images[k : k + batch_size]).to(device) for k in starts)
            logits = torch.cat([self.classifier.surrogate(batch) for batch in batches])
            nothing = torch.zeros(len(logits), dtype=torch.float64)
            return certificates_from(
                logits, self.network.pair_bounds, nothing, self.network.lipschitz, proved=False
            )

    def _attack(self, image: Tensor, certificates: Certificates) -> Attack | None:
        if len(self.network.classes) < 2:
            return None
        balls = self._balls(image.to(self.classifier.device), certificates)
        nearest = attack_quickly(balls)
        if not bool(nearest.distance.isfinite().any()):
            nearest = self._attack_patiently(balls)
        best = int(nearest.distance.argmin())
        distance = float(nearest.distance[best])
        # At distance 0 the image is on the boundary itself, and there is no line to look along.
        if not 0 < distance < torch.inf:
            return None
        adversary, label = nearest.points[best], int(nearest.found[best])
        return Attack(adversary.cpu(), label, distance, self._way(balls, adversary, label))

    def _attack_patiently(self, balls: Balls) -> Nearest:
        nearest = Nearest(balls)
        for z in pgd.minimal(balls, self.settings, torch.Generator().manual_seed(self.settings.seed)):
            nearest.search(z, "pgd-minimal")
        return nearest

    def _balls(self, image: Tensor, certificates: Certificates) -> Balls:
        """One ball per target around the same image: a batch takes hardly longer than a single descent."""
        device = image.device
        prediction, runner_up = certificates.prediction.to(device), certificates.runner_up.to(device)
        with torch.no_grad():
            logits = self.classifier.surrogate(image.float())
        targets = choose_targets(logits, prediction, runner_up, self.settings.targets).T
        count = len(targets)
        radius = certificates.radius.to(device)
        return Balls(
            classifier=self.classifier,
            images=image.expand(count, -1, -1, -1),
            prediction=prediction.expand(count),
            radius=radius.expand(count),
            scale=units(radius).expand(count),
            targets=targets,
            box=self.settings.box,
        )

    @torch.no_grad()
    def _way(self, balls: Balls, adversary: Tensor, label: int) -> Way:
        image, prediction = balls.images[0], balls.prediction[0]
        share = torch.arange(LAST_STEP + 1, dtype=torch.float64, device=image.device) / FLIP_STEP
        points = (image + share.view(-1, 1, 1, 1) * (adversary - image)).clamp(0, 1)
        logits = self.classifier.surrogate(points.float())
        labels = logits.argmax(dim=1)
        # Known from the exact classifier; on the boundary the copy may disagree.
        labels[0], labels[FLIP_STEP] = prediction, label
        others = logits.index_fill(1, prediction, -torch.inf).max(dim=1).values
        lead = logits[:, int(prediction)] - others
        distance = l2_distances(image.expand_as(points), points)
        return Way(distance.cpu(), lead.double().cpu(), labels.cpu())
