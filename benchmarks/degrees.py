"""Which degree trains best for its time? LipConvnet-5 on CIFAR-10 with several polynomials, equal epochs.

    HOLDFAST_DATA=... python benchmarks/degrees.py --out benchmarks/results/degrees.json

Every contender is a family of `holdfast.functional.series`: the two that ship, and isometric ones of other
degrees and ranges that this script makes for the occasion. Seeds and options are the same. Accuracies are of
held-out training images; what a training step costs is measured apart, all contenders taking turns.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import make_series

from holdfast.benchmarks import work
from holdfast.benchmarks.run import machine
from holdfast.benchmarks.timing import Contender, measure
from holdfast.functional.modulus import polynomial_modulus_lower_bound, polynomial_modulus_upper_bound
from holdfast.functional.series import SERIES, Family, Series
from holdfast.models.lipconvnet import lipconvnet
from holdfast.training.config import TrainConfig
from holdfast.training.loop import train
from holdfast.training.metrics import read_metrics

# name: (radius, degree in training, drift, degree in evaluation, drift)
STUDIED = {
    "degree 2/3, angles to 0.9": (1.0, (2, 0.1), (3, 0.03)),
    "degree 3/4, angles to 1.3": (1.6, (3, 0.3), (4, 0.03)),
    "degree 4/5, angles to 2.0": (2.1, (4, 0.1), (5, 0.03)),
}


def series(coefficients: np.ndarray, radius: float, scale: bool) -> Series:
    chosen = make_series.scaled(coefficients, radius) if scale else tuple(map(float, coefficients))
    lowest, highest = (
        polynomial_modulus_lower_bound(chosen, radius),
        polynomial_modulus_upper_bound(chosen, radius),
    )
    return Series(chosen, radius, max(1 - lowest, highest - 1))


def family(radius: float, training: tuple[int, float], evaluation: tuple[int, float]) -> Family:
    make_series.RADIUS = radius
    low = make_series.isometric(*training)
    high = make_series.isometric(*evaluation, like=low)
    sizes, target = (
        (1, 3, 5),
        radius / (SERIES["isometric"].evaluation[3].radius / SERIES["isometric"].target[3]),
    )
    return Family(
        dict.fromkeys(sizes, series(low, radius, scale=False)),
        dict.fromkeys(sizes, series(high, radius, scale=True)),
        dict.fromkeys(sizes, target),
        by_operator_norm=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only", default=None, help="run the contenders whose name contains this")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/degrees.json"))
    options = parser.parse_args()
    SERIES.update({name: family(*spec) for name, spec in STUDIED.items()})
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else []
    names = [n for n in ("isometric", *STUDIED, "exponential") if not options.only or options.only in n]
    if options.threads:
        torch.set_num_threads(options.threads)
    steps = [
        Contender(
            n, work.training_step(lipconvnet(depth=5, width=32, num_classes=10, series=n), bf16=True), 128
        )
        for n in names
    ]
    seconds = {timing.name: timing.seconds for timing in measure(steps, 5)}
    for name in names:
        folder = Path(tempfile.mkdtemp())
        config = TrainConfig(
            data="cifar10",
            depth=5,
            width=options.width,
            head="orthogonal",
            gamma=0.5,
            series=name,
            schedule="onecycle",
            lr=0.2,
            nesterov=True,
            epochs=options.epochs,
            precision="bf16-mixed",
            threads=options.threads,
        )
        train(config, folder / "run")
        measured = [row for row in read_metrics(folder / "run") if row["kind"] == "epoch"]
        chosen = SERIES[name]
        results.append(
            {
                "series": name,
                "degrees": [len(s[3].coefficients) - 1 for s in (chosen.training, chosen.evaluation)],
                "modulus_errors": [s[3].modulus_error for s in (chosen.training, chosen.evaluation)],
                "epochs": options.epochs,
                "step_seconds_at_width_32": seconds[name],
                "width": options.width,
                "threads": torch.get_num_threads(),
                "last": measured[-1],
                "machine": machine(),
            }
        )
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"results": results}, indent=1) + "\n")
        print(json.dumps(results[-1]), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
