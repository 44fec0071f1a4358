"""Finished runs in the terms of the paper's tables; only revised constants need the networks themselves."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lipcert.errors import CheckpointError
from lipcert.files import REVISED, SUMMARY, write_atomically
from lipcert.paper.budget import budget_label
from lipcert.paper.tables import COLUMNS
from lipcert.runs.accuracies import Shares, check_accuracies
from lipcert.runs.run import Run
from lipcert.schema import read_json

POWER_ITERATIONS = 50
"""Steps of power iteration on each layer, as in appendix D of the paper."""

SAME_MODEL = 0.001
"""Largest difference in standard accuracy that rounding on another machine may make."""

Values = dict[str, float]
"""Percentages by column: "standard" and the paper's three radii."""


@dataclass(frozen=True)
class Revised:
    """Accuracies under Lipschitz constants from power iteration, and how far two constants are from 1.

    The deviations are those of the layers between normalisation and head; the first is an estimate from
    below, the second is proved.
    """

    accuracies: dict[str, Any]
    estimated_deviation: float
    proved_deviation: float

    def __post_init__(self) -> None:
        check_accuracies(Shares, self.accuracies, "accuracies")


def percentages(accuracies: Mapping[str, Any]) -> Values:
    """Shares as the training writes them, as percentages by the paper's columns.

    >>> percentages({"standard": 0.5, "certified": {"36/255": 0.25, "72/255": 0.125, "108/255": 0.0}})
    {'standard': 50.0, '36/255': 25.0, '72/255': 12.5, '108/255': 0.0}
    """
    shares = {"standard": accuracies["standard"], **accuracies["certified"]}
    return {column: 100 * float(shares[column]) for column in COLUMNS}


def on_test_images(run: Run, model: str = "best") -> Values:
    """Proved accuracies on the test set of the model "best" (on held-out images) or "last"."""
    return percentages(run.summary.test[model])


def start_of(run: Run) -> str:
    """Hash of the network that a run started from; empty if its weights were random."""
    return str(run.environment.get("started_from", {}).get("weights_sha256", ""))


def budget_of(run: Run) -> str:
    """The budget of a run in words, with the epochs of the network it started from."""
    label, before = budget_label(run.config), run.epochs_before
    if not before:
        return label
    return label.replace("started from ", f"after {round(before, 1):g} epoch{'s' * (before != 1)} of ", 1)


def finished_run(folder: Path) -> Run:
    """The run in a folder, its options, summary and environment read.

    Raises:
        CheckpointError: a file of the run is missing or damaged.
        ArgumentError: its options are not those of this version.
    """
    run = Run.at(folder)
    return run.knowing(summary=run.summary, config=run.config, environment=run.environment)


def finished_runs(root: Path) -> tuple[Run, ...]:
    """All finished runs in the folders of `root`, by name; none if there is no such folder."""
    return tuple(finished_run(path.parent) for path in sorted(root.glob(f"*/{SUMMARY}")))


def revise(run: Run) -> Revised:
    """Certify the test set again with estimated constants, once: the result is kept in the run's folder."""
    path = run.root / REVISED
    if not path.exists():
        write_atomically(path, (json.dumps(_revised(run), indent=2) + "\n").encode())
    return read_json(path, Revised, "remove it to compute it again")


def _revised(run: Run) -> dict[str, Any]:
    from lipcert.certify.curve import RADII, certified_accuracy
    from lipcert.certify.estimate import layer_estimates

    network, images = run.network, run.test_images()
    # The first operator is the normalisation, the last one the head's matrix.
    normalize, *between_them, _ = layer_estimates(network, iterations=POWER_ITERATIONS)
    between = math.prod(between_them)
    proved = network.certify(images.pixels)
    standard = float((proved.prediction == images.labels).double().mean())
    if abs(standard - run.summary.test["best"]["standard"]) > SAME_MODEL:
        raise CheckpointError(
            f"{run.file}: classifies {standard:.2%} of the test images, but the run's summary "
            f"says {run.summary.test['best']['standard']:.2%}; the file or the data is not that of the run"
        )
    # A radius is a margin divided by the constant, so another constant only rescales it.
    scale = proved.lipschitz / (between * normalize)
    accuracy = certified_accuracy(replace(proved, radius=proved.radius * scale), images.labels)
    return {
        "accuracies": {
            "standard": accuracy.standard,
            "certified": {name: accuracy[radius] for name, radius in RADII.items()},
        },
        "estimated_deviation": between - 1,
        "proved_deviation": proved.lipschitz / network.layers[0].lipschitz - 1,
    }
