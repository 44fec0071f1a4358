"""Runs that begin with the weights of another network."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import lipcert as lc
from lipcert import zoo
from lipcert.certify.curve import RADII
from lipcert.cli.train import collect_options
from lipcert.data import Dataset
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.models.lipconvnet import LipConvnet
from lipcert.models.storage import load as load_weights
from lipcert.models.storage import weights_hash
from lipcert.runs.config import TrainConfig
from lipcert.runs.naming import find_run
from lipcert.training import trainer
from lipcert.training.interruption import Interrupted
from lipcert.training.loop import train
from lipcert.training.parts import Split
from lipcert.training.start import begin_with, refuse_other_split

from .test_training_loop import QUICK, StopAt, assert_same_bits, weights

STILL = 1e-30
"""A learning rate that changes no bit of a weight."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose best model is not its last."""
    out: Path = tmp_path_factory.mktemp("runs") / "first"
    shares = iter((0.5, 0.25))

    def falling(*_: object) -> dict[str, object]:
        share = next(shares)
        return {"label": "x", "images": 1000, "standard": share, "certified": dict.fromkeys(RADII, share)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "held_out_accuracy", falling)
        assert train(replace(QUICK, epochs=2), out).best["step"] == 5
    return out


def test_a_run_begins_with_the_best_model_of_another(first: Path, tmp_path: Path) -> None:
    later = replace(QUICK, epochs=1, lr=STILL, weight_decay=0.0, start_from=str(first))
    progress = StopAt(-1)
    train(later, tmp_path / "later", progress=progress)
    assert progress.said[0] == f"starts from {first}, with its own head"
    mine, theirs = weights(tmp_path / "later"), weights(first, "best.safetensors")
    learned = [name for name in theirs if name.endswith(("weight", "bias", "angles", "theta"))]
    assert len(learned) >= 8
    assert_same_bits({name: mine[name] for name in learned}, {name: theirs[name] for name in learned})


def test_it_learns_on(first: Path, tmp_path: Path) -> None:
    before = train(replace(QUICK, epochs=2), tmp_path / "same")
    after = train(replace(QUICK, epochs=2, start_from=str(first)), tmp_path / "later")
    assert after.loss < before.loss
    assert 'start_from = "' in (tmp_path / "later" / "config.toml").read_text()


def test_a_run_tells_what_it_started_from(first: Path, tmp_path: Path) -> None:
    def told(out: Path) -> dict[str, object]:
        found: dict[str, object] = json.loads((out / "environment.json").read_text())["started_from"]
        return found

    second, third = tmp_path / "second", tmp_path / "third"
    with pytest.raises(Interrupted):
        train(replace(QUICK, start_from=str(first)), second, progress=StopAt(7))
    train(replace(QUICK, start_from=str(first)), second, resume=True)
    sha = weights_hash(load_weights(first / "best.safetensors"))
    assert told(second) == {
        "network": str(first), "weights_sha256": sha, "epochs": 2.0, "head": "taken"
    }  # fmt: skip
    train(replace(QUICK, epochs=1, start_from=str(second)), third)
    assert told(third)["epochs"] == 5.0
    train(replace(QUICK, epochs=1, start_from=str(second / "model.safetensors")), tmp_path / "fourth")
    assert told(tmp_path / "fourth")["epochs"] is None
    assert "started_from" not in json.loads((first / "environment.json").read_text())


def small(**changes: object) -> LipConvnet:
    options = {"depth": 5, "num_classes": 10, "width": 2, "image_size": 8, "in_channels": 1} | changes
    return lc.lipconvnet(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"num_classes": 3}, {"head": "orthogonal"}, {"image_size": 24}])
def test_another_head_stays_random(tmp_path: Path, changes: dict[str, object]) -> None:
    torch.manual_seed(0)
    saved = small()
    saved.train()(torch.rand(2, 1, 8, 8))  # buffers take their shapes from the maps
    lc.save(saved, tmp_path / "saved.safetensors")
    model = small(**changes)
    drawn = {name: value.clone() for name, value in model.head.state_dict().items()}
    assert begin_with(model, find_run(tmp_path / "saved.safetensors"), "it")["head"] == "random"
    assert_same_bits(model.body.state_dict(), saved.body.state_dict())
    assert_same_bits(model.head.state_dict(), drawn)


def test_the_zoo_is_a_start() -> None:
    name = "lipconvnet5-cifar10"
    options, _ = collect_options({"start_from": name}, out=Path("none"), config=None, resume=False)
    assert (options.width, options.series, options.head, options.image_size) == (
        16,
        "wide",
        "orthogonal",
        None,
    )
    shipped = load_weights(zoo.networks()[name])
    model = lc.lipconvnet(depth=5, head="lln", num_classes=3, width=options.width, series=options.series)
    told = begin_with(model, find_run(name), name)
    card = json.loads((zoo.FOLDER / f"{name}.json").read_text())
    assert told["weights_sha256"] == card["weights_sha256"]
    before = card["training"].get("started_from", {"epochs": 0})
    assert told["epochs"] == card["training"]["epochs"] + before["epochs"]
    assert all(value.dtype == torch.float32 for value in model.parameters())
    kernel = model.body.stage2.conv1.weight  # type: ignore[union-attr]
    assert torch.equal(kernel, shipped.body.stage2.conv1.weight.float())  # type: ignore[union-attr, operator]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    lc.save(small(), tmp_path / "a.safetensors")
    with pytest.raises(
        ArgumentError, match=r"a\.safetensors has depth 5, width 2, but this run depth 10, width 4"
    ):
        begin_with(small(depth=10, width=4), find_run(tmp_path / "a.safetensors"), "a.safetensors")


