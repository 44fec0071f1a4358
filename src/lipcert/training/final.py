"""The end of a run: proved accuracies of its models on the test set, which is first read here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lipcert.certify.averages import mirrored
from lipcert.certify.certificates import Certificates
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.certify.records import write_records
from lipcert.data.dataset import Dataset
from lipcert.data.sources import load as load_data
from lipcert.files import PROVED
from lipcert.models.storage import load as load_model
from lipcert.pictures import about
from lipcert.runs.config import TrainConfig
from lipcert.runs.metrics import MetricsLog
from lipcert.runs.summary import RunSummary
from lipcert.training.evaluation import AVERAGED, proved_accuracy


@dataclass(frozen=True)
class Finished:
    """The best model of a run, proved, and its certificates of the test images."""

    network: ProvedNetwork
    images: Dataset
    certificates: Certificates


def certify_models(
    config: TrainConfig,
    out: Path,
    models: Mapping[str, tuple[str, int]],
    steps_per_epoch: int,
    device: torch.device,
    say: Callable[[str], None],
) -> tuple[dict[str, dict[str, Any]], Finished]:
    """Certify the test images of a run with each of its models; "best" is kept as a proved file, with
    its certificates.

    Args:
        config: of the run.
        out: its folder.
        models: by name, the file of the weights inside `out` and the step they are from; one is "best".
        steps_per_epoch: of the run.
        device: to certify on.
        say: called with a message before each model.

    Returns:
        the accuracies by name, and the best model with its certificates.
    """
    images = load_data(config.data, split="test", image_size=config.image_size)
    found: dict[str, dict[str, Any]] = {}
    for name, (file, step) in models.items():
        say(f"certifying {len(images)} test images with the {name} model (step {step})")
        network = prove(load_model(out / file), classes=images.classes).to(device)
        network = mirrored(network) if config.mirrored else network
        accuracy, certificates = proved_accuracy(network, images)
        found[name] = {"step": step, "epoch": step / steps_per_epoch} | accuracy
        if name == "best":
            best = Finished(network, images, certificates)
    best.network.save(out / PROVED)
    write_records(out, best.certificates, about(images), network=best.network, file=out / PROVED)
    return found, best


def report_results(
    summary: RunSummary, out: Path, log: MetricsLog | None, say: Callable[[str], None]
) -> None:
    """Say and log the accuracies, close the log, and write summary.json."""
    say(f"best model on {summary.best['images']} held-out images (estimate): {_shares(summary.best)}")
    for name, accuracy in summary.test.items():
        if log is not None:
            log.write({"kind": "test", "model": name} | accuracy)
        averaged = name == "best" and summary.best.get("weights") == AVERAGED
        say(
            f"{name} model (epoch {accuracy['epoch']:g}{', averaged weights' if averaged else ''}) on "
            f"{accuracy['images']} test images: {_shares(accuracy)}"
        )
    if log is not None:
        log.close()
    summary.write(out)
    say(f"everything is in {out}")


def _shares(accuracy: Mapping[str, Any]) -> str:
    certified = ", ".join(f"{share:.2%} at {radius}" for radius, share in accuracy["certified"].items())
    return f"{accuracy['standard']:.2%} standard, certified {certified}"
