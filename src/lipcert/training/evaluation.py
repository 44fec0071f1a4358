"""Accuracy of a model: a quick estimate on held-out images for selection, the proved one on test images."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from lipcert.certify.certificates import Certificates
from lipcert.certify.curve import RADII, certified_accuracy
from lipcert.certify.network import ProvedNetwork
from lipcert.data.batches import Batches
from lipcert.data.dataset import Dataset
from lipcert.models.network import Network
from lipcert.schema import build
from lipcert.training.devices import sum_over_processes

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ESTIMATE = "held-out, estimate"
SELECTED_BY = (
    "the last model whose mean of standard and certified accuracies is within a standard error of the highest"
)
RAW, AVERAGED = "raw", "average"
"""The two models of a run that keeps an average: the weights themselves, and their moving average."""
MILLIONTHS, LARGEST = 1_000_000, 1_000_000
"""Radii are added as whole millionths, each of at most a million: a sum of integers is the same in any order
and in every process."""


def selection_score(accuracy: Mapping[str, Any]) -> float:
    """Score by which the best model is selected: the mean of standard and certified accuracies.

    One radius alone is a noisy judge: on 5,000 images a share is off by 0.7 points, as much as models late in
    a run differ by.

    >>> selection_score({"standard": 0.75, "certified": {"36/255": 0.5, "72/255": 0.25}})
    0.5
    """
    shares = [accuracy["standard"], *accuracy["certified"].values()]
    return float(sum(shares) / len(shares))


def selection_key(accuracy: Mapping[str, Any]) -> tuple[float, float]:
    """Sort key of the models of one step: the selection score, then the mean certified radius.

    Scores are rounded, because equal means of different shares can differ in the last bit.

    >>> easy = {"standard": 1.0, "certified": {"36/255": 1.0}}
    >>> selection_key(easy | {"mean_radius": 9.8}) > selection_key(easy | {"mean_radius": 1.4})
    True
    """
    # Checkpoints of older versions have no mean radius.
    radius: float = build(float, accuracy.get("mean_radius", 0.0), "mean_radius")
    return round(selection_score(accuracy), 12), radius


def is_as_good(found: Mapping[str, Any], best: Mapping[str, Any] | None) -> bool:
    r"""Whether a later model takes the place of the best one so far.

    It does unless its score is below the highest so far by more than the standard error. A score s is the
    mean of n numbers between 0 and 1, one per image, so that error is at most :math:`\sqrt{s (1 - s) / n}`.
    Training is meant to go on improving a model; with few held-out images the highest of many scores is that
    of a lucky one, which has learned less.

    >>> early = {"images": 64, "standard": 0.5, "certified": {}}
    >>> is_as_good({"images": 64, "standard": 0.45, "certified": {}}, early)
    True
    >>> is_as_good({"images": 6400, "standard": 0.45, "certified": {}}, early | {"images": 6400})
    False
    """
    if best is None:
        return True
    highest = highest_score(best)
    # Rounded, because equal means of different shares can differ in the last bit.
    return round(highest - selection_score(found), 12) <= math.sqrt(highest * (1 - highest) / found["images"])


def highest_score(best: Mapping[str, Any]) -> float:
    """The highest score up to the best model, whose own may be lower; older checkpoints do not have it."""
    highest: float = build(float, best.get("highest_score", selection_score(best)), "highest_score")
    return highest


def better(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Name of the best model by `selection_key`; of equal ones the first."""
    return max(found, key=lambda name: selection_key(found[name]))


def held_out_accuracy(model: Network, images: Dataset, batch_size: int, fabric: "Fabric") -> dict[str, Any]:
    """Standard and certified accuracy and mean radius on held-out images, shared among all processes.

    An estimate, for selection only: it runs in the precision of training and takes the body for exactly
    1-Lipschitz behind a normalisation of constant 1 / min(std). The mean counts wrong predictions as 0.
    What a run reports comes from `certify`.
    """
    scale = float(model.normalize.std.min())
    radii = torch.tensor(list(RADII.values()), device=fabric.device)
    counts = torch.zeros(2 + len(RADII), dtype=torch.int64, device=fabric.device)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for pixels, labels, _ in Batches(
            images, batch_size, rank=fabric.global_rank, world_size=fabric.world_size
        ):
            if not len(labels):  # the last batch may be smaller than the number of processes
                continue
            with fabric.autocast():
                logits = model(pixels)
            radius = model.head.certificate(logits.float(), labels) * scale
            counts[0] += (logits.argmax(1) == labels).sum()
            counts[1:-1] += (radius[:, None] > radii).sum(0)
            counts[-1] += (radius.nan_to_num(0).clamp(0, LARGEST) * MILLIONTHS).round().long().sum()
    model.train(was_training)
    shares = [count / len(images) for count in sum_over_processes(fabric, counts)]
    return {
        "label": ESTIMATE,
        "images": len(images),
        "standard": shares[0],
        "certified": dict(zip(RADII, shares[1:-1], strict=True)),
        "mean_radius": shares[-1] / MILLIONTHS,
    }


def proved_accuracy(network: ProvedNetwork, images: Dataset) -> tuple[dict[str, Any], Certificates]:
    """Standard and certified accuracy from certificates: proved bounds, full precision."""
    certificates = network.certify(images.pixels)
    accuracy = certified_accuracy(certificates, images.labels)
    summary = {
        "images": accuracy.count,
        "standard": accuracy.standard,
        "certified": {name: accuracy[radius] for name, radius in RADII.items()},
        "lipschitz": certificates.lipschitz,
    }
    return summary, certificates
