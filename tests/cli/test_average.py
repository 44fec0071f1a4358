"""lipcert average: proved networks become one, which every command takes."""

from pathlib import Path

import lipcert as lc

from .conftest import Command


def test_an_average_is_certified_and_verified(command: Command, tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.safetensors" for k in range(2)]
    for file in files:
        model = lc.lipconvnet(5, num_classes=10, width=2, image_size=8, in_channels=1)
        lc.prove(model, classes="0123456789").save(file)
    best = tmp_path / "best.proved.safetensors"
    made = command("average", *files, "--mirrored", "--out", best)
    assert made.code == 0, made.err
    assert "average of 2" in made.out
    assert f"lipcert certify {best} --data IMAGES" in " ".join(made.out.split())
    assert len(lc.load(best).layers) == 1 + 4 * len(lc.load(files[0]).layers)
    out = tmp_path / "out"
    assert command("certify", best, "--data", "digits", "--count", 24, "--out", out).code == 0
    assert command("verify", out, "--sample", 6).code == 0


def test_networks_of_other_classes_are_refused(command: Command, tmp_path: Path) -> None:
    for k in (2, 3):
        model = lc.lipconvnet(5, num_classes=k, width=2, image_size=8, in_channels=1)
        lc.save(model, tmp_path / f"{k}.safetensors")
    found = command(
        "average", tmp_path / "2.safetensors", tmp_path / "3.safetensors", "--out", tmp_path / "a.safetensors"
    )
    assert found.code == 2
    assert "3.safetensors: expected the classes of the first network" in " ".join(found.err.split())
