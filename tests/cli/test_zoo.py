"""The zoo: a run becomes a network that ships, with a card whose numbers are of the network as it ships."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.certify.curve import RADII
from lipcert.certify.records import read_records
from lipcert.data import load, to_float
from lipcert.models.storage import load as load_weights
from lipcert.models.storage import weights_hash
from lipcert.runs.config import TrainConfig
from lipcert.training.loop import train
from lipcert.zoo import FOLDER as ZOO
from lipcert.zoo import certificates, proved_networks
from tools import fill_docs, make_zoo
from tools.keep import keep_runs

from .conftest import Command


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> Path:
    """A folder with one network, made from a finished run."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    for place in ("lipcert.zoo.FOLDER", "tools.make_zoo.ZOO"):
        monkeypatch.setattr(place, folder)
    card = make_zoo.make(trained, "tiny-digits")
    (folder / "tiny-digits.json").write_text(json.dumps(card))
    return folder


@pytest.mark.parametrize("card", sorted(ZOO.glob("*.json")), ids=lambda path: path.stem)
def test_what_ships_is_what_its_card_is_of(card: Path) -> None:
    known, network = json.loads(card.read_text()), lc.load(card.stem)
    assert isinstance(network, lc.ProvedNetwork)
    assert network.hash == known["network_sha256"]
    assert network.lipschitz == known["lipschitz"]
    assert weights_hash(load_weights(card.with_suffix(".safetensors"))) == known["weights_sha256"]
    assert (ZOO / f"{card.stem}.proved.safetensors").stat().st_size < make_zoo.LARGEST


@pytest.mark.parametrize("name", sorted(proved_networks()))
def test_the_certificates_that_ship_are_those_of_the_card(name: str) -> None:
    records, card = read_records(certificates()[name]), json.loads((ZOO / f"{name}.json").read_text())
    assert records.header.network_sha256 == card["network_sha256"]
    assert records.network_file == ZOO / f"{name}.proved.safetensors"
    assert len(records.rows) == card["test_images"] == 10_000
    accuracy = records.outcomes.accuracy()
    assert (accuracy.standard, records.outcomes.median_radius()) == (card["standard"], card["median_radius"])
    assert {key: accuracy[radius] for key, radius in RADII.items()} == card["certified"]
    assert certificates()[name].stat().st_size < 1e6


def test_a_network_that_ships_is_verified_by_its_name(command: Command, zoo: Path) -> None:
    result = command("verify", "tiny-digits", "--sample", 4)
    assert (result.code, result.err) == (0, "")
    assert "4 of 360 certificates derived again in numpy" in result.out
    card = json.loads((zoo / "tiny-digits.json").read_text())
    assert f"they claim {card['standard']:.2%} right" in result.out
    records = certificates()["tiny-digits"]
    records.write_bytes(records.read_bytes()[:-100])
    damaged = command("verify", "tiny-digits")
    assert (damaged.code, "is damaged" in damaged.err) == (2, True)


