"""Reads the files that an audit wrote."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from lipcert.files import ATTACKED, AUDIT
from lipcert.schema import read_json, read_lines

REMEDY = "run lipcert audit again"


class Ratio(TypedDict):
    """Smallest and median distance over radius; None if no attack changed a prediction."""

    smallest: float | None
    median: float | None


class Verdict(TypedDict):
    """The fields of audit.json that are read back."""

    images: int
    certified: int
    broken: int
    points_tried: int
    points_inside: int
    ratio: Ratio
    attacks: list[str]
    network_sha256: NotRequired[str]


class Attacked(TypedDict):
    """The fields of a line of audit.jsonl that are read back; null is infinite."""

    radius: float | None
    distance: float | None


@dataclass(frozen=True)
class Audit:
    """The audit in `folder`; `summary` is the content of its audit.json."""

    folder: Path
    summary: dict[str, Any]

    @property
    def broken(self) -> int:
        """How many certificates an attack broke."""
        return int(self.summary["broken"])

    @cached_property
    def attacked(self) -> tuple[Tensor, Tensor]:
        """Certified radii, and smallest adversarial distances, infinite where none was found; (N,) each.

        Raises:
            CheckpointError: audit.jsonl is missing or damaged.
        """
        lines = read_lines(self.folder / ATTACKED, Attacked, REMEDY)
        radius, distance = (
            torch.tensor([math.inf if value is None else value for value in column], dtype=torch.float64)
            for column in ([line["radius"] for line in lines], [line["distance"] for line in lines])
        )
        return radius, distance

    def is_of(self, network_hash: str) -> bool:
        """Whether the audit attacked certificates of the network with this hash."""
        return bool(self.summary.get("network_sha256") == network_hash)


def read_audit(folder: Path) -> Audit | None:
    """The audit in a folder, None if there is none.

    Raises:
        CheckpointError: audit.json is damaged.
    """
    path = folder / AUDIT
    return Audit(folder, dict(read_json(path, Verdict, REMEDY))) if path.is_file() else None
