"""A tiny network on the digits, taught for a moment, and saved as the folder of a run."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import lipcert as lc
from lipcert.data import Dataset, load, to_float
from lipcert.explore.choices import Choices, choices
from lipcert.explore.state import Explorer
from lipcert.models.lipconvnet import LipConvnet
from lipcert.runs.config import TrainConfig

WIDTH, STEPS = 4, 40


@pytest.fixture(scope="session")
def network() -> LipConvnet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = lc.lipconvnet(5, num_classes=10, width=WIDTH, image_size=8, in_channels=1)
        digits = load("digits")
        images, labels = to_float(digits.images), digits.labels
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for _ in range(STEPS):
            rows = torch.randint(len(images), (128,))
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits", split="test")


@pytest.fixture(scope="session")
def explorer(network: LipConvnet) -> Explorer:
    return Explorer(lc.prove(network))


@pytest.fixture(scope="session")
def offered(explorer: Explorer, digits: Dataset) -> Choices:
    return choices(explorer, digits)


@pytest.fixture(scope="session")
def run(network: LipConvnet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The part of a run's folder that the explorer reads."""
    folder = tmp_path_factory.mktemp("runs") / "digits-tiny"
    folder.mkdir()
    lc.save(network, folder / "best.safetensors")
    (folder / "config.toml").write_text(TrainConfig(data="digits", width=WIDTH, epochs=1).to_toml())
    return folder
