"""The recipes of docs/recipes, run block by block where the package that they are about is installed."""

import importlib.util
import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lipcert as lc
from lipcert.cli.demo import demo_config
from tests.test_docs import ROOT, blocks

pytestmark = pytest.mark.slow
RECIPES = ROOT / "docs/recipes"


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `lipcert demo` ran, shortened."""
    folder = tmp_path_factory.mktemp("recipes")
    lc.train(replace(demo_config(1), epochs=4, width=4), folder / "runs/demo")
    return folder


@pytest.fixture(autouse=True)
def _there(demonstration: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In that folder, with warnings of other people's packages let through."""
    monkeypatch.chdir(demonstration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def need(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{package} is not installed")


def run(page: str, *numbers: int) -> dict[str, Any]:
    """Execute these Python blocks of a page, by default all, one after the other, and return their names."""
    names: dict[str, Any] = {}
    found = blocks(RECIPES / f"{page}.md", "python")
    for number in numbers or range(len(found)):
        exec(compile(found[number], page, "exec"), names)
    return names


def test_every_recipe_is_run() -> None:
    text = Path(__file__).read_text()
    assert not [page.stem for page in RECIPES.glob("*.md") if page.stem not in text]


def test_lightning() -> None:
    need("lightning", "lightning")
    found = run("lightning")
    right = found["certificates"].prediction == found["test"].labels
    assert right.double().mean() > 0.5  # it did train: a guess is right in a tenth of the cases
    assert lc.load("digits.proved.safetensors").hash == found["proved"].hash


def test_hugging_face(monkeypatch: pytest.MonkeyPatch, demonstration: Path) -> None:
    need("huggingface_hub", "huggingface_hub")
    import huggingface_hub

    hub = demonstration / "hub"

    def upload_folder(self: Any, *, repo_id: str, folder_path: Path) -> None:
        shutil.copytree(folder_path, hub / repo_id)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo_id, name: str(hub / repo_id / name))
    found = run("hugging-face")
    assert found["proved"].hash == lc.load("runs/demo").hash
    card = (hub / "me/digits-certified/README.md").read_text()
    assert "library_name: lipcert" in card
    assert f"| 36/255 | {found['found'].certified[36 / 255]:.2%} |" in card
    path = hub / "me/digits-certified/network.proved.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(lc.errors.LipcertError, match="hash"):
        exec(blocks(RECIPES / "hugging-face.md", "python")[-1], found)


@pytest.mark.parametrize(
    ("module", "package", "block"), [("foolbox", "foolbox", 1), ("art", "adversarial-robustness-toolbox", 2)]
)
def test_attack_libraries(module: str, package: str, block: int) -> None:
    need(module, package)
    found = run("attacks", 0, block)
    near = found["ratios"](found["found"])
    assert len(near) > 0
    assert near.min() >= 1
    # The check sees a broken certificate: claim ten times the radius.
    found["cert"] = replace(found["cert"], radius=10 * found["cert"].radius)
    assert found["ratios"](found["found"]).min() < 1


def test_robustbench() -> None:
    found = run("robustbench", 0)
    model = found["model"]
    # What RobustBench's clean_accuracy and AutoAttack ask of a model.
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    logits = model.to("cpu")(images)
    assert logits.shape == (2, 10)
    assert logits.dtype == torch.float32
    assert torch.autograd.grad(logits.max(1).values.sum(), images)[0].abs().sum() > 0
    assert logits.argmax(1).equal(lc.load("lipconvnet5-cifar10").certify(images).prediction)


def logged_lines(folder: str) -> tuple[dict[int, float], float]:
    """Losses by step, and the proved share at 36/255 at the end, from the records of a run."""
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    (last,) = (line for line in lines if line["kind"] == "test" and line["model"] == "best")
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "epoch"}
    return losses, last["certified"]["36/255"]


def test_mlflow() -> None:
    need("mlflow", "mlflow")
    need("sqlalchemy", "sqlalchemy, which mlflow needs for its database,")
    import mlflow

    run("logging", 0, 1)
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
    losses, certified = logged_lines("runs/mlflow")
    assert {m.step: m.value for m in client.get_metric_history(found.info.run_id, "loss")} == losses
    assert found.data.metrics["test/best/certified/36/255"] == certified
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["best.proved.safetensors"]


def test_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    need("wandb", "wandb")
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    first, _, last = blocks(RECIPES / "logging.md", "python")
    names: dict[str, Any] = {}
    exec(first.replace("runs/plain", "runs/before-wandb"), names)
    seen: list[tuple[int, dict[str, float]]] = []
    log = wandb.Run.log

    def spy(self: Any, numbers: dict[str, float], step: int) -> None:
        seen.append((step, numbers))
        log(self, numbers, step=step)

    monkeypatch.setattr(wandb.Run, "log", spy)
    exec(last, names)
    losses, certified = logged_lines("runs/wandb")
    assert {step: numbers["loss"] for step, numbers in seen if "loss" in numbers} == losses
    assert seen[-1][1]["test/best/certified/36/255"] == certified
    assert list(Path("wandb").glob("offline-run-*/*.wandb"))


def test_onnx_runtime_in_javascript(demonstration: Path) -> None:
    need("onnxruntime", "onnxruntime")
    node, modules = shutil.which("node"), os.environ.get("NODE_PATH", "")
    if node is None or not (Path(modules) / "onnxruntime-node").is_dir():
        pytest.skip("NODE_PATH names no folder with onnxruntime-node")
    (program,) = blocks(RECIPES / "onnx-runtime.md", "js")
    Path("certify.mjs").write_text(program)
    proved = lc.load("runs/demo")
    lc.export.export_onnx(proved, "model.onnx")
    images = lc.data.to_float(lc.data.load("digits", split="test").images[:8])
    Path("pixels.json").write_text(json.dumps(images.flatten(1).tolist()))
    command = [node, "certify.mjs", "model.onnx", "pixels.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    expected = lc.export.load("model.onnx").certify(images)
    for line, radius, best in zip(
        done.stdout.splitlines(), expected.radius, expected.prediction, strict=True
    ):
        assert json.loads(line)["class"] == proved.classes[int(best)]
        assert abs(json.loads(line)["radius"] - float(radius)) < 1e-5  # float32 logits of two builds
    content = bytearray(Path("model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    Path("model.onnx").write_bytes(content)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "was changed after it was written" in done.stderr


def test_the_page_states_the_interface_that_files_have() -> None:
    need("onnxruntime", "onnxruntime")
    import onnxruntime

    lc.export.export_onnx(lc.load("runs/demo"), "stated.onnx")
    session = onnxruntime.InferenceSession("stated.onnx")
    page = (RECIPES / "onnx-runtime.md").read_text()
    assert [(i.name, i.type) for i in session.get_inputs()] == [("pixels", "tensor(float)")]
    assert [(o.name, o.type) for o in session.get_outputs()] == [("logits", "tensor(float)")]
    held = {key for key in session.get_modelmeta().custom_metadata_map if key.startswith("lipcert.")}
    named = {word for word in page.replace("`", " ").split() if word.startswith("lipcert.")}
    assert named <= held
