"""From a folder of pictures of any size to certificates, by the command line alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lipcert as lc
from lipcert.runs.run import Run

from .conftest import Command


def write_pictures(folder: Path, each: int) -> None:
    """Two classes, dark and bright pictures, no two of the same size."""
    generator = np.random.default_rng(0)
    for kind, (low, high) in {"dark": (0, 100), "bright": (156, 256)}.items():
        (folder / kind).mkdir(parents=True)
        for number in range(each):
            height, width = 70 + number, 150 - number
            levels = generator.integers(low, high, (5, 7, 3), dtype=np.uint8)
            Image.fromarray(levels).resize((width, height)).save(folder / kind / f"{number}.png")


@pytest.mark.slow
def test_pictures_of_64_pixels_from_the_network_that_ships(command: Command, tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "run"
    write_pictures(photos, 20)
    options = ("--image-size", 64, "--epochs", 2, "--threads", 1)
    trained = command("train", "--data", photos, "--out", out, *options)
    assert trained.code == 0, trained.err
    for part in ("the weights of lipconvnet5-cifar10", "resized to 64x64", "40 pictures of 2 classes"):
        assert part in trained.out
    network = lc.load(out)
    assert network.input_shape == (3, 64, 64)
    # The bound of the body is as tight as for the smaller pictures of the paper.
    assert network.lipschitz < 3.9888 * 1.001
    assert Run.at(out).summary.test["best"]["standard"] == 1.0

    certified = command("certify", out)
    assert certified.code == 0
    note = "8 of 8 pictures were cut to their centre square and resized to 64x64 pixels"
    assert note in certified.out
    assert note in " ".join((out / "report.html").read_text().split())

    picture = photos / "dark" / "19.png"  # 131 x 89
    one = json.loads(command("certify", out, "--images", picture, "--json").out)
    assert (one["prediction"], one["resized_from"]) == ("dark", "131x89")
    assert one["radius_original"] == pytest.approx(one["radius"] * 89 / 64, rel=0.05)
    assert "In the original" in command("certify", out, "--images", picture).out
    assert command("verify", out, "--sample", 1).code == 0
