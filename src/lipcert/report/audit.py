"""The verdict of an audit, read from the files that it wrote."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipcert.attacks.report import RECORDS, SUMMARY
from lipcert.errors import CheckpointError


@dataclass(frozen=True)
class Audit:
    """What attacks found.

    Attributes:
        summary: the content of audit.json.
        radius: (N,), certified radii of the attacked images.
        distance: (N,), smallest adversarial distance; infinite where none was found.
    """

    summary: dict[str, Any]
    radius: Tensor
    distance: Tensor

    @property
    def broken(self) -> int:
        """How many certificates an attack broke."""
        return int(self.summary["broken"])

    def is_of(self, network_hash: str) -> bool:
        """Whether certificates of this very network were attacked."""
        return bool(self.summary.get("network_sha256") == network_hash)


def read_audit(folder: Path) -> Audit | None:
    """The audit in a folder, None if there is none.

    Raises:
        CheckpointError: its files are damaged.
    """
    path = folder / SUMMARY
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        lines = (folder / RECORDS).read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        return Audit(
            summary | {"broken": int(summary["broken"]), "images": int(summary["images"])},
            torch.tensor([_number(record["radius"]) for record in records], dtype=torch.float64),
            torch.tensor([_number(record["distance"]) for record in records], dtype=torch.float64),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); run lipcert audit again") from error


def _number(value: float | None) -> float:
    """JSON has no infinity; the audit writes null for it."""
    return math.inf if value is None else float(value)
