"""Records written by hand, so that every number of a report can be counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lipcert.certify import Certificates, ProvedNetwork, prove
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.records import Images, write_records
from lipcert.data.dataset import Dataset
from lipcert.models.lipconvnet import lipconvnet

CLASSES = ("cat", "<b>dog</b>", "a & b")


@pytest.fixture
def outcomes() -> Outcomes:
    """Eight images: six right (one of them a tie), two wrong (one of them certified)."""
    return Outcomes(
        index=torch.arange(8),
        label=torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]),
        prediction=torch.tensor([0, 0, 0, 1, 1, 2, 2, 0]),
        runner_up=torch.tensor([1, 1, 2, 0, 2, 1, 0, 1]),
        radius=torch.tensor([0.05, 0.2, 0.5, 0.0, 0.3, 0.4, 1.0, 0.0], dtype=torch.float64),
    )


@pytest.fixture
def network() -> ProvedNetwork:
    model = lipconvnet(depth=5, num_classes=3, width=2, image_size=4, in_channels=1)
    return prove(model, classes=CLASSES)


@pytest.fixture
def images() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (8, 1, 4, 4), dtype=torch.uint8, generator=generator)
    return Dataset("hand made", pixels, torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]), CLASSES, "test")


@pytest.fixture
def make_run(
    tmp_path: Path, outcomes: Outcomes, network: ProvedNetwork, images: Dataset
) -> Callable[..., Path]:
    """Write a folder with everything that a run, its certificates and an audit leave behind."""

    def make(name: str = "run", *, audited: bool = True, **options: Any) -> Path:
        from lipcert.runs.config import TrainConfig

        folder = tmp_path / name
        folder.mkdir()
        file = folder / "best.proved.safetensors"
        network.save(file)
        (folder / "config.toml").write_text(TrainConfig(**{"data": "digits", **options}).to_toml())
        (folder / "environment.json").write_text(
            json.dumps({"lipcert": "0.1", "torch": "2", "cpu": "a <CPU>", "command": "lipcert train --out x"})
        )
        (folder / "metrics.jsonl").write_text("".join(json.dumps(epoch(i)) + "\n" for i in range(1, 4)))
        zeros = torch.zeros(8, dtype=torch.float64)
        found = Certificates(outcomes.prediction, outcomes.radius, outcomes.runner_up, zeros + 1, zeros, 4.0)
        about = Images(images.name, images.fingerprint, len(images), images.labels)
        write_records(folder, found, about, network=network, file=file)
        if audited:
            write_audit(folder, outcomes)
        return folder

    return make


def epoch(number: int) -> dict[str, Any]:
    held_out = {
        "images": 10,
        "standard": 0.5,
        "certified": {"36/255": 0.4, "72/255": 0.3, "108/255": 0.1 * number},
    }
    return {
        "kind": "epoch", "step": number, "epoch": float(number), "loss": 1 / number, "lr": 0.1,
        "elapsed": 2.0 * number, "images_per_second": 10.0, "held_out": held_out, "best": number == 2,
    }  # fmt: skip


def write_audit(folder: Path, outcomes: Outcomes, *, broken: int = 0) -> None:
    from lipcert.certify.records import read_records

    summary = {
        "images": 8, "certified": int((outcomes.radius > 0).sum()), "broken": broken,
        "attacks": ["pgd"], "points_tried": 1234, "points_inside": 100,
        "ratio": {"smallest": 1.02, "median": 1.5},
        "network_sha256": read_records(folder).header.network_sha256,
    }  # fmt: skip
    (folder / "audit.json").write_text(json.dumps(summary))
    lines = [
        {"radius": r, "distance": None if i == 0 else 1.1 * r + 0.01}
        for i, r in enumerate(outcomes.radius.tolist())
    ]
    (folder / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
