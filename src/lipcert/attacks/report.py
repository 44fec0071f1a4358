"""Results of an audit: one record per image, a summary, and counter-examples, and their files."""

import json
import math
from bisect import bisect_right
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from lipcert.certify.records import finite
from lipcert.errors import ArgumentError, BrokenCertificateError
from lipcert.files import ATTACKED, AUDIT, write_or_explain

RATIO_EDGES = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0)
"""Bounds of the histogram of distance over radius; bin i holds ratios from edge i-1 up to below edge i."""


@dataclass(frozen=True)
class AuditRecord:
    """One image under attack.

    Attributes:
        index: position of the image in the batch that was audited.
        prediction: the class that is claimed not to change within `radius`.
        radius: the claim, in pixel units.
        distance: the smallest distance at which a change was found; None if none was.
        ratio: distance over radius; None if there is no distance or no positive radius.
        found: the class at that distance.
        attack: name of the attack that found it.
        broken: whether it lies within a positive radius, decided without rounding.
    """

    index: int
    prediction: int
    radius: float
    distance: float | None
    ratio: float | None
    found: int | None
    attack: str | None
    broken: bool


@dataclass(frozen=True)
class CounterExample:
    """A point that breaks a certificate; both images as they were classified, float64 (C, H, W)."""

    record: AuditRecord
    image: Tensor
    adversarial: Tensor

    def save(self, path: Path) -> None:
        """Write one safetensors file: `image`, `adversarial`, and the record as metadata."""
        tensors = {"image": self.image.contiguous(), "adversarial": self.adversarial.contiguous()}
        metadata = {name: json.dumps(value) for name, value in asdict(self.record).items()}
        write_or_explain(path, save(tensors, metadata))


@dataclass(frozen=True)
class AuditReport:
    """Results of an audit.

    Attributes:
        records: one per image, in order.
        counter_examples: one per broken certificate.
        about: what was audited and how: precision, settings, attacks, versions, hash of the weights.
        tried: points that were classified exactly.
        inside: how many of them lay within the radius of their image.
        seconds: duration of the attacks.
    """

    records: tuple[AuditRecord, ...]
    counter_examples: tuple[CounterExample, ...]
    about: dict[str, Any]
    tried: int
    inside: int
    seconds: float

    @property
    def broken(self) -> tuple[AuditRecord, ...]:
        """The records of broken certificates."""
        return tuple(record for record in self.records if record.broken)

    @property
    def certified(self) -> int:
        """How many images have a certificate that could break: a radius above 0."""
        return sum(record.radius > 0 for record in self.records)

    @property
    def ratios(self) -> list[float]:
        """Distance over radius of every image that has both, in rising order; 1 is a tight certificate."""
        return sorted(record.ratio for record in self.records if record.ratio is not None)

    def __repr__(self) -> str:
        nearest = f", nearest attack at {self.ratios[0]:.3f} times the radius" if self.ratios else ""
        return f"AuditReport({self.certified} certificates, {len(self.broken)} broken{nearest})"

    def histogram(self) -> dict[str, Any]:
        """Counts of the ratios between `RATIO_EDGES`: below the first, between each pair, beyond the last."""
        counts = [0] * (len(RATIO_EDGES) + 1)
        for ratio in self.ratios:
            counts[bisect_right(RATIO_EDGES, ratio)] += 1
        return {"edges": list(RATIO_EDGES), "counts": counts}

    def summary(self) -> dict[str, Any]:
        """Counts, ratios and what was done, ready for JSON."""
        ratios = self.ratios
        nearest = Counter(record.attack for record in self.records if record.attack is not None)
        return {
            "images": len(self.records),
            "certified": self.certified,
            "found": sum(record.distance is not None for record in self.records),
            "broken": len(self.broken),
            "points_tried": self.tried,
            "points_inside": self.inside,
            "ratio": {
                "smallest": ratios[0] if ratios else None,
                "median": median(ratios) if ratios else None,
                "histogram": self.histogram(),
            },
            "nearest_by_attack": dict(sorted(nearest.items())),
            "seconds": round(self.seconds, 3),
            **self.about,
        }

    def write(self, folder: Path) -> list[Path]:
        """Write audit.jsonl, audit.json and a file per counter-example; returns their paths.

        Each file appears complete or not at all. Counter-examples of an earlier audit are removed.

        Raises:
            ArgumentError: the folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"out: cannot make the folder {folder}: {error.strerror or error}") from error
        for old in folder.glob("broken-*.safetensors"):
            old.unlink()
        paths = []
        for example in self.counter_examples:
            paths.append(folder / f"broken-{example.record.index}.safetensors")
            example.save(paths[-1])
        lines = (json.dumps(asdict(record) | {"radius": finite(record.radius)}) for record in self.records)
        write_or_explain(folder / ATTACKED, "".join(f"{line}\n" for line in lines).encode())
        write_or_explain(folder / AUDIT, (json.dumps(self.summary(), indent=2) + "\n").encode())
        return [*paths, folder / ATTACKED, folder / AUDIT]

    def check(self) -> None:
        """Raise if a certificate is broken.

        Raises:
            BrokenCertificateError: with the number of broken certificates, and the worst one.
        """
        if not self.broken:
            return
        worst = min(self.broken, key=lambda record: math.inf if record.ratio is None else record.ratio)
        raise BrokenCertificateError(
            f"{len(self.broken)} of {self.certified} certificates are broken: image {worst.index}, "
            f"certified to {worst.radius:.9g}, changes from class {worst.prediction} to {worst.found} at "
            f"distance {worst.distance:.9g} (found by {worst.attack})"
        )


def counter_example(record: AuditRecord, image: Tensor, adversarial: Tensor) -> CounterExample:
    """Copies on the CPU, in float64."""
    return CounterExample(
        record, *(t.detach().to("cpu", torch.float64, copy=True) for t in (image, adversarial))
    )
