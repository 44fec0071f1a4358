"""The end of a run: proved accuracies of its models on the test set, which nothing has read before."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lipcert.certify.prove import prove
from lipcert.certify.records import Images, write_records
from lipcert.data.sources import load as load_data
from lipcert.files import PROVED
from lipcert.models.storage import load as load_model
from lipcert.training.config import TrainConfig
from lipcert.training.evaluation import AVERAGED, proved_accuracy
from lipcert.training.metrics import MetricsLog
from lipcert.training.summary import RunSummary


def certify_models(
    config: TrainConfig,
    out: Path,
    models: Mapping[str, tuple[str, int]],
    steps_per_epoch: int,
    device: torch.device,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Certify the test images of a run with each of its models; "best" is kept as a proved file, with
    its certificates.

    Args:
        config: of the run.
        out: its folder.
        models: by name, the file of the weights inside `out` and the step they are from.
        steps_per_epoch: of the run.
        device: that certifies.
        say: told what begins.
    """
    images = load_data(config.data, split="test", image_size=config.image_size)
    found: dict[str, dict[str, Any]] = {}
    for name, (file, step) in models.items():
        say(f"certifying {len(images)} test images with the {name} model (step {step})")
        network = prove(load_model(out / file), classes=images.classes).to(device)
        accuracy, certificates = proved_accuracy(network, images)
        found[name] = {"step": step, "epoch": step / steps_per_epoch} | accuracy
        if name == "best":
            network.save(out / PROVED)
            about = Images(images.name, images.fingerprint, len(images), images.labels)
            write_records(out, certificates, about, network=network, file=out / PROVED)
    return found


def report_results(
    summary: RunSummary, out: Path, log: MetricsLog | None, say: Callable[[str], None]
) -> None:
    """Say and log the proved accuracies, close the log, and write summary.json."""
    for name, accuracy in summary.test.items():
        if log is not None:
            log.write({"kind": "test", "model": name} | accuracy)
        certified = ", ".join(f"{share:.2%} at {radius}" for radius, share in accuracy["certified"].items())
        averaged = name == "best" and summary.best.get("weights") == AVERAGED
        say(
            f"{name} model (epoch {accuracy['epoch']:g}{', averaged weights' if averaged else ''}) on "
            f"{accuracy['images']} test images: {accuracy['standard']:.2%} standard, certified {certified}"
        )
    if log is not None:
        log.close()
    summary.write(out)
    say(f"everything is in {out}")
