"""What do larger pictures cost? Proves and certifies the network of the fast recipe at several image sizes.

    python -m tools.bench.image_sizes

Times are processor time, which depends less on other work on the machine. The weights are random, seed 0.
`python -m tools.fill_docs` writes the record into docs/training.md.
"""

import json
import time
from importlib.metadata import version
from pathlib import Path

import torch

import lipcert as lc
from lipcert.machine import command_line, cpu_model

SIZES = (32, 64)
IMAGES = 32
RECORD = Path(__file__).parents[2] / "results/bench/image_sizes.json"


def measure(side: int) -> dict[str, float]:
    """Seconds to prove the network for pictures of this side, and to certify a batch of them."""
    torch.manual_seed(0)
    model = lc.lipconvnet(5, head="orthogonal", num_classes=10, width=16, image_size=side, series="wide")
    start = time.process_time()
    network = lc.prove(model)
    proved = time.process_time()
    network.certify(torch.rand(IMAGES, 3, side, side))
    return {
        "side": side,
        "prove_seconds": round(proved - start, 2),
        "certify_ms": round(1000 * (time.process_time() - proved) / IMAGES, 2),
        "constant": network.lipschitz,
    }


def main() -> None:
    torch.set_num_threads(1)
    record = {
        "machine": {"cpu": cpu_model(), "time": time.strftime("%Y-%m-%d %H:%M:%S")},
        "versions": {name: version(name) for name in ("lipcert", "torch")},
        "command": command_line(),
        "images": IMAGES,
        "sizes": [measure(side) for side in SIZES],
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
