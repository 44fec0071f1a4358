"""Save and load: the same network back, one file, whole or not at all, and one sentence for every damage."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import lipcert as lc
from lipcert.certify.exact import network_hash
from lipcert.errors import ArgumentError, CheckpointError, LipcertError, NotProvedError
from lipcert.models.compact import compact, expand
from lipcert.models.lipconvnet import LipConvnet
from lipcert.nn import SOC


def tiny(**arguments: object) -> LipConvnet:
    defaults = {"depth": 5, "num_classes": 3, "width": 2, "image_size": 4, "in_channels": 1}
    return lc.lipconvnet(**{**defaults, **arguments})  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.safetensors"
    lc.save(tiny(), path)
    return path


def rewrite(
    path: Path, change: dict[str, object] | None = None, tensors: dict[str, torch.Tensor] | None = None
) -> None:
    """The same file with another header or other tensors."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as content:
        header = json.loads(content.metadata()["lipcert"])
    contents = load_file(path) if tensors is None else tensors
    save_file(contents, path, {"lipcert": json.dumps({**header, **(change or {})})})


@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
@pytest.mark.parametrize("head", ["lln", "orthogonal"])
def test_a_trained_network_comes_back(tmp_path: Path, conv: str, head: str) -> None:
    model = tiny(conv=conv, head=head, std=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(4, 1, 4, 4)).square().sum().backward()
        optimizer.step()
    lc.save(model, tmp_path / "a.safetensors")
    loaded = lc.load(tmp_path / "a.safetensors")
    images = torch.rand(5, 1, 4, 4)
    assert not loaded.training
    assert loaded.config == model.config
    with torch.no_grad():
        assert torch.equal(loaded(images), model.eval()(images))
    assert torch.equal(lc.certify(loaded, images).radius, lc.certify(model, images).radius)
    assert all(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_precision_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    model = tiny().to(dtype)
    lc.save(model, tmp_path / "a.safetensors")
    loaded = lc.load(tmp_path / "a.safetensors")
    assert all(
        torch.equal(a, b) and a.dtype == b.dtype
        for a, b in zip(loaded.parameters(), model.parameters(), strict=True)
    )


def test_load_draws_no_random_numbers(file: Path) -> None:
    before = torch.get_rng_state()
    lc.load(file)
    assert torch.equal(torch.get_rng_state(), before)


def test_wrapped_models_are_saved_as_themselves(tmp_path: Path) -> None:
    model = tiny()
    lc.save(nn.DataParallel(model), tmp_path / "a.safetensors")
    assert torch.equal(lc.load(str(tmp_path / "a.safetensors")).head.weight, model.head.weight)  # type: ignore[arg-type]


def test_a_failed_write_leaves_the_old_file_and_no_other(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match=r"cannot write there .No space left on device"):
        lc.save(tiny(), file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_who_reads_the_old_file_goes_on_reading_it(file: Path) -> None:
    before = file.read_bytes()
    with file.open("rb") as reader:
        lc.save(tiny(), file)
        assert reader.read() == before
    assert file.read_bytes() != before


def test_a_saved_file_has_ordinary_permissions(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_no_pickle_is_ever_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not a safetensors file, or a truncated one"):
        lc.load(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_truncated_files(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match="not a safetensors file, or a truncated one"):
        lc.load(file)


def test_foreign_files(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match=r"a safetensors file, but not one that lipcert.save wrote"):
        lc.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2, "lipcert": "9.1"}, "has format 2, this version reads 1; use lipcert 9.1 or newer"),
        ({"model": "resnet"}, "describes no network that this version knows"),
        ({"config": {"depth": 5}}, "its description lacks or adds settings: activation, conv"),
        ({"config": 3}, "its description lacks or adds settings"),
    ],
)
def test_other_headers(file: Path, change: dict[str, object], message: str) -> None:
    rewrite(file, change)
    with pytest.raises(CheckpointError, match=message):
        lc.load(file)


def test_a_header_that_cannot_be_built(file: Path) -> None:
    config = {**tiny().config.__dict__, "conv": "sco"}
    rewrite(file, {"config": config})
    with pytest.raises(CheckpointError, match=r"cannot be built .*did you mean 'soc'"):
        lc.load(file)


def test_a_damaged_header(file: Path) -> None:
    save_file(load_file(file), file, {"lipcert": "{"})
    with pytest.raises(CheckpointError, match="its description is damaged"):
        lc.load(file)


def test_all_that_does_not_fit_is_named(file: Path) -> None:
    tensors = load_file(file)
    del tensors["head.bias"]
    tensors["extra.weight"] = torch.zeros(1)
    tensors["head.weight"] = torch.zeros(2, 2)
    rewrite(file, tensors=tensors)
    with pytest.raises(
        CheckpointError, match=r"missing head\.bias; extra extra\.weight; size mismatch for head\.weight"
    ):
        lc.load(file)


def test_integers_in_the_place_of_weights(file: Path) -> None:
    tensors = load_file(file)
    tensors["head.bias"] = torch.zeros(3, dtype=torch.int64)
    rewrite(file, tensors=tensors)
    with pytest.raises(CheckpointError, match=r"head\.bias expected torch\.float32, got torch\.int64"):
        lc.load(file)


