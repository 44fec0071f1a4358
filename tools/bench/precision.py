"""Does training in bf16 cost accuracy? The same runs in both precisions, on digits and CIFAR-10.

    LIPCERT_DATA=... python -m tools.bench.precision --out results/bench/precision.json

Everything but the precision is equal, the seed too. Accuracies are proved, on the test sets.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from lipcert.runs.config import TrainConfig
from lipcert.training.loop import train

SHORT = TrainConfig(depth=5, schedule="onecycle", nesterov=True, lr=0.3)
RUNS = {
    "digits": replace(SHORT, data="digits", width=16, epochs=20),
    "cifar10": replace(SHORT, data="cifar10", width=16, epochs=3, head="orthogonal"),
}


def accuracies(config: TrainConfig) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        test = train(config, Path(folder) / "run").test["last"]
    return {"standard": test["standard"], **test["certified"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only", choices=RUNS, help="one of the two datasets")
    parser.add_argument("--out", type=Path, default=Path("results/bench/precision.json"))
    options = parser.parse_args()
    records = json.loads(options.out.read_text()) if options.out.exists() else []
    for name, config in RUNS.items():
        for seed in range(options.seeds):
            done = any(row["data"] == name and row["seed"] == seed for row in records)
            if done or (options.only and name != options.only):
                continue
            chosen = replace(config, seed=seed, threads=options.threads)
            found = {p: accuracies(replace(chosen, precision=p)) for p in ("fp32", "bf16-mixed")}
            about = {"data": name, "seed": seed, "epochs": config.epochs, "width": config.width}
            records.append({**about, "lr": config.lr, "gamma": config.gamma, "test": found})
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(records, indent=1) + "\n")
            print(json.dumps(records[-1]), flush=True)


if __name__ == "__main__":
    main()
