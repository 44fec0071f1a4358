"""Save and load: the same network back, one file, whole or not at all, and one sentence for every damage."""

import copy
import dataclasses
import json
import math
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import lipcert as lc
from lipcert.errors import ArgumentError, CheckpointError, LipcertError
from lipcert.models.compact import compact, expand
from lipcert.models.lipconvnet import LipConvnet
from lipcert.models.storage import load, weights_hash
from lipcert.nn import CONVOLUTIONS, SOC
from lipcert.runs.naming import find_run


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


def peak_memory() -> int:
    """Most memory that this process has ever held, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("conv", CONVOLUTIONS)
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_precision_of_colour_networks_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    model = tiny(in_channels=3).to(dtype)
    lc.save(model, tmp_path / "a.safetensors")
    assert weights_hash(load(tmp_path / "a.safetensors")) == weights_hash(model)


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


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("depth", 10**9),
        ("width", 10**9),
        ("image_size", 10**9),
        ("image_size", 2**30),
        ("num_classes", 10**12),
        ("in_channels", 10**9),
        ("depth", 10**400),
        ("width", 10**400),
        ("image_size", 10**400),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_description_larger_than_its_file_is_refused_at_once(
    file: Path, setting: str, value: int, compacted: bool
) -> None:
    lc.save(tiny(), file, compact=compacted)
    rewrite(file, {"config": {**dataclasses.asdict(tiny().config), setting: value}})
    started, before = time.perf_counter(), peak_memory()
    with pytest.raises(CheckpointError, match="describes a network that cannot be built"):
        lc.load(file)
    assert time.perf_counter() - started < 1
    assert peak_memory() - before < 2**26


@pytest.mark.parametrize(
    "change",
    [
        {"num_classes": 80, "image_size": 20},
        {"in_channels": 80, "mean": [0.5] * 80, "std": [0.25] * 80},
    ],
    ids=["head", "first layer"],
)
def test_a_description_whose_matrices_are_larger_than_its_file_is_refused(
    file: Path, change: dict[str, object]
) -> None:
    rewrite(file, {"config": {**dataclasses.asdict(tiny().config), **change}})
    with pytest.raises(CheckpointError, match="describes a network that cannot be built"):
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
    with pytest.raises(CheckpointError, match=r"nett: no such file .* no network .*; did you mean 'net'"):
        lc.load("nett")


def test_a_name_of_the_zoo_is_proved_or_trainable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipcert.zoo.FOLDER", file.parent)
    proved = lc.prove(load(file))
    proved.save(file.parent / "net.proved.safetensors")
    found = lc.load("net")
    assert isinstance(found, lc.ProvedNetwork)
    assert found.hash == proved.hash
    assert find_run("net").weights == file  # what training starts from


def test_the_folder_of_a_run(file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    file.rename(run / "best.safetensors")
    going_on = lc.load(run)
    assert isinstance(going_on, LipConvnet)
    lc.prove(going_on).save(run / "best.proved.safetensors")
    assert isinstance(lc.load(run), lc.ProvedNetwork)
    assert isinstance(lc.load(run / "best.safetensors"), LipConvnet)
    assert isinstance(lc.load(str(run / "best.proved.safetensors")), lc.ProvedNetwork)


def test_a_proved_file_is_told_by_what_it_holds(file: Path, tmp_path: Path) -> None:
    lc.prove(load(file)).save(tmp_path / "other.safetensors")
    file.rename(tmp_path / "weights.proved.safetensors")
    assert isinstance(lc.load(tmp_path / "other.safetensors"), lc.ProvedNetwork)
    assert isinstance(lc.load(tmp_path / "weights.proved.safetensors"), LipConvnet)


def test_a_proved_file_holds_no_trainable_weights(file: Path) -> None:
    lc.prove(load(file)).save(file)
    with pytest.raises(CheckpointError, match=r"a safetensors file, but not one that lipcert.save wrote"):
        load(file)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not the folder of a run; expected best"):
        lc.load(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write there .*create the folder first"):
        lc.save(tiny(), tmp_path / "no" / "a.safetensors")


def test_other_models_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"model: expected a network made by lipcert\.lipconvnet or .*, got Linear"
    ):
        lc.models.save(nn.Linear(2, 2), tmp_path / "a.safetensors")


def test_own_models_are_saved_as_what_is_proved(tmp_path: Path) -> None:
    block = lc.Residual(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()))
    model = lc.average([nn.Sequential(block, nn.Flatten(), nn.Linear(32, 3)) for _ in range(2)])
    images = torch.rand(4, 2, 4, 4)
    lc.save(model, tmp_path / "a.safetensors", input_shape=(2, 4, 4), classes="abc")
    loaded = lc.load(tmp_path / "a.safetensors")
    assert isinstance(loaded, lc.ProvedNetwork)
    assert loaded.classes == ("a", "b", "c")
    with torch.no_grad():
        expected = model.double().eval()(images.double())
    torch.testing.assert_close(loaded.logits(images), expected, rtol=0, atol=1e-13)
    lc.save(loaded, tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Flatten(), {"compact": True}, "compact: only the weights of a builder's network can be rounded"),
        (nn.Flatten(), {}, "input_shape: Flatten does not say which images it takes"),
        (nn.GELU(), {"input_shape": (4, 1, 1)}, "model: GELU has no proved bound"),
        (tiny, {"classes": "ab"}, "input_shape, classes: the network has its own; leave them out"),
    ],
)
def test_what_cannot_be_saved_is_refused(
    model: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LipcertError, match=message):
        lc.save(model if isinstance(model, nn.Module) else model(), tmp_path / "a.safetensors", **options)
    assert not list(tmp_path.iterdir())


def test_a_network_that_runs_twice_is_stored_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.Flatten(), nn.Linear(32 * 64, 4))
    lc.save(model, tmp_path / "one.safetensors", input_shape=(1, 8, 8))
    lc.save(lc.mirrored(model), tmp_path / "two.safetensors", input_shape=(1, 8, 8))
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("one", "two")]
    assert sizes[1] < 1.2 * sizes[0]


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
    model.body[0].activation1 = lc.GroupSort(4)
    with pytest.raises(
        ArgumentError, match=r"stage1\.activation1: .*GroupSort\(4\): is not what lipconvnet made"
    ):
        lc.save(model, tmp_path / "m.safetensors")
    model = tiny()
    model.body[0].conv1.series = "wide"
    with pytest.raises(ArgumentError, match=r"body\.stage1\.conv1: .*SOC\(.*series='wide'\): is not what"):
        lc.save(model, tmp_path / "m.safetensors")
    model = tiny()
    model.append(lc.MaxMin())
    with pytest.raises(ArgumentError, match=r"^4: .*MaxMin\(\): is not what"):
        lc.save(model, tmp_path / "m.safetensors")
    model = tiny()
    del model.body.stage2
    with pytest.raises(ArgumentError, match="is not what lipconvnet made"):
        lc.save(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_what_others_note_on_a_network_is_no_change(tmp_path: Path) -> None:
    model = tiny()
    name = weights_hash(model)
    model.name = "run 7"  # type: ignore[assignment]
    model.head.register_forward_hook(lambda module, given, logits: 2 * logits)
    assert weights_hash(model) == name
    lc.save(model, tmp_path / "m.safetensors")
    assert weights_hash(load(tmp_path / "m.safetensors")) == name


class MaxMin(lc.MaxMin):
    """Called as one of lipcert's, and another function."""

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Doubled(LipConvnet):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_what_is_no_longer_what_lipconvnet_made_is_not_saved(tmp_path: Path) -> None:
    model = tiny(activation="maxmin")
    model.body.stage1.activation1 = MaxMin()  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match=r"activation1: .*MaxMin\(\): is not what lipconvnet made"):
        lc.save(model, tmp_path / "a.safetensors")
    with pytest.raises(ArgumentError, match="got Doubled"):
        lc.models.save(Doubled(tiny().config), tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [None, "written otherwise"])
