"""All that a report says about one run, read back from files; no network is loaded or run."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from lipcert.certify.curve import RADII
from lipcert.certify.network_file import read_network
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.records import Records, read_records
from lipcert.data.dataset import Dataset
from lipcert.data.sources import load as load_data
from lipcert.errors import CheckpointError, LipcertError
from lipcert.report.audit import Audit, read_audit
from lipcert.report.learned import LearnedAngles, learned_angles
from lipcert.training.metrics import ENVIRONMENT, METRICS, read_metrics
from lipcert.training.run_folder import CONFIG

PROOF = "proved, rounding included"
"""What radii rest on."""


@dataclass(frozen=True)
class Evidence:
    """One run as a report shows it.

    Attributes:
        name: of the run, unique on a page.
        records: the certificates and what is known about them.
        options: of the training; empty if the network came without a run.
        environment: versions and machine of the training; empty if unknown.
        epochs: records of metrics.jsonl of kind "epoch".
        angles: of the learned activations.
        audit: what attacks found, if they were asked.
        images: uint8 (M, C, H, W), those that the records speak of; None if they are not here.
    """

    name: str
    records: Records
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    epochs: Sequence[Mapping[str, Any]] = ()
    angles: tuple[LearnedAngles, ...] = ()
    audit: Audit | None = None
    images: Tensor | None = None

    @property
    def outcomes(self) -> Outcomes:
        """Certificates beside labels."""
        return self.records.outcomes

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.records.classes

    @property
    def lipschitz(self) -> float:
        """Proved constant from pixels to features."""
        return self.records.lipschitz

    @property
    def data_hash(self) -> str:
        """SHA-256 of the images and labels that were certified."""
        return self.records.data_hash

    @property
    def network(self) -> str:
        """The network in a few words."""
        return self.records.network

    @cached_property
    def sentence(self) -> str:
        """The whole result in one sentence."""
        accuracy = self.outcomes.accuracy()
        first = next(iter(RADII))
        images = f"{accuracy.count:,} {self.records.data} test images"
        return (
            f"{self.network} classifies {accuracy.standard:.1%} of {images} correctly; for "
            f"{accuracy[RADII[first]]:.1%} it is proved that no change of l2 norm up to {first} can alter "
            "that."
        )

    @property
    def command(self) -> str:
        """What to type to make it again: the training, then the certificates."""
        # A single command may have done both.
        commands = dict.fromkeys([str(self.environment.get("command", "")), self.records.command])
        return "\n".join(command for command in commands if command)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Where every number comes from, as names and values."""
        records, machine = self.records, self.environment
        rows = [
            ("Network", self.network),
            ("Proved file", f"{records.network_file.name}, SHA-256 {records.network_hash}"),
            ("Images", f"{records.data}, {len(self.outcomes):,} test images, SHA-256 {records.data_hash}"),
            ("Proof", PROOF),
            ("Certified with", records.versions),
            ("Certified on", records.machine),
            (
                "Trained with",
                ", ".join(f"{k} {machine[k]}" for k in ("lipcert", "torch", "python") if k in machine),
            ),
            ("Trained on", ", ".join(str(machine[k]) for k in ("cpu", "system") if k in machine)),
            ("Threads", str(machine.get("threads", ""))),
            ("Training time", _duration(self.epochs)),
            ("Started from", _start(machine.get("started_from"))),
        ]
        return [(name, value) for name, value in rows if value]


def read_evidence(folder: Path, name: str | None = None) -> Evidence:
    """Read everything that a folder of certificates, and the run around it, holds.

    Args:
        folder: has the records; the run is the folder itself or the one around it.
        name: on the page; by default the folder's.

    Raises:
        CheckpointError: there are no records, or a file is damaged.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected the folder of a run")
    records = read_records(folder)
    run = next((place for place in (folder, folder.resolve().parent) if (place / CONFIG).is_file()), None)
    network = read_network(records.network_file) if records.network_file.is_file() else None
    if network is not None and network.hash != records.network_hash:
        raise CheckpointError(
            f"{folder}: {records.network_file.name} is another network than the certified one; run `lipcert "
            f"certify {folder}` again"
        )
    audit = read_audit(folder)
    return Evidence(
        name=folder.resolve().name if name is None else name,
        records=records,
        options={} if run is None else _read_toml(run / CONFIG),
        environment={} if run is None else _read_json(run / ENVIRONMENT),
        epochs=[] if run is None else _epochs(run),
        angles=() if network is None else learned_angles(network),
        audit=audit if audit is None or audit.is_of(records.network_hash) else None,
        images=_images(records),
    )


def _images(records: Records) -> Tensor | None:
    """The images of the records if they are on this machine and the same ones, else None."""
    size = records.input_shape[1]
    try:
        found: Dataset = load_data(
            records.data,
            split="test",
            image_size=None if records.data in ("cifar10", "cifar100") else size,
        )
    except LipcertError:
        return None
    return found.images if found.fingerprint == records.data_hash else None


def _epochs(run: Path) -> list[dict[str, Any]]:
    return [r for r in read_metrics(run) if r.get("kind") == "epoch"] if (run / METRICS).is_file() else []


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged and cannot be read ({error})") from error
    return content if isinstance(content, dict) else {}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged and cannot be read ({error})") from error


def _start(start: Mapping[str, Any] | None) -> str:
    if start is None:
        return ""
    known = "" if start["epochs"] is None else f", trained for {start['epochs']:g} epochs"
    return f"{start['network']}{known}, SHA-256 {start['weights_sha256']}"


def _duration(epochs: Sequence[Mapping[str, Any]]) -> str:
    if not epochs:
        return ""
    seconds, speed = float(epochs[-1]["elapsed"]), float(epochs[-1]["images_per_second"])
    return f"{seconds:,.0f} s for {epochs[-1]['epoch']:g} epochs, {speed:,.0f} images per second"
