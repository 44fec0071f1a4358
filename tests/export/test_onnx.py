"""ONNX files: what they state, that no part of it can be changed, and certificates from it."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.data import to_float
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.export import export_onnx, load
from lipcert.export.metadata import Metadata, is_intact, seal
from lipcert.models.lipconvnet import LipConvnet, lipconvnet

SHAPE = (3, 8, 8)
NAMES = ("cat", "dog", "bird", "frog")


def model(conv: str = "soc", head: str = "lln", size: int = 8) -> LipConvnet:
    torch.manual_seed(0)
    return lipconvnet(5, conv, "hh1", head, len(NAMES), 4, size, in_channels=3)


def some_images(size: int = 8, count: int = 5) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def network() -> ProvedNetwork:
    return prove(model(), classes=NAMES)


@pytest.fixture(scope="module")
def file(network: ProvedNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export_onnx(network, path)
    return path


@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
@pytest.mark.parametrize("size", [8, 10])
def test_radii_are_those_of_the_network(conv: str, head: str, size: int, tmp_path: Path) -> None:
    network, images = prove(model(conv, head, size)), some_images(size)
    written = export_onnx(network, tmp_path / "model.onnx")
    exported = load(written.path)
    found, expected = exported.certify(images), network.certify(images)
    assert found.lipschitz == expected.lipschitz == written.lipschitz
    assert torch.equal(found.prediction, expected.prediction)
    assert torch.equal(found.runner_up, expected.runner_up)
    # The rounding term is forty times a difference of about 1e-6; pair bounds are at least 1 here.
    assert (found.radius < expected.radius).all()
    torch.testing.assert_close(found.radius, expected.radius, rtol=0, atol=3e-4)
    assert not found.proved
    assert (found.rounding == written.rounding).all()
    assert written.rounding >= 40 * written.difference > 0


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_any_number_of_images(file: Path, count: int) -> None:
    exported = load(file)
    assert exported.logits(some_images(count=count)).shape == (count, len(NAMES))
    assert len(exported.certify(some_images(count=count))) == count


def test_images_of_every_kind(file: Path) -> None:
    exported = load(file)
    levels = (some_images() * 255).round().to(torch.uint8)
    expected = exported.certify(to_float(levels))
    assert torch.equal(exported.certify(levels.permute(0, 2, 3, 1).numpy()).radius, expected.radius)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (some_images(4), r"expected images of shape \(3, 8, 8\), which .* got \(3, 4, 4\)"),
        (some_images() * 2, r"expected raw pixels in \[0, 1\]"),
        (some_images()[0], r"add the batch axis with images\[None\]"),
    ],
)
def test_other_images(file: Path, images: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(file).certify(images)
    with pytest.raises(ArgumentError, match=message):
        load(file).logits(images)


def test_pixels_that_float32_does_not_hold_cost_their_distance(file: Path) -> None:
    exported, images = load(file), some_images().double() * (1 - 2.0**-27)
    moved = torch.linalg.vector_norm((images - images.float()).flatten(1), dim=1)
    assert (moved > 0).all()
    expected = (exported.certify(images.float()).radius - moved).clamp(min=0)
    torch.testing.assert_close(exported.certify(images).radius, expected, rtol=0, atol=1e-15)


def test_the_file_describes_itself(file: Path, network: ProvedNetwork) -> None:
    written = onnx.load(file)
    onnx.checker.check_model(written, full_check=True)
    assert {opset.domain for opset in written.opset_import} == {""}
    assert all(node.domain == "" for node in written.graph.node)
    (pixels,) = written.graph.input
    batch, *shape = pixels.type.tensor_type.shape.dim
    assert batch.dim_param == "batch"
    assert [side.dim_value for side in shape] == [3, 8, 8]
    about = {p.key.removeprefix("lipcert."): json.loads(p.value) for p in written.metadata_props}
    assert about["lipschitz"] == network.lipschitz
    assert about["pair_bounds"] == network.pair_bounds.tolist()
    assert about["network_sha256"] == network.hash
    assert about["classes"] == list(NAMES)
    assert about["input_shape"] == [3, 8, 8]
    assert about["format"] == 2
    assert "[0, 1]" in about["pixels"]
    assert "measured, not proved" in about["certificate"]


def test_a_short_form(file: Path) -> None:
    text = repr(load(file))
    assert re.fullmatch(
        r"OnnxClassifier\('.*model.onnx', images of shape \(3, 8, 8\), 4 classes, bound 3\.98883\d* as "
        r"stated by the file\)",
        text,
    )


def test_the_same_network_is_the_same_file(file: Path, network: ProvedNetwork, tmp_path: Path) -> None:
    export_onnx(network, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == file.read_bytes()


def recipe() -> str:
    """The recipe of docs/export.md that needs no lipcert."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return next(block for block in blocks if "import onnxruntime" in block)


