"""Which degree trains best for its time? LipConvnet-5 on CIFAR-10 with several polynomials.

    LIPCERT_DATA=... python -m tools.bench.degrees --epochs 5
    python -m tools.bench.degrees --time

Every contender is a family of `lipcert.kernels.series`: those that ship, and isometric ones of other
degrees and ranges that this script makes for the occasion. Seeds and options are the same. Accuracies are of
held-out training images, after the last epoch. `--time` measures what a training step of each costs, all
contenders taking turns. Both add to one file of records, and what is there already is not run again.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lipcert.cli.bench import training_step
from lipcert.kernels.series import SERIES, Family, Series
from lipcert.models.lipconvnet import lipconvnet
from lipcert.proofs.modulus import polynomial_modulus_lower_bound, polynomial_modulus_upper_bound
from lipcert.runs.config import TrainConfig
from lipcert.runs.metrics import read_metrics
from lipcert.training.loop import train
from tools import make_series
from tools.bench.run import machine
from tools.bench.timing import Contender, measure

# name: (radius, (degree in training, phase drift), (degree in evaluation, phase drift))
STUDIED = {
    "degree 2/3, angles to 0.7": (1.0, (2, 0.3), (3, 0.02)),
    "degree 2/3, angles to 1.0": (1.12, (2, 0.1), (3, 0.05)),
    "degree 3/5, angles to 1.7": (2.1, (3, 0.3), (5, 0.03)),
    "degree 4/5, angles to 1.9": (2.1, (4, 0.1), (5, 0.03)),
}


def series(coefficients: np.ndarray, radius: float, scale: bool) -> Series:
    chosen = make_series.scaled(coefficients, radius) if scale else tuple(map(float, coefficients))
    lowest, highest = (
        polynomial_modulus_lower_bound(chosen, radius),
        polynomial_modulus_upper_bound(chosen, radius),
    )
    return Series(chosen, radius, max(1 - lowest, highest - 1))


def family(radius: float, training: tuple[int, float], evaluation: tuple[int, float]) -> Family:
    low = make_series.isometric(radius, *training)
    high = make_series.isometric(radius, *evaluation, like=low)
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


def read(out: Path) -> dict[str, Any]:
    return json.loads(out.read_text()) if out.exists() else {"trained": [], "step": {}}


def write(out: Path, records: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(records, indent=1) + "\n")


def time_steps(names: list[str], threads: int | None) -> dict[str, Any]:
    if threads:
        torch.set_num_threads(threads)
    steps = [
        Contender(n, training_step(lipconvnet(depth=5, width=32, num_classes=10, series=n), bf16=True), 128)
        for n in names
    ]
    seconds = {timing.name: timing.seconds for timing in measure(steps, 7)}
    return {"width": 32, "batch": 128, "bf16": True, "seconds": seconds, "machine": machine()}


def train_one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    config = TrainConfig(
        data="cifar10",
        depth=5,
        width=options.width,
        head="orthogonal",
        gamma=0.5,
        series=name,
        schedule="onecycle",
        lr=options.lr,
        nesterov=True,
        epochs=options.epochs,
        precision="bf16-mixed",
        threads=options.threads,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run")
        last = [row for row in read_metrics(Path(folder) / "run") if row["kind"] == "epoch"][-1]
    chosen = SERIES[name]
    angle = np.angle(np.polyval(chosen.training[3].coefficients[::-1], 1j * chosen.target[3]))
    return {
        "series": name,
        "epochs": options.epochs,
        "width": options.width,
        "lr": options.lr,
        "degrees": [len(s[3].coefficients) - 1 for s in (chosen.training, chosen.evaluation)],
        "modulus_errors": [s[3].modulus_error for s in (chosen.training, chosen.evaluation)],
        "largest_angle": float(angle),
        "held_out": last["held_out"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only", default=None, help="the contenders whose name contains this")
    parser.add_argument("--time", action="store_true", help="time the steps in place of training")
    parser.add_argument("--out", type=Path, default=Path("results/bench/degrees.json"))
    options = parser.parse_args()
    SERIES.update({name: family(*spec) for name, spec in STUDIED.items()})
    names = [name for name in SERIES if not options.only or options.only in name]
    if options.time:
        step = time_steps(names, options.threads)
        write(options.out, {**read(options.out), "step": step})
        print(json.dumps(step["seconds"], indent=1))
        return
    for name in names:
        wanted = (name, options.epochs, options.width, options.lr)
        keys = ("series", "epochs", "width", "lr")
        if wanted in [tuple(row[key] for key in keys) for row in read(options.out)["trained"]]:
            continue
        row = train_one(name, options)
        records = read(options.out)
        records["trained"].append(row)
        write(options.out, records)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