def test_names_of_the_zoo(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipcert.zoo.FOLDER", file.parent)
    assert isinstance(lc.load("net"), LipConvnet)
    with pytest.raises(CheckpointError, match=r"nett: no such file, and no network .*; did you mean 'net'"):
        lc.load("nett")


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a \.safetensors file, got a folder"):
        lc.load(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write there .*create the folder first"):
        lc.save(tiny(), tmp_path / "no" / "a.safetensors")


def test_other_models_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"model: expected a network made by lipcert\.lipconvnet, got Linear"
    ):
        lc.save(nn.Linear(2, 2), tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("conv", "head"), [("soc", "lln"), ("soc", "orthogonal"), ("bcop", "lln"), ("cayley", "lln")]
)
def test_a_compact_file_is_small_and_nearly_the_same_network(tmp_path: Path, conv: str, head: str) -> None:
    torch.manual_seed(0)
    model = lc.lipconvnet(depth=5, conv=conv, head=head, width=8, num_classes=4, activation="hh1").eval()
    lc.save(model, tmp_path / "whole.safetensors")
    lc.save(model, tmp_path / "small.safetensors", compact=True)
    small = lc.load(tmp_path / "small.safetensors")
    ratio = (tmp_path / "small.safetensors").stat().st_size / (tmp_path / "whole.safetensors").stat().st_size
    assert ratio < (0.45 if conv == "soc" else 0.6)
    images = torch.rand(8, 3, 32, 32)
    # bfloat16 moves every weight by up to 2^-9 of itself.
    assert (small(images) - model(images)).norm() < 0.05 * model(images).norm()
    assert small.normalize.std.equal(model.normalize.std)
    # What was rounded once is not rounded again: a compact network is saved and loaded without change.
    lc.save(small, tmp_path / "again.safetensors", compact=True)
    again = lc.load(tmp_path / "again.safetensors")
    before, after = small.state_dict(), again.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_compact_weights_without_rounding_are_the_same_operator() -> None:
    layer = SOC(4, 8, 3)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.to(torch.bfloat16))
        layer.weight[0] = torch.randint(-8, 8, layer.weight[0].shape).float() * 2  # halves are exact
    network = nn.Sequential(layer).eval()
    state = expand(network, compact(network))
    x = torch.rand(2, 4, 6, 6)
    expected = network(x)
    network.load_state_dict(state)
    # Another largest entry scales the taps otherwise before the same norm is divided out.
    torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-6)


def test_compact_taps_that_do_not_fit_are_named() -> None:
    network = nn.Sequential(SOC(4, 8, 3))
    tensors = compact(network)
    tensors["0.centre"] = tensors["0.centre"][1:]
    with pytest.raises(CheckpointError, match=r"0\.weight: its taps are missing or of another size"):
        expand(network, tensors)


def test_a_network_whose_layers_were_exchanged_is_not_saved_as_the_one_before(tmp_path: Path) -> None:
    model = tiny(width=4, activation="maxmin")
    name = network_hash(model)
    model.body[0].activation1 = lc.GroupSort(4)
    assert network_hash(model) != name
    with pytest.raises(ArgumentError, match=r"stage1.activation1: GroupSort .* is not what"):
        lc.save(model, tmp_path / "m.safetensors")
    model = tiny()
    model.body[0].conv1.series = "wide"
    with pytest.raises(ArgumentError, match=r"body.stage1.conv1: SOC .*'series': 'wide'.* is not what"):
        lc.save(model, tmp_path / "m.safetensors")


def test_what_others_note_on_a_network_is_no_change(tmp_path: Path) -> None:
    model = tiny()
    name = network_hash(model)
    model.name = "run 7"  # type: ignore[assignment]
    model.normalize.register_full_backward_hook(lambda *_: None).remove()
    assert network_hash(model) == name
    lc.save(model, tmp_path / "m.safetensors")


class MaxMin(lc.LipschitzModule):
    """Called as one of lipcert's, and another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Doubled(LipConvnet):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_what_is_no_longer_what_lipconvnet_made_is_not_saved(tmp_path: Path) -> None:
    model = tiny(activation="maxmin")
    name = network_hash(model)
    model.body.stage1.activation1 = MaxMin()  # type: ignore[union-attr]
    assert network_hash(model) != name
    with pytest.raises(ArgumentError, match=r"activation1: .*MaxMin .* is not what lipconvnet made"):
        lc.save(model, tmp_path / "a.safetensors")
    doubled = Doubled(tiny().config)
    doubled.load_state_dict((plain := tiny()).state_dict())
    assert network_hash(doubled) != network_hash(plain)
    with pytest.raises(LipcertError, match="Doubled"):
        lc.save(doubled, tmp_path / "a.safetensors")
    plain.head.register_forward_hook(lambda module, given, logits: 2 * logits)
    with pytest.raises(NotProvedError, match=r"head: .* has a forward hook"):
        lc.save(plain, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_layers_that_share_weights_are_saved(tmp_path: Path, compacted: bool, whole: bool) -> None:
    model = tiny(image_size=8, depth=15).eval()
    stage = model.body.stage2
    if whole:
        stage.conv2 = stage.conv1
        stage = model.body.stage1
    stage.conv1.weight = stage.conv2.weight
    lc.save(model, tmp_path / "a.safetensors", compact=compacted)
    loaded = lc.load(tmp_path / "a.safetensors")
    images = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(images), model(images), rtol=0.1 if compacted else 0, atol=0.1 if compacted else 0
        )


def test_a_loaded_network_does_not_change_with_its_file(file: Path, tmp_path: Path) -> None:
    model = lc.load(file)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lc.save(tiny(), tmp_path / "other.safetensors")
    file.write_bytes((tmp_path / "other.safetensors").read_bytes())  # in place, as cp does
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
