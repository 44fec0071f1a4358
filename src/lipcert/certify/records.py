"""certificates.jsonl: one header line on what was certified and how, then one line per image.

Test images and pictures of one's own have the same records; a picture has a file in place of a label.
"""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipcert.certify.certificates import Certificates
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.outcomes import Outcomes
from lipcert.errors import CheckpointError
from lipcert.files import write_or_explain
from lipcert.machine import command_line, cpu_model

FILE = "certificates.jsonl"
FORMAT = "lipcert certificates 2"
HEADER = {
    "network",
    "network_sha256",
    "name",
    "input_shape",
    "data",
    "data_sha256",
    "classes",
    "lipschitz",
    "layers",
}
"""What the first line says at least; who made the records, and where, may be left out."""


@dataclass(frozen=True)
class Images:
    """What was certified, as records name it.

    Attributes:
        data: name, or folder, of a set of test images; None for pictures of one's own.
        data_hash: SHA-256 of all images, and labels if there are any.
        count: how many images the whole set has.
        labels: of the certified images, None if unknown.
        files: of pictures of one's own: path, and size before it was resized (None if it was not).
    """

    data: str | None
    data_hash: str
    count: int
    labels: Tensor | None = None
    files: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True)
class Records:
    """The content of certificates.jsonl; `header` is its first line, `files` are pictures of one's own."""

    folder: Path
    header: Mapping[str, Any]
    outcomes: Outcomes
    margin: Tensor
    rounding: Tensor
    files: tuple[str, ...] = ()

    @property
    def network_file(self) -> Path:
        """The file of the proved network."""
        return self.folder / str(self.header["network"])

    @property
    def network_hash(self) -> str:
        """SHA-256 of that file."""
        return str(self.header["network_sha256"])

    @property
    def network(self) -> str:
        """The network in a few words."""
        return str(self.header["name"])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the images."""
        return tuple(self.header["input_shape"])

    @property
    def layers(self) -> Sequence[Mapping[str, Any]]:
        """Path, layer, operator, input shape and proved constant of every operator."""
        layers: Sequence[Mapping[str, Any]] = self.header["layers"]
        return layers

    @property
    def data(self) -> str:
        """Name, or folder, of the images; "pictures" for those of one's own."""
        return str(self.header["data"] or "pictures")

    @property
    def data_hash(self) -> str:
        """SHA-256 of the whole set of images and labels that the records point into."""
        return str(self.header["data_sha256"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.header["classes"])

    @property
    def lipschitz(self) -> float:
        """Proved constant from pixels to features."""
        return float(self.header["lipschitz"])

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
    folder: Path, certificates: Certificates, images: Images, *, network: ProvedNetwork, file: Path
) -> Path:
    """Write certificates.jsonl; it appears complete or not at all.

    Args:
        folder: made if it is not there.
        certificates: of the first images of the set.
        images: what they are of.
        network: that made them.
        file: of the network.

    Raises:
        CheckpointError: the folder cannot be written to.
    """
    header = {
        "format": FORMAT,
        "network": _relative(file.resolve(), folder.resolve()),
        "network_sha256": network.hash,
        "name": network.name,
        "input_shape": network.input_shape,
        "data": images.data,
        "data_sha256": images.data_hash,
        "images": images.count,
        "classes": network.classes,
        "lipschitz": certificates.lipschitz,
        "layers": [
            {"path": leaf.path, "layer": leaf.layer, "operator": type(leaf.operator).__name__,
             "input_shape": leaf.input_shape, "lipschitz": leaf.lipschitz}
            for leaf in network.layers
        ],
        "lipcert": version("lipcert"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{cpu_model()}, {platform.platform()}",
        "command": command_line(),
    }  # fmt: skip
    lines = [json.dumps(header), *map(json.dumps, rows_of(certificates, images))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"out: cannot make the folder {folder}: {error.strerror or error}") from error
    write_or_explain(folder / FILE, ("\n".join(lines) + "\n").encode())
    return folder / FILE


def rows_of(certificates: Certificates, images: Images) -> list[dict[str, Any]]:
    """One mapping per image, as records hold them."""
    count = len(certificates)
    labels = [None] * count if images.labels is None else images.labels[:count].tolist()
    columns = zip(
        labels, certificates.prediction.tolist(), certificates.runner_up.tolist(),
        certificates.margin.tolist(), certificates.rounding.tolist(), certificates.radius.tolist(),
        strict=True,
    )  # fmt: skip
    rows = [
        {
            "index": index, "label": label, "prediction": prediction, "runner_up": runner_up,
            "margin": _finite(margin), "rounding": _finite(rounding), "radius": _finite(radius),
        }
        for index, (label, prediction, runner_up, margin, rounding, radius) in enumerate(columns)
    ]  # fmt: skip
    for row, (file, resized) in zip(rows, images.files, strict=False):
        row |= {"file": file, "resized_from": resized}
    return rows


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
            # A picture of one's own has no label: -1 is no class.
            k: torch.tensor([-1 if row[k] is None else row[k] for row in rows], device="cpu")
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
        files = tuple(str(row["file"]) for row in rows if "file" in row)
        return Records(folder, header, outcomes, real["margin"], real["rounding"], files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); run `lipcert certify {folder}` again") from error


def _relative(path: Path, folder: Path) -> str:
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive
        return str(path)


def _finite(value: float) -> float | None:
    """JSON has no infinity: null stands for it, such as the radius of a classifier of one class."""
    return None if value == math.inf else value
