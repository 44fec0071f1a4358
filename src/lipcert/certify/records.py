"""certificates.jsonl: one header line on what was certified and how, then one line per image.

Test images and pictures without labels (`data` is null) have the same records. Where images had other sizes
before, each line has that size and a radius in the original. A picture has no label, but a file and the
SHA-256 of that file; one that could not be read has a line with the reason, under `error`.
"""

import gzip
import json
import math
import os
import platform
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

from lipcert.certify.certificates import Certificates
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.record_lines import Row, Unread, check_places, read_own_picture, read_test_image
from lipcert.certify.resized import ResizeBound
from lipcert.errors import CheckpointError
from lipcert.files import CERTIFICATES, CONFIG, write_or_explain
from lipcert.machine import command_line, cpu_model
from lipcert.schema import build, parse_json

FORMAT = "lipcert certificates 2"
CLASS = ("prediction", "runner_up")


@dataclass(frozen=True)
class Images:
    """What was certified, as records name it.

    Attributes:
        data: name, or folder, of a set of test images; None for pictures without labels.
        data_hash: SHA-256 of images and labels, or of the file names of pictures without labels.
        count: how many images the whole set has.
        labels: of the certified images, None if unknown.
        originals: for each image its size before it was resized, and the bound on the resize; None for an
            image that was not. None for sets whose images have one size.
    """

    data: str | None
    data_hash: str
    count: int
    labels: Tensor | None = None
    originals: Sequence[tuple[str, ResizeBound] | None] | None = None


@dataclass(frozen=True)
class Layer:
    """An operator of the network, with its input and its proved constant."""

    path: str
    layer: str
    operator: str
    input_shape: tuple[int, ...]
    lipschitz: float


@dataclass(frozen=True)
class Header:
    """The first line; versions, machine and command are optional."""

    network: str
    network_sha256: str
    name: str
    input_shape: tuple[int, ...]
    data: str | None
    data_sha256: str
    classes: tuple[str, ...]
    lipschitz: float
    layers: tuple[Layer, ...]
    images: int = -1
    lipcert: str = "?"
    torch: str = "?"
    python: str = "?"
    machine: str = "not said"
    command: str = ""

    def __post_init__(self) -> None:
        if min([self.lipschitz, *(layer.lipschitz for layer in self.layers)]) < 0:
            raise ValueError("lipschitz: expected numbers that are not negative")
        if min(self.input_shape, default=0) < 1:
            raise ValueError(f"input_shape: expected positive sides, got {self.input_shape}")


@dataclass(frozen=True)
class Records:
    """The content of certificates.jsonl in `folder`; `unread` are pictures without a certificate."""

    folder: Path
    header: Header
    rows: tuple[Row, ...]
    unread: tuple[Unread, ...] = ()

    @cached_property
    def outcomes(self) -> Outcomes:
        """Predictions and radii beside labels; the label of a picture without one is -1, which is no class.

        Raises:
            CheckpointError: a row names a class that is not there, or claims all radii beside a runner-up.
        """
        rows, names = self.rows, range(-1, len(self.header.classes))
        labels = [-1 if row.label is None else row.label for row in rows]
        whole = [[row.index for row in rows], labels, *([getattr(row, n) for row in rows] for n in CLASS)]
        problem = None
        if not all(number in names for column in whole[1:] for number in column) or min(whole[2]) < 0:
            problem = f"a class is none of the {len(self.header.classes)}"
        elif any(not math.isfinite(row.radius) and row.runner_up >= 0 for row in rows):
            problem = "a radius is not finite"
        if problem is not None:
            raise CheckpointError(
                f"{self.folder / CERTIFICATES} is damaged ({problem}); run `lipcert certify` again"
            )
        index, label, prediction, runner_up = (torch.tensor(column, device="cpu") for column in whole)
        return Outcomes(index, label, prediction, runner_up, self._column("radius"))

    @property
    def certificates(self) -> Certificates:
        """What was written, as `ProvedNetwork.certify` returned it."""
        found = self.outcomes
        return Certificates(
            found.prediction,
            found.radius,
            found.runner_up,
            self._column("margin"),
            self._column("rounding"),
            self.header.lipschitz,
        )

    @property
    def has_own_pictures(self) -> bool:
        """Whether the images are pictures without labels, and not test images."""
        return self.header.data is None

    @property
    def radii_original(self) -> list[float]:
        """Radii in the originals, one per row; radii themselves for sets whose images have one size."""
        return [row.radius if row.radius_original is None else row.radius_original for row in self.rows]

    @property
    def resized(self) -> int:
        """How many of the images were resized."""
        return sum(row.resized_from is not None for row in self.rows)

    @property
    def network_file(self) -> Path:
        """The file of the proved network."""
        return self.folder / self.header.network

    @property
    def data(self) -> str:
        """Name, or folder, of the images; "pictures" for those without labels."""
        return self.header.data or "pictures"

    def _column(self, name: str) -> Tensor:
        return torch.tensor([getattr(row, name) for row in self.rows], dtype=torch.float64, device="cpu")


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
    header = header_of(folder, images, network=network, file=file)
    lines = [json.dumps(header), *map(json.dumps, rows_of(certificates, images))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"out: cannot make the folder {folder}: {error.strerror or error}") from error
    write_or_explain(folder / CERTIFICATES, ("\n".join(lines) + "\n").encode())
    return folder / CERTIFICATES