def test_missing_test_images_are_named_with_the_remedy(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIPCERT_DATA", str(tmp_path))
    result = command("verify", "lipconvnet5-cifar10")
    assert result.code == 2
    assert "is missing; add --download to fetch it, or run `lipcert data download cifar10`" in result.err
    asked: list[str] = []
    monkeypatch.setattr("lipcert.data.fetch.download", lambda name, **_: asked.append(name))
    assert (command("verify", "lipconvnet5-cifar10", "--download").code, asked) == (2, ["cifar10"])


@pytest.mark.slow
@pytest.mark.cifar
@pytest.mark.skipif("LIPCERT_DATA" not in os.environ, reason="needs LIPCERT_DATA, a folder with CIFAR")
@pytest.mark.parametrize("name", sorted(proved_networks()))
def test_the_zoo_holds_before_the_second_implementation(command: Command, name: str) -> None:
    result = command("verify", name, "--sample", 3)
    assert (result.code, result.err) == (0, "")
    assert "3 of 10,000 certificates derived again" in result.out


def test_the_card_is_of_the_network_as_it_ships(zoo: Path) -> None:
    card = json.loads((zoo / "tiny-digits.json").read_text())
    digits = load("digits", split="test")
    found = lc.certify(lc.load("tiny-digits"), to_float(digits.images))
    right = found.prediction == digits.labels
    assert card["standard"] == right.double().mean().item()
    assert card["certified"]["36/255"] == (right & (found.radius > 36 / 255)).double().mean().item()
    assert card["lipschitz"] == found.lipschitz
    assert card["audit"] is None


def test_list_and_show_say_what_is_proved(command: Command, zoo: Path) -> None:
    card = json.loads((zoo / "tiny-digits.json").read_text())
    assert f"{card['standard']:.2%}" in command("zoo", "list").out
    shown = command("zoo", "show", "tiny-digits").out
    assert "not attacked yet" in shown
    assert "LipConvnet-5 (SOC, hh1, LLN head, width 2)" in shown
    assert f"{card['certified']['72/255']:.2%}" in shown
    assert json.loads(command("zoo", "show", "tiny-digits", "--json").out) == card
    result = command("zoo", "show", "tiny-digit")
    assert (result.code, "did you mean 'tiny-digits'?" in result.err) == (2, True)


def test_the_audit_of_another_network_does_not_reach_the_card(command: Command, zoo: Path) -> None:
    card = json.loads((zoo / "tiny-digits.json").read_text())
    options = ["--count", "3", "--steps", "5", "--attacks", "noise,pgd", "--data", "digits"]
    assert command("audit", "tiny-digits", *options, "--out", zoo / "audit").code == 0
    with_verdict = make_zoo.add_audit(card, zoo / "audit")
    assert with_verdict["audit"]["broken"] == 0
    (zoo / "tiny-digits.json").write_text(json.dumps(with_verdict))
    assert "certificates broken by 2 attacks" in " ".join(command("zoo", "show", "tiny-digits").out.split())
    with pytest.raises(SystemExit, match="audits another network"):
        make_zoo.add_audit(card | {"network_sha256": "0"}, zoo / "audit")


def test_an_average_ships_as_one_network(
    command: Command, zoo: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TrainConfig.read(trained / "config.toml"), seed=5)
    train(config, tmp_path / "runs/other")
    monkeypatch.setattr(make_zoo, "RESULTS", tmp_path / "results")
    (other,) = keep_runs(tmp_path / "runs", tmp_path / "results", weights=True)
    card = make_zoo.make(trained, "tiny-digits", mirrored=True, other=other)
    (zoo / "tiny-digits.json").write_text(json.dumps(card))
    assert card["network"].endswith("mirrored")
    assert card["training"]["averaged_with"]["seed"] == 5
    one, two = load_weights(zoo / "tiny-digits.safetensors"), load_weights(other / "best.safetensors")
    images = to_float(load("digits", split="test").images[:8])
    mean = sum(network(turned) for network in (one, two) for turned in (images, images.flip(3))) / 4
    shipped = lc.load("tiny-digits")
    assert isinstance(shipped, lc.ProvedNetwork)
    assert torch.allclose(shipped.logits(images), mean.double(), atol=1e-4)
    told = " ".join(command("zoo", "show", "tiny-digits").out.split())
    assert "before rounding to bfloat16 and averaging and mirroring" in told
    assert "averaged with" in told
    assert fill_docs.zoo(zoo).count("width 2, 1 epoch, ") == 2
    monkeypatch.setattr("sys.argv", ["make_zoo", "--again", "tiny-digits"])
    make_zoo.main()
    assert json.loads((zoo / "tiny-digits.json").read_text()) == card


def test_a_network_that_went_on_tells_of_both_trainings(
    command: Command, zoo: Path, trained: Path, tmp_path: Path
) -> None:
    old = json.loads((zoo / "tiny-digits.json").read_text())
    config = TrainConfig.read(trained / "config.toml")
    train(replace(config, epochs=2, start_from="tiny-digits"), tmp_path / "later")
    card = make_zoo.make(tmp_path / "later", "tiny-digits")
    start = card["training"]["started_from"]
    assert start["run"] == old["training"]["run"]
    assert (start["epochs"], start["hours"]) == (old["training"]["epochs"], old["training"]["hours"])
    (zoo / "tiny-digits.json").write_text(json.dumps(card))
    told = f"1 + 2 epochs, {start['hours']:.1f} + {card['training']['hours']:.1f}"
    assert told in fill_docs.zoo(zoo)
    assert "after 1 epoch of tiny-digits" in command("zoo", "show", "tiny-digits").out
    assert make_zoo.make(tmp_path / "later", "tiny-digits") == card  # also once the old card is gone
    del card["training"]["started_from"]
    (zoo / "tiny-digits.json").write_text(json.dumps(card))
    with pytest.raises(SystemExit, match="neither ships nor has its weights"):
        make_zoo.make(tmp_path / "later", "tiny-digits")
