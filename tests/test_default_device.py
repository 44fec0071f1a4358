"""A default device of the user's own: what lipcert makes for itself stays with the model or on the CPU.

On the meta device nothing can be computed, so whatever is made there by mistake fails at once.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.models.lipconvnet import LipConvnet

IMAGES = torch.rand(3, 1, 8, 8)
LABELS = torch.tensor([0, 1, 2])


def step(model: LipConvnet, folder: Path) -> None:
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(IMAGES)
    lc.CertificateLoss(0.5)(model, logits, LABELS).backward()


def save_and_load(model: LipConvnet, folder: Path) -> None:
    lc.save(model, folder / "m.safetensors", compact=True)
    loaded = lc.load(folder / "m.safetensors")
    assert all(p.device.type == "cpu" for p in loaded.parameters())


def count(model: LipConvnet, folder: Path) -> None:
    found = lc.certify(model, IMAGES)
    assert lc.certified_accuracy(found, LABELS).count == 3


USES: dict[str, Callable[[LipConvnet, Path], object]] = {
    "certify": count,
    "freeze": lambda model, _: lc.freeze(model)(IMAGES),
    "prove": lambda model, _: lc.prove(model).hash,
    "estimate": lambda model, _: lc.lipschitz_estimate(model, iterations=3),
    "audit": lambda model, _: lc.audit(model, IMAGES, attacks=["noise", "pgd", "pgd-minimal"]),
    "train": step,
    "save": save_and_load,
    "data": lambda model, _: lc.data.to_float(lc.data.load("digits", split="test").images[:3]),
}


CONVOLUTIONS = ["soc", "bcop", "cayley", "lot", "bro", "aoc"]
# An audit sees operators alone, whatever they were frozen from.
PAIRS = [(use, conv) for use in USES for conv in (CONVOLUTIONS if use != "audit" else ["soc"])]


@pytest.mark.parametrize(("use", "conv"), PAIRS)
def test_a_default_device_is_no_obstacle(use: str, conv: str, tmp_path: Path) -> None:
    head = "orthogonal" if conv == "soc" else "lln"
    model = lc.lipconvnet(5, conv, "hh2", head, 4, width=4, image_size=8, in_channels=1).eval()
    with torch.device("meta"):
        USES[use](model, tmp_path)
