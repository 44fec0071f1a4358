"""Finished runs, read back from their folders; only revised constants need the networks themselves."""

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from lipcert.errors import CheckpointError
from lipcert.files import write_atomically
from lipcert.paper.budget import budget_label, network_of
from lipcert.paper.tables import COLUMNS, Network
from lipcert.training.config import TrainConfig
from lipcert.training.metrics import ENVIRONMENT, read_metrics
from lipcert.training.run_folder import CONFIG
from lipcert.training.summary import SUMMARY, RunSummary

REVISED = "revised.json"
AUDIT = "audit.json"
POWER_ITERATIONS = 50
"""Steps of power iteration on each layer, as in appendix D of the paper."""

SAME_MODEL = 0.001
"""Largest difference in standard accuracy that rounding on another machine may make."""

Values = dict[str, float]
"""Percentages by column: "standard" and the paper's three radii."""


@dataclass(frozen=True)
class Run:
    """A finished run: its options, its summary and the machine it ran on (empty if not recorded)."""

    folder: Path
    config: TrainConfig
    summary: RunSummary
    environment: Mapping[str, Any]

    @property
    def network(self) -> Network:
        """What it trained, in the terms of the paper's tables."""
        return network_of(self.config)

    def test(self, model: str) -> Values:
        """Proved accuracies on the test set of the model "best" (on held-out images) or "last"."""
        return percentages(self.summary.test[model])

    @property
    def epochs_before(self) -> float | None:
        """Epochs of the network that it started from: 0 if its weights were random, None if nobody knows."""
        if self.config.start_from is None:
            return 0.0
        epochs = self.environment.get("started_from", {}).get("epochs")
        return None if epochs is None else float(epochs)

    @property
    def start(self) -> str:
        """Hash of the network that it started from; empty if its weights were random."""
        return str(self.environment.get("started_from", {}).get("weights_sha256", ""))

    @property
    def budget(self) -> str:
        """What it spent, in words; of the network that it started from, the epochs."""
        label = budget_label(self.config)
        before = self.epochs_before
        if not before:
            return label
        return label.replace("started from ", f"after {before:g} epoch{'s' * (before != 1)} of ", 1)

    @property
    def audit(self) -> str:
        """What attacks on its certificates found, in a few words; empty if there were none."""
        path = self.folder / AUDIT
        if not path.exists():
            return ""
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"{found['broken']} of {found['certified']} broken"

    @property
    def hours(self) -> float:
        """Hours of training and evaluation: its epochs at the pace of the median one.

        A run of many hours may stand still for a while on a shared machine; that is not its cost.
        """
        records = [record for record in read_metrics(self.folder) if record["kind"] == "epoch"]
        marks = [(0.0, 0.0), *((record["epoch"], record["elapsed"]) for record in records)]
        parts = [(end - start, after - before) for (start, before), (end, after) in pairwise(marks)]
        longest = max((epochs for epochs, _ in parts), default=0.0)
        # A run may end soon after an evaluation; the rest is then an evaluation above all.
        paces = [seconds / epochs for epochs, seconds in parts if epochs > longest / 2]
        seconds = self.summary.epochs * statistics.median(paces) if paces else self.summary.elapsed
        return seconds / 3600

    @property
    def images_per_second(self) -> float:
        """Training images per second of `hours`."""
        return self.summary.steps * self.config.batch_size / (3600 * self.hours)

    def held_out(self) -> Values:
        """Accuracies of the last model on the held-out images; the certified ones are estimates."""
        return percentages(self.summary.held_out)


@dataclass(frozen=True)
class Revised:
    """Accuracies under Lipschitz constants from power iteration, and how far two constants are from 1.

    The deviations are those of the layers between normalisation and head; the first is an estimate from
    below, the second is proved.
    """

    accuracies: dict[str, Any]
    estimated_deviation: float
    proved_deviation: float


def percentages(accuracies: Mapping[str, Any]) -> Values:
    """Shares as the training writes them, as percentages by the paper's columns.

    >>> percentages({"standard": 0.5, "certified": {"36/255": 0.25, "72/255": 0.125, "108/255": 0.0}})
    {'standard': 50.0, '36/255': 25.0, '72/255': 12.5, '108/255': 0.0}
    """
    shares = {"standard": accuracies["standard"], **accuracies["certified"]}
    return {column: 100 * float(shares[column]) for column in COLUMNS}


def read_run(folder: Path) -> Run:
    """Read a finished run.

    Raises:
        CheckpointError: a file of the run is missing or damaged.
        ArgumentError: its config.toml cannot be read.
    """
    try:
        summary = RunSummary.read(folder)
        environment_file = folder / ENVIRONMENT
        environment = json.loads(environment_file.read_text("utf-8")) if environment_file.exists() else {}
        run = Run(folder, TrainConfig.read(folder / CONFIG), summary, environment)
        for model in ("best", "last"):
            run.test(model)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{folder}: not the folder of a finished run ({error!r})") from error
    return run


def epochs_of(run: Run, decimals: int) -> str:
    """The epochs of a run for people: those of the network that it started from, if any, and its own."""
    own, before = f"{run.summary.epochs:.{decimals}f}", run.epochs_before
    if before is None:
        return f"? + {own}"
    return f"{before:.{decimals}f} + {own}" if before else own


def finished_runs(root: Path) -> tuple[Run, ...]:
    """All finished runs in the folders of `root`, by name; none if there is no such folder."""
    return tuple(read_run(path.parent) for path in sorted(root.glob(f"*/{SUMMARY}")))


def revise(run: Run) -> Revised:
    """Certify the test set anew with estimated constants, once: the result is kept in the run's folder."""
    path = run.folder / REVISED
    if not path.exists():
        write_atomically(path, (json.dumps(_revised(run), indent=2) + "\n").encode())
    return Revised(**json.loads(path.read_text("utf-8")))


def _revised(run: Run) -> dict[str, Any]:
    from lipcert.certify.curve import RADII, certified_accuracy
    from lipcert.certify.estimate import layer_estimates
    from lipcert.certify.network_file import read_network
    from lipcert.data.dataset import to_float
    from lipcert.data.sources import load as load_data
    from lipcert.files import PROVED

    network = read_network(run.folder / PROVED)
    images = load_data(run.config.data, split="test", image_size=run.config.image_size)
    # The first operator is the normalisation, the last one the head's matrix.
    normalize, *between_them, _ = layer_estimates(network, iterations=POWER_ITERATIONS)
    between = math.prod(between_them)
    proved = network.certify(to_float(images.images))
    standard = float((proved.prediction == images.labels).double().mean())
    if abs(standard - run.summary.test["best"]["standard"]) > SAME_MODEL:
        raise CheckpointError(
            f"{run.folder / PROVED}: classifies {standard:.2%} of the test images, but the run's summary "
            f"says {run.summary.test['best']['standard']:.2%}; the file or the data is not that of the run"
        )
    # A radius is a margin divided by the constant, so another constant only rescales it.
    scale = proved.lipschitz / (between * normalize)
    accuracy = certified_accuracy(
        replace(proved, radius=proved.radius * scale), images.labels, list(RADII.values())
    )
    return {
        "accuracies": {
            "standard": accuracy.standard,
            "certified": {name: accuracy[radius] for name, radius in RADII.items()},
        },
        "estimated_deviation": between - 1,
        "proved_deviation": proved.lipschitz / network.layers[0].lipschitz - 1,
    }
