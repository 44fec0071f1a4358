"""Could one polynomial serve training and evaluation? LipConvnet-5 on CIFAR-10, both ways.

    LIPCERT_DATA=... python -m tools.bench.one_polynomial --runs runs --seeds 0 1
    python -m tools.bench.one_polynomial --time

"pair" is the wide series as it ships: degree 3 in training, degree 4 in evaluation. "one" is its training
polynomial, divided by its largest modulus so that |p| <= 1 is proved, in both. Runs take the fast recipe, and
accuracies are proved on the test set. A run that has ended is only read. `--time` compares the frozen
networks, in turns. Both add to one file of records.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lipcert.kernels.series import SERIES, SIZES, Family
from lipcert.runs.config import TrainConfig
from lipcert.training.loop import train
from lipcert.training.recipes import apply_recipe
from tools.bench import work
from tools.bench.degrees import series
from tools.bench.run import machine
from tools.bench.tables import ONE_POLYNOMIAL
from tools.bench.timing import Contender, measure

PAIR = SERIES["wide"]


def one() -> Family:
    """The wide series with its training polynomial in both modes, scaled to a largest modulus of 1."""
    low = PAIR.training[3]
    both = dict.fromkeys(SIZES, series(np.array(low.coefficients), low.radius, scale=True))
    return replace(PAIR, training=both, evaluation=both)


FAMILIES = {"pair": PAIR, "one": one()}


def train_one(kind: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train, or read what was trained before; the polynomials that ship are put back afterwards."""
    run = options.runs / f"{kind}-{seed}"
    given = {"data": "cifar10", "depth": 5, "width": 16, "epochs": options.epochs, "seed": seed}
    given |= {"threads": options.threads, "eval_every": options.epochs}
    if not (run / "summary.json").exists():
        SERIES["wide"] = FAMILIES[kind]
        try:
            train(TrainConfig(**apply_recipe("fast", given).options), run)
        finally:
            SERIES["wide"] = PAIR
    summary = json.loads((run / "summary.json").read_text())
    chosen = FAMILIES[kind]
    return {
        "kind": kind,
        "seed": seed,
        "epochs": summary["epochs"],
        "degrees": [len(s[3].coefficients) - 1 for s in (chosen.training, chosen.evaluation)],
        "modulus_errors": [s[3].modulus_error for s in (chosen.training, chosen.evaluation)],
        "test": summary["test"]["best"],
    }


def time_inference() -> dict[str, Any]:
    """Seconds of a batch of 256 by the frozen networks of width 32."""
    contenders = []
    for kind, family in FAMILIES.items():
        SERIES["wide"] = family
        contenders.append(Contender(kind, work.inference(work.ours_frozen(5, series="wide")), 256))
    SERIES["wide"] = PAIR
    seconds = {timing.name: timing.seconds for timing in measure(contenders, 15)}
    return {"width": 32, "batch": 256, "seconds": seconds, "machine": machine()}


def main() -> None:
    """Add to the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/one-polynomial"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--time", action="store_true", help="time the frozen networks in place of training")
    options = parser.parse_args()
    record = json.loads(ONE_POLYNOMIAL.read_text()) if ONE_POLYNOMIAL.exists() else {}
    if options.time:
        record["inference"] = time_inference()
    else:
        record["trained"] = [train_one(k, s, options) for s in options.seeds for k in FAMILIES]
    ONE_POLYNOMIAL.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