def test_the_recipe_of_the_documentation(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lipcert as" not in recipe()
    monkeypatch.chdir(file.parent)
    images = some_images()
    names: dict[str, Any] = {"images": images.numpy()}
    exec(compile(recipe(), "docs/export.md", "exec"), names)
    expected = load(file).certify(images)
    np.testing.assert_allclose(names["radius"], expected.radius.numpy(), rtol=1e-9)
    assert (expected.radius > 0).any()


def test_the_recipe_notices_a_change(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = file.read_bytes().replace(b'"cat"', b'"rat"')
    (tmp_path / "model.onnx").write_bytes(changed)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        exec(compile(recipe(), "docs/export.md", "exec"), {"images": some_images().numpy()})


ENTRIES = [*(field.name for field in dataclasses.fields(Metadata)), "format", "sha256"]


def altered(value: Any) -> Any:
    """Another value of the same kind; numbers a millionth of what they were."""
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1] != "0" else "1")
    return [altered(item) for item in value] if isinstance(value, list) else value * 1e-6


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_can_be_changed(entry: str, file: Path, tmp_path: Path) -> None:
    written = onnx.load(file)
    (found,) = [p for p in written.metadata_props if p.key == f"lipcert.{entry}"]
    found.value = json.dumps(altered(json.loads(found.value)))
    refuse(written, tmp_path)


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_can_be_removed(entry: str, file: Path, tmp_path: Path) -> None:
    written = onnx.load(file)
    kept = [p for p in written.metadata_props if p.key != f"lipcert.{entry}"]
    del written.metadata_props[:]
    written.metadata_props.extend(kept)
    refuse(written, tmp_path, "has been changed since|its description is damaged .'sha256'.")


def _scale_weight(written: Any) -> None:
    weight = max(written.graph.initializer, key=lambda t: len(t.raw_data))
    array = onnx.numpy_helper.to_array(weight) * np.float32(1.001)
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))


def _remove_node(written: Any) -> None:
    reader = written.graph.node[-1]
    removed = written.graph.node[-2]
    reader.input[0] = removed.input[0]
    written.graph.node.remove(removed)


def _another_operator(written: Any) -> None:
    next(node for node in written.graph.node if node.op_type == "Greater").op_type = "Less"


def _another_input(written: Any) -> None:
    written.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 9


@pytest.mark.parametrize(
    "change",
    [
        _scale_weight,
        _remove_node,
        _another_operator,
        _another_input,
        lambda written: onnx.helper.set_model_props(written, {}),
        lambda written: written.metadata_props.add(key="lipcert.rounding", value="1e-30"),
        lambda written: written.metadata_props.add(key="note", value="a"),
        lambda written: setattr(written, "doc_string", "a"),
    ],
    ids=["weight", "node", "operator", "input", "no entries", "entry twice", "more entries", "text"],
)
def test_nothing_else_can_be_changed(change: Any, file: Path, tmp_path: Path) -> None:
    written = onnx.load(file)
    change(written)
    refuse(written, tmp_path, "has been changed since|not one that lipcert wrote")


def refuse(written: Any, folder: Path, message: str = r"has been changed since it was written \(its") -> None:
    (folder / "model.onnx").write_bytes(written.SerializeToString())
    with pytest.raises(CheckpointError, match=message) as error:
        load(folder / "model.onnx")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("place", [0, 1, 1000, 0.1, 0.3, 0.5, 0.7, 0.9, -200, -75, -66, -30, -1])
def test_no_byte_can_be_changed(place: float, file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * len(content)) if isinstance(place, float) else place] ^= 1
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"has been changed since|damaged"):
        load(tmp_path / "model.onnx")