def header_of(folder: Path, images: Images, *, network: ProvedNetwork, file: Path) -> dict[str, Any]:
    """The first line of records in `folder`; arguments as of `write_records`."""
    return {
        "format": FORMAT,
        "network": _relative(file.resolve(), folder.resolve()),
        "network_sha256": network.hash,
        "name": network.name,
        "input_shape": network.input_shape,
        "data": images.data,
        "data_sha256": images.data_hash,
        "images": images.count,
        "classes": network.classes,
        "lipschitz": network.lipschitz,
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
            "margin": finite(margin), "rounding": finite(rounding), "radius": finite(radius),
        }
        for index, (label, prediction, runner_up, margin, rounding, radius) in enumerate(columns)
    ]  # fmt: skip
    if images.originals is not None:
        for row, original, radius in zip(rows, images.originals, certificates.radius.tolist(), strict=False):
            size, bound = original or (None, None)
            row["resized_from"] = size
            row["radius_original"] = None if bound is None else finite(bound.radius_before(radius))
    return rows


def read_records(place: Path) -> Records:
    """Read certificates.jsonl, or the one of a folder; it may be compressed (.gz).

    Raises:
        CheckpointError: it is not there, is damaged, or certifies nothing.
    """
    folder, path = (place, place / CERTIFICATES) if place.is_dir() else (place.parent, place)
    if not path.is_file():
        remedy = (
            f"has no certificates yet; run `lipcert certify {folder}` first"
            if (folder / CONFIG).is_file()
            else f"expected a folder with {CERTIFICATES}, which `lipcert certify` writes"
        )
        raise CheckpointError(f"{place}: {remedy}")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        first, *lines = content.decode("utf-8").splitlines()
        about = parse_json(first)
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            found = about.get("format") if isinstance(about, dict) else about
            raise ValueError(f"expected the format {FORMAT!r}, got {brief(found)}")
        header: Header = build(Header, about)
        if not lines:
            raise ValueError("expected one line for each image, got none")
        read = read_test_image if header.data is not None else read_own_picture
        found = [read(parse_json(text), f"line {n}") for n, text in enumerate(lines, start=2)]
        if header.data is None:
            check_places([line.index for line in found], header.images)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); run `lipcert certify {folder}` again") from error
    rows = tuple(line for line in found if isinstance(line, Row))
    unread = tuple(line for line in found if isinstance(line, Unread))
    if not rows:
        raise CheckpointError(
            f"{path}: certifies nothing, because none of its {len(unread)} pictures could be read "
            f"({unread[0].error}); certify others with `lipcert certify NETWORK --images`"
        )
    return Records(folder, header, rows, unread)


def _relative(path: Path, folder: Path) -> str:
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive
        return str(path)


def finite(value: float) -> float | None:
    """A number for JSON, where null stands for infinity: the radius of a classifier of one class, say."""
    return None if value == math.inf else value