def test_the_hash_of_weights_is_the_same_in_every_version(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        monkeypatch.setattr(lc.SOC, "extra_repr", lambda self: text)
    model = tiny()
    for name, tensor in model.state_dict().items():
        tensor.fill_(len(name) / 64)
    assert weights_hash(model) == "22ee5e397efca74de7e85d994fef07373550ea3772c3f5f41b1dc547ce40aff8"
    other = tiny(series="exponential")
    other.load_state_dict(model.state_dict())
    assert weights_hash(other) != weights_hash(model)


@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_the_hash_sees_every_number_and_its_precision(conv: str) -> None:
    model = tiny(conv=conv, image_size=8)
    seen = {weights_hash(model), weights_hash(copy.deepcopy(model).double())}
    for tensor in model.state_dict().values():
        if tensor.numel():
            tensor.view(-1)[-1] += 2.0**-10
            seen.add(weights_hash(model))
    filled = sum(tensor.numel() > 0 for tensor in model.state_dict().values())
    assert len(seen) == filled + 2


def test_the_hash_is_that_of_the_file(file: Path) -> None:
    assert weights_hash(load(file)) == weights_hash(load(file))
    model = load(file)
    lc.save(model, file)
    assert weights_hash(load(file)) == weights_hash(model)


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


@pytest.mark.parametrize("change", [lambda weight: weight.to("meta"), lambda weight: weight.to_sparse()])
@pytest.mark.parametrize("use", [lc.freeze, lambda model: lc.save(model, "never"), lc.prove])
def test_tensors_without_plain_numbers_are_refused(
    change: Callable[[Tensor], Tensor], use: Callable[[nn.Module], object]
) -> None:
    model = tiny()
    layer: SOC = model.body.stage1.conv1  # type: ignore[union-attr, assignment]
    layer.weight = nn.Parameter(change(layer.weight.detach()))
    with pytest.raises(LipcertError, match=r"sparse or meta|cannot be copied and converted"):
        use(model)


def test_numbers_that_are_not_finite_are_named(file: Path) -> None:
    model = load(file)
    with torch.no_grad():
        model.body.stage1.conv1.bias.fill_(math.nan)  # type: ignore[union-attr, operator]
    lc.save(model, file)
    with pytest.raises(CheckpointError, match=r"body\.stage1\.conv1\.bias has numbers that are not finite"):
        lc.load(file)