def test_reading_and_writing_by_onnx_changes_nothing(file: Path) -> None:
    assert is_intact(onnx.load(file).SerializeToString())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "not an ONNX file, or a damaged one"),
        (lambda path: path.write_text("hello"), "not an ONNX file, or a damaged one"),
        (lambda path: path.write_bytes(b""), "not an ONNX file, or a damaged one"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "has been changed since it was written"),
        (lambda path: path.unlink(), r"cannot be read \(No such file or directory\)"),
    ],
    ids=["truncated", "text", "empty", "longer", "missing"],
)
def test_damaged_files(file: Path, tmp_path: Path, change: Any, message: str) -> None:
    copied = tmp_path / "model.onnx"
    copied.write_bytes(file.read_bytes())
    change(copied)
    with pytest.raises(CheckpointError, match=message):
        load(copied)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"format": None}, "but not one that lipcert wrote: it states no bound"),
        ({"format": "1"}, "has format 1, this version reads 2; export the network again, or use lipcert"),
        ({"lipschitz": None}, "its description is damaged"),
        ({"lipschitz": "-1.0"}, "its description is damaged"),
        ({"lipschitz": "{"}, "its description is damaged"),
        ({"rounding": "0.0"}, "its description is damaged .* a rounding above 0"),
        ({"rounding": "NaN"}, "its description is damaged .* a rounding above 0"),
        ({"rounding": '"a"'}, "its description is damaged"),
        ({"pair_bounds": "[[0.0]]"}, "expected a bound for each pair of 4 classes"),
        ({"pair_bounds": str([[-1.0] * 4] * 4)}, "expected a bound for each pair of 4 classes"),
        ({"input_shape": "[3, 8]"}, "expected three positive integers"),
        ({"input_shape": "null"}, "its description is damaged"),
        ({"extra": "1"}, "its description is damaged"),
    ],
)
def test_damaged_descriptions(
    file: Path, tmp_path: Path, properties: dict[str, str | None], message: str
) -> None:
    """What was sealed in that state is still no description."""
    written = onnx.load(file)
    kept = {p.key: p.value for p in written.metadata_props if p.key != "lipcert.sha256"}
    kept |= {f"lipcert.{key}": value for key, value in properties.items()}
    onnx.helper.set_model_props(written, {key: value for key, value in kept.items() if value is not None})
    (tmp_path / "model.onnx").write_bytes(seal(written.SerializeToString()))
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "model.onnx")


def test_files_of_the_first_format(file: Path, tmp_path: Path) -> None:
    """They had distances of head rows and no hash."""
    written = onnx.load(file)
    old = {"format": "1", "version": '"0.1"', "lipschitz": "4.0", "distances": "[[0.0]]", "rounding": "1e-5"}
    onnx.helper.set_model_props(written, {f"lipcert.{key}": value for key, value in old.items()})
    refuse(written, tmp_path, "has format 1, this version reads 2; export the network again")


def test_a_model_is_proved_first_and_left_as_it_is(tmp_path: Path, network: ProvedNetwork) -> None:
    trained = model().train()
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    written = export_onnx(trained, tmp_path / "a.onnx", classes=NAMES)
    assert written.network_sha256 == network.hash
    assert load(written.path).metadata.classes == NAMES
    assert trained.training
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    assert all(parameter.requires_grad for parameter in trained.parameters())


def test_other_names_for_a_proved_network(tmp_path: Path, network: ProvedNetwork) -> None:
    written = export_onnx(network, tmp_path / "a.onnx", classes="wxyz", input_shape=SHAPE)
    assert load(written.path).metadata.classes == tuple("wxyz")
    assert written.network_sha256 == network.hash


def test_bad_arguments(tmp_path: Path, network: ProvedNetwork) -> None:
    path = tmp_path / "a.onnx"
    for given in (network, model()):
        with pytest.raises(ArgumentError, match="classes: expected 4 names, one for each logit, got 2"):
            export_onnx(given, path, classes=["a", "b"])
    with pytest.raises(ArgumentError, match=r"proved for images of shape \(3, 8, 8\), got \(3, 9, 9\)"):
        export_onnx(network, path, input_shape=(3, 9, 9))
    with pytest.raises(CheckpointError, match="cannot write there"):
        export_onnx(network, tmp_path / "nowhere" / "a.onnx")
    with pytest.raises(ArgumentError, match="expected one number per class at its end"):
        export_onnx(nn.Sequential(nn.Identity()), path, input_shape=(1, 2, 2))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_extra(
    package: str, tmp_path: Path, network: ProvedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = re.escape(f"the package {package} is not installed; run pip install {package}")
    with pytest.raises(ArgumentError, match=message):
        export_onnx(network, tmp_path / "a.onnx")


def test_onnx_is_not_needed_to_certify(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert len(load(file).certify(some_images())) == 5


def test_older_runtimes_can_read_it(file: Path) -> None:
    written = onnx.load(file)
    assert (written.ir_version, written.opset_import[0].version) == (8, 17)
    assert onnxruntime.InferenceSession(str(file)).get_providers()
