"""certificates.jsonl: one header line on what was certified and how, then one line per image."""

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lipcert.certify.exact import network_hash
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.radii import Certificates
from lipcert.errors import CheckpointError
from lipcert.files import write_or_explain
from lipcert.machine import command_line, cpu_model
from lipcert.models.lipconvnet import LipConvnet

if TYPE_CHECKING:
    from lipcert.data.dataset import Dataset

FILE = "certificates.jsonl"
FORMAT = "lipcert certificates 1"
HEADER = {"weights", "weights_sha256", "model", "data", "data_sha256", "classes", "precision", "lipschitz"}
"""What the first line says at least; who made the records, and where, may be left out."""


@dataclass(frozen=True)
class Records:
    """The content of certificates.jsonl; `header` is its first line."""

    folder: Path
    header: Mapping[str, Any]
    outcomes: Outcomes
    margin: Tensor
    rounding: Tensor

    @property
    def weights_file(self) -> Path:
        """The saved network."""
        return self.folder / str(self.header["weights"])

    @property
    def weights_hash(self) -> str:
        """SHA-256 that names the network, see `certify.exact.network_hash`."""
        return str(self.header["weights_sha256"])

    @property
    def data(self) -> str:
        """Name, or folder, of the images."""
        return str(self.header["data"])

    @property
    def data_hash(self) -> str:
        """SHA-256 of the whole set of images and labels that the records point into."""
        return str(self.header["data_sha256"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.header["classes"])

    @property
    def precision(self) -> str:
        """In which the certified classifier computes."""
        return str(self.header["precision"])

    @property
    def lipschitz(self) -> float:
        """Proved constant from pixels to features."""
        return float(self.header["lipschitz"])

    @property
    def model(self) -> Mapping[str, Any]:
        """The arguments that the network was built with."""
        model: Mapping[str, Any] = self.header["model"]
        return model

    @property
    def command(self) -> str:
        """What was typed."""
        return str(self.header.get("command", ""))

    @property
    def versions(self) -> str:
        """Of the software, in a few words."""
        return ", ".join(f"{name} {self.header.get(name, '?')}" for name in ("lipcert", "torch", "python"))

    @property
    def machine(self) -> str:
        """Processor and system."""
        return str(self.header.get("machine", "not said"))


def write_records(
    folder: Path,
    certificates: Certificates,
    images: "Dataset",
    *,
    model: LipConvnet,
    weights: Path,
) -> Path:
    """Write certificates.jsonl; it appears complete or not at all.

    Args:
        folder: made if it is not there.
        certificates: of the first images of the set.
        images: the whole set.
        model: the network.
        weights: the file it was loaded from.

    Raises:
        CheckpointError: the folder cannot be written to.
    """
    header = {
        "format": FORMAT,
        "weights": _relative(weights.resolve(), folder.resolve()),
        "weights_sha256": network_hash(model),
        "model": vars(model.config),
        "data": images.name,
        "data_sha256": images.fingerprint,
        "images": len(images),
        "classes": images.classes,
        "precision": certificates.precision,
        "lipschitz": certificates.lipschitz,
        "lipcert": version("lipcert"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{cpu_model()}, {platform.platform()}",
        "command": command_line(),
    }
    columns = zip(
        images.labels.tolist(), certificates.prediction.tolist(), certificates.runner_up.tolist(),
        certificates.margin.tolist(), certificates.rounding.tolist(), certificates.radius.tolist(),
        strict=False,
    )  # fmt: skip
    lines = [json.dumps(header)]
    for index, (label, prediction, runner_up, margin, rounding, radius) in enumerate(columns):
        record = {
            "index": index, "label": label, "prediction": prediction, "runner_up": runner_up,
            "margin": _finite(margin), "rounding": rounding, "radius": _finite(radius),
            "bound": certificates.lipschitz, "precision": certificates.precision,
        }  # fmt: skip
        lines.append(json.dumps(record))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"out: cannot make the folder {folder}: {error.strerror or error}") from error
    write_or_explain(folder / FILE, ("\n".join(lines) + "\n").encode())
    return folder / FILE


def read_records(folder: Path) -> Records:
    """Read certificates.jsonl from a folder.

    Raises:
        CheckpointError: it is not there, or damaged.
    """
    path = folder / FILE
    if not path.is_file():
        remedy = (
            f"has no certificates yet; run `lipcert certify {folder}` first"
            if (folder / "config.toml").is_file()
            else f"expected a folder with {FILE}, which `lipcert certify` writes"
        )
        raise CheckpointError(f"{folder}: {remedy}")
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        header = json.loads(first)
        if header["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT!r}, got {header['format']!r}")
        if missing := HEADER - header.keys():
            raise ValueError(f"its first line lacks {', '.join(sorted(missing))}")
        rows = [json.loads(line) for line in lines]
        whole = {
            k: torch.tensor([row[k] for row in rows], device="cpu")
            for k in ("index", "label", "prediction", "runner_up")
        }
        real = {
            k: torch.tensor(
                [math.inf if row[k] is None else row[k] for row in rows], dtype=torch.float64, device="cpu"
            )
            for k in ("margin", "rounding", "radius")
        }
        if bool((~real["radius"].isfinite() & (whole["runner_up"] >= 0)).any()):
            raise ValueError("a radius is not finite")
        outcomes = Outcomes(
            whole["index"], whole["label"], whole["prediction"], whole["runner_up"], real["radius"]
        )
        return Records(folder, header, outcomes, real["margin"], real["rounding"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); run `lipcert certify {folder}` again") from error


def _relative(path: Path, folder: Path) -> str:
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive
        return str(path)


def _finite(value: float) -> float | None:
    """JSON has no infinity: null stands for the margin and the radius of a classifier of one class."""
    return None if value == math.inf else value