def test_a_start_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no network of this name ships"):
        train(replace(QUICK, start_from="lipconvnet99"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_does_not_need_its_start_any_more(first: Path, tmp_path: Path) -> None:
    copy = shutil.copy(first / "best.safetensors", tmp_path / "start.safetensors")
    config = replace(QUICK, start_from=str(copy))
    train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", progress=StopAt(7))
    copy.unlink()
    train(config, tmp_path / "parts", resume=True)
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_options_of_the_command_come_from_the_start_unless_given(tmp_path: Path) -> None:
    lc.save(small(activation="maxmin"), file := tmp_path / "a.safetensors")
    photos = tmp_path / "photos"
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):  # only counted, not read
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).touch()
    given = {"start_from": str(file), "data": str(photos)}
    options, _ = collect_options(given, out=tmp_path, config=None, resume=False)
    assert (options.activation, options.width, options.image_size) == ("maxmin", 2, 8)
    asked, _ = collect_options(given | {"width": 4}, out=tmp_path, config=None, resume=False)
    assert asked.width == 4  # and `begin_with` says that it does not fit
    other, _ = collect_options(given | {"conv": "bcop"}, out=tmp_path, config=None, resume=False)
    assert (other.conv, other.series) == ("bcop", TrainConfig.series)
    (tmp_path / "b.toml").write_text(f'start_from = "{file}"\nwidth = 4\ndata = "digits"\n')
    read, _ = collect_options({}, out=tmp_path, config=tmp_path / "b.toml", resume=False)
    assert (read.width, read.activation, read.image_size) == (4, "maxmin", 8)


def test_no_file_of_a_run_is_changed_by_those_that_start_from_it(first: Path, tmp_path: Path) -> None:
    before = load_file(first / "best.safetensors")
    train(replace(QUICK, epochs=1, start_from=str(first / "best.safetensors")), tmp_path / "later")
    assert_same_bits(before, load_file(first / "best.safetensors"))


def test_fewer_images_may_be_held_out_than_at_the_start_but_not_more(first: Path, tmp_path: Path) -> None:
    fewer = replace(QUICK, epochs=1, start_from=str(first), held_out=100)
    train(fewer, tmp_path / "fewer")
    more = replace(QUICK, start_from=str(tmp_path / "fewer"), seed=1)
    with pytest.raises(ArgumentError, match=r"images that trained it .* its held_out 100 or fewer"):
        train(more, tmp_path / "more")
    for file in (tmp_path / "fewer").glob("checkpoint*"):
        file.unlink()
    with pytest.raises(ArgumentError, match="images that trained it"):
        train(more, tmp_path / "more")


def test_other_files_in_the_folder_of_the_start_are_refused(tmp_path: Path) -> None:
    def add(name: str, count: int) -> None:
        for kind in ("a", "b"):
            (tmp_path / "photos" / kind).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / kind / f"{name}{number}.png")

    add("old", 20)
    config = TrainConfig(
        data=str(tmp_path / "photos"), width=2, epochs=1, batch_size=8, image_size=8, threads=1
    )
    train(config, tmp_path / "first")
    later = replace(config, start_from=str(tmp_path / "first"))
    train(later, tmp_path / "second")
    add("new", 2)
    with pytest.raises(ArgumentError, match=r"select or test this run; .* the same files"):
        train(later, tmp_path / "third")
    with pytest.raises(ArgumentError, match="the same files"):
        train(replace(later, image_size=24), tmp_path / "third")


def test_the_split_of_the_zoo_is_kept() -> None:
    config = TrainConfig(data="cifar10", start_from="lipconvnet5-cifar10")
    start = find_run("lipconvnet5-cifar10")
    pixels, labels = torch.zeros(60_000, 1, 1, 1, dtype=torch.uint8), torch.arange(60_000) % 10
    images = Dataset("like cifar10", pixels, labels, tuple("0123456789"))
    split = Split(images, images, images.fingerprint, images.labels)
    refuse_other_split(start, config, split)
    refuse_other_split(start, replace(config, data="cifar100", seed=1), split)
    refuse_other_split(start, replace(config, held_out=1000), split)
    refuse_other_split(start, replace(config, seed=1), split)
    with pytest.raises(ArgumentError, match="use its held_out 5000 or fewer"):
        refuse_other_split(start, replace(config, held_out=5010), split)


def test_a_start_is_one_thing(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "lipconvnet5-cifar10"
    assert find_run(name).all_epochs is not None
    Path(name).mkdir()
    assert find_run(name).weights == zoo.FOLDER / f"{name}.safetensors"
    shutil.copy(first / "best.safetensors", name)  # a run that is not finished
    shutil.copy(first / "config.toml", name)
    found = find_run(name)
    assert (found.weights, found.all_epochs, found.data) == (Path(name) / "best.safetensors", None, "digits")
    (Path(name) / "config.toml").unlink()
    assert find_run(name).data is None
    (Path(name) / "summary.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"summary\.json is damaged"):
        train(replace(QUICK, start_from=name), tmp_path / "run")
    Path("empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty: is not the folder of a run; expected best\.safe"):
        find_run("empty")
    lc.prove(small()).save("a.proved.safetensors")
    with pytest.raises(CheckpointError, match="is a proved network; expected trainable weights"):
        train(replace(QUICK, start_from="a.proved.safetensors"), tmp_path / "run")


def test_another_size_of_images_is_named() -> None:
    with pytest.raises(ArgumentError, match="has image_size 32, but this run image_size 50"):
        begin_with(
            lc.lipconvnet(depth=5, width=16, series="wide", image_size=50, num_classes=3),
            find_run("lipconvnet5-cifar10"),
            "lipconvnet5-cifar10",
        )
