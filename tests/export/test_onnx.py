"""ONNX files: plain operators, the logits of the network, and certificates from what the file holds."""

import copy
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

import lipcert as lc
from lipcert.errors import ArgumentError, CheckpointError, NotProvedError
from lipcert.export import onnx_file
from lipcert.export.graph import Graph
from lipcert.export.layers import emit
from lipcert.nn import ConstantHead, Flatten, LipschitzModule, Normalize
from lipcert.nn.frozen_skew import FrozenMatrix, FrozenSeries
from lipcert.nn.lipschitz import ACTIVATIONS, Shape

CLASSES = 4


def network(
    conv: str = "soc", activation: str = "hh1", head: str = "lln", *, size: int = 8, depth: int = 5
) -> lc.LipConvnet:
    """A tiny network whose activations have left their start, where half of them would be MaxMin."""
    torch.manual_seed(0)
    model = lc.lipconvnet(depth, conv, activation, head, CLASSES, 4, size, in_channels=3).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "activation" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def some_images(size: int = 8, count: int = 5) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def exact_logits(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(model).double()(images.double())  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [8, 10])
@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_logits_and_radii_are_those_of_the_network(conv: str, head: str, size: int, tmp_path: Path) -> None:
    model, images = network(conv, head=head, size=size), some_images(size)
    written = lc.export.export_onnx(model, tmp_path / "model.onnx")
    exported = lc.export.load(written.path)
    difference = np.abs(exported.logits(images) - exact_logits(model, images).numpy()).max()
    assert difference < 1e-4
    found, expected = exported.certify(images), lc.certify(model, images)
    assert found.lipschitz == expected.lipschitz == written.lipschitz
    assert torch.equal(found.prediction, expected.prediction)
    # The rounding term is at most 40 times the measured difference; distances are at least 0.1 here.
    assert (found.radius <= expected.radius + 1e-6).all()
    torch.testing.assert_close(found.radius, expected.radius, rtol=0, atol=1e-4)
    assert not found.proved
    assert found.precision == "float32"
    assert (found.rounding == 40 * written.difference).all()


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation(activation: str, tmp_path: Path) -> None:
    model, images = network(activation=activation, size=4), some_images(4, 40)
    lc.export.export_onnx(model, tmp_path / "model.onnx")
    found = lc.export.load(tmp_path / "model.onnx").logits(images)
    # Forty images of float32 arithmetic through six layers.
    np.testing.assert_allclose(found, exact_logits(model, images).numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_stride_1_and_the_series(conv: str, tmp_path: Path) -> None:
    model, images = network(conv, size=16, depth=10), some_images(16, 2)
    if conv == "soc":
        kinds = {type(layer) for layer in lc.freeze(model)}
        assert {FrozenSeries, FrozenMatrix} <= kinds
    lc.export.export_onnx(model, tmp_path / "model.onnx")
    found = lc.export.load(tmp_path / "model.onnx").logits(images)
    np.testing.assert_allclose(found, exact_logits(model, images).numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("shape", [(3, 4, 4), (3, 6, 2), (3, 2, 2)])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 5), (3, 2), (3, 3)])
@pytest.mark.parametrize("conv", ["SOC", "BCOP", "Cayley"])
@pytest.mark.parametrize("bias", [True, False])
def test_single_layers(
    conv: str, inputs: int, outputs: int, shape: Shape, bias: bool, tmp_path: Path
) -> None:
    layer = getattr(lc, conv)(inputs, outputs, 3, bias=bias).eval()
    torch.manual_seed(1)
    pixels = outputs * shape[1] * shape[2]
    model = nn.Sequential(layer, Flatten(), ConstantHead(torch.randn(2, pixels), None))
    lc.export.export_onnx(model, tmp_path / "model.onnx", input_shape=shape)
    images = torch.rand(3, *shape)
    found = lc.export.load(tmp_path / "model.onnx").logits(images)
    np.testing.assert_allclose(found, exact_logits(model, images).numpy(), rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    lc.export.export_onnx(network(), path, classes=["cat", "dog", "bird", "frog"])
    return path


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_any_number_of_images(file: Path, count: int) -> None:
    exported = lc.export.load(file)
    assert exported.logits(some_images(count=count)).shape == (count, CLASSES)
    assert len(exported.certify(some_images(count=count))) == count


def test_images_of_every_kind(file: Path) -> None:
    exported = lc.export.load(file)
    levels = (some_images() * 255).round().to(torch.uint8)
    expected = exported.certify(lc.data.to_float(levels))
    assert torch.equal(exported.certify(levels.permute(0, 2, 3, 1).numpy()).radius, expected.radius)


def test_pixels_that_float32_does_not_hold_cost_their_distance(file: Path) -> None:
    exported, images = lc.export.load(file), some_images().double() * (1 - 2.0**-27)
    moved = torch.linalg.vector_norm((images - images.float()).flatten(1), dim=1)
    assert (moved > 0).all()
    expected = (exported.certify(images.float()).radius - moved).clamp(min=0)
    torch.testing.assert_close(exported.certify(images).radius, expected, rtol=0, atol=1e-15)


def test_the_file_describes_itself(file: Path) -> None:
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    assert {opset.domain for opset in model.opset_import} == {""}
    assert all(node.domain == "" for node in model.graph.node)
    (pixels,) = model.graph.input
    batch, *shape = pixels.type.tensor_type.shape.dim
    assert batch.dim_param == "batch"
    assert [side.dim_value for side in shape] == [3, 8, 8]
    about = {p.key.removeprefix("lipcert."): json.loads(p.value) for p in model.metadata_props}
    expected = lc.certify(network(), some_images())
    assert about["lipschitz"] == expected.lipschitz
    assert about["classes"] == ["cat", "dog", "bird", "frog"]
    assert about["input_shape"] == [3, 8, 8]
    assert about["version"] == lc.__version__
    assert "[0, 1]" in about["pixels"]
    assert "measured, not proved" in about["certificate"]
    rows = network().double().head.normalized_weight().detach()  # type: ignore[operator]
    np.testing.assert_allclose(about["distances"], torch.cdist(rows, rows).numpy(), atol=1e-7)


def test_a_short_form(file: Path) -> None:
    text = repr(lc.export.load(file))
    assert re.search(
        r"OnnxClassifier\('.*model.onnx', images of shape \(3, 8, 8\), 4 classes, proved bound", text
    )


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
    expected = lc.export.load(file).certify(images)
    np.testing.assert_allclose(names["radius"], expected.radius.numpy(), rtol=1e-9)
    assert (expected.radius > 0).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "not an ONNX file, or a damaged one"),
        (lambda path: path.write_text("hello"), "not an ONNX file, or a damaged one"),
        (lambda path: path.unlink(), r"cannot be read \(No such file or directory\)"),
    ],
    ids=["truncated", "text", "missing"],
)
def test_damaged_files(file: Path, tmp_path: Path, change: object, message: str) -> None:
    copied = tmp_path / "model.onnx"
    copied.write_bytes(file.read_bytes())
    change(copied)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message):
        lc.export.load(copied)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"lipcert.format": None}, "but not one that lipcert wrote"),
        ({"lipcert.format": "2"}, "has format 2, this version reads 1"),
        ({"lipcert.lipschitz": None}, "its description is damaged"),
        ({"lipcert.lipschitz": "0.0"}, "its description is damaged"),
        ({"lipcert.lipschitz": "{"}, "its description is damaged"),
        ({"lipcert.distances": "[[0.0]]"}, "its description is damaged"),
        ({"lipcert.extra": "1"}, "its description is damaged"),
    ],
)
def test_damaged_descriptions(
    file: Path, tmp_path: Path, properties: dict[str, str | None], message: str
) -> None:
    model = onnx.load(file)
    kept = {p.key: p.value for p in model.metadata_props} | properties
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {key: value for key, value in kept.items() if value is not None})
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match=message):
        lc.export.load(tmp_path / "model.onnx")


def test_images_of_another_shape(file: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"expected images of shape \(3, 8, 8\), which .* got \(3, 4, 4\)"
    ):
        lc.export.load(file).logits(some_images(4))


class Twice(LipschitzModule):
    """A layer of somebody else's."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def lipschitz_bound(self, input_shape: Shape) -> float:
        return 2.0


class Thrice(Twice):
    """What is written for it below is wrong."""


@emit.register
def _thrice(layer: Thrice, graph: Graph, x: str, shape: Shape) -> str:
    return graph.add("Mul", [x, graph.numbers(3.0)])


@pytest.mark.parametrize(
    ("layer", "error", "message"),
    [
        (
            Twice(),
            ArgumentError,
            "Twice has no ONNX form; let it freeze to a layer that has one, or register",
        ),
        (Thrice(), NotProvedError, "its ONNX form differs by .* from the network in float64"),
    ],
)
def test_layers_that_cannot_be_exported(
    layer: nn.Module, error: type[Exception], message: str, tmp_path: Path
) -> None:
    model = nn.Sequential(Normalize(0.5, 0.25), layer, Flatten(), ConstantHead(torch.eye(2, 4), None))
    with pytest.raises(error, match=message):
        lc.export.export_onnx(model, tmp_path / "a.onnx", input_shape=(1, 2, 2))
    assert not list(tmp_path.iterdir())


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="classes: expected 4 names, one for each logit, got 2"):
        lc.export.export_onnx(network(), tmp_path / "a.onnx", classes=["a", "b"])
    with pytest.raises(CheckpointError, match="cannot write there"):
        lc.export.export_onnx(network(), tmp_path / "nowhere" / "a.onnx")
    with pytest.raises(NotProvedError, match="ends in a head"):
        lc.export.export_onnx(nn.Sequential(Flatten()), tmp_path / "a.onnx", input_shape=(1, 2, 2))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = re.escape(f"the package {package} is not installed; run pip install {package}")
    with pytest.raises(ArgumentError, match=message):
        lc.export.export_onnx(network(), tmp_path / "a.onnx")


def test_the_model_is_left_as_it_is(tmp_path: Path) -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lc.export.export_onnx(model, tmp_path / "a.onnx")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_older_runtimes_can_read_it(file: Path) -> None:
    model = onnx.load(file)
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
    assert onnxruntime.InferenceSession(str(file)).get_providers()


def test_the_difference_is_the_largest_on_the_trial_images(tmp_path: Path) -> None:
    model, images = network(), onnx_file._trial_images((3, 8, 8))
    assert len(images) == 64
    written = lc.export.export_onnx(model, tmp_path / "a.onnx")
    found = lc.export.load(written.path).logits(images)
    largest = np.abs(found - exact_logits(model, images).numpy()).max()
    assert written.difference == pytest.approx(largest, rel=1e-6)
