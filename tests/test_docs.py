"""README and documentation: what they show runs, what they link to is there, what they count is true."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
from PIL import Image

import lipcert as lc
from lipcert.cli.app import UsageError, app
from lipcert.kernels.series import SERIES
from lipcert.models.functions import METHODS, NAMES
from lipcert.models.plain import PLAIN
from lipcert.nn import ACTIVATIONS, CONVOLUTIONS
from lipcert.paper.tables import networks, tables

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "RESULTS.md", "tools/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:srun |.*-m )?(lipcert .*)$", re.MULTILINE)


class Shown(NamedTuple):
    """Something that a page shows, and where."""

    page: Path
    text: str
    whole: bool = True

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text[:60]}"


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def commands() -> Iterator[Shown]:
    """Whole command lines from the blocks, and those that the prose mentions."""
    for page in PAGES:
        for block in blocks(page, "", "bash", "sh", "console"):
            for line in COMMAND.findall(block.replace("\\\n", " ")):
                yield Shown(page, line)
        for line in re.findall(r"`(lipcert [^`]+)`", FENCE.sub("", page.read_text())):
            yield Shown(page, line, whole=False)


def parse(line: str, *, whole: bool) -> None:
    """Let the command line read the arguments as it would, but run nothing; raises on what it does not know.

    The prose names commands without all that they need, so there only names and options are looked up.
    """
    _, *words = shlex.split(re.sub(r"\s[>|].*", "", line), comments=True)
    # A variable is the value of the option before it, or stands for what may be empty.
    words = [w for before, w in pairwise(["", *words]) if not w.startswith("$") or before.startswith("--")]
    command: Any = typer.main.get_command(app)
    path = "lipcert"
    if words[:1] == ["--import"]:
        words = words[2:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        path = f"{path} {words[0]}"
        assert words[0] in command.commands, f"no such command: {path}"
        command = command.commands[words.pop(0)]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    known |= {"-h", "--help", "--debug", "--install-completion", "--show-completion"}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert given <= known, f"{path} does not know {', '.join(sorted(given - known))}"
    if whole and "--help" not in given:
        command.make_context(path, [word for word in words if word != "--debug"])


@pytest.mark.parametrize("shown", list(commands()), ids=str)
def test_command_lines_parse(shown: Shown) -> None:
    parse(shown.text, whole=shown.whole)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lipcert trane --out a", "no such command: lipcert trane"),
        ("lipcert train --out a --gama 0.5", "does not know --gama"),
        ("lipcert data fetch", "no such command: lipcert data fetch"),
        ("lipcert export a", "--onnx"),
        ("lipcert train --out a --epochs many", "valid integer"),
    ],
)
def test_wrong_command_lines_do_not_parse(line: str, message: str) -> None:
    with pytest.raises((AssertionError, UsageError)) as caught:
        parse(line, whole=True)
    text = caught.value.format_message() if isinstance(caught.value, UsageError) else str(caught.value)
    assert message in text


def test_every_feature_of_the_readme_links_to_its_page() -> None:
    table = (ROOT / "README.md").read_text().partition("## What there is")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if re.match(r"\| [^|-]", line)]
    assert len(rows) >= 12
    assert not [row for row in rows if "](docs/" not in row]


def test_every_command_is_in_the_table() -> None:
    shown = re.findall(r"`lipcert (\w+)`", (ROOT / "docs/index.md").read_text())
    assert set(typer.main.get_command(app).commands) <= set(shown)  # type: ignore[attr-defined]


PYTHON = [Shown(page, text) for page in PAGES for text in blocks(page, "python")]


@pytest.mark.parametrize("shown", PYTHON, ids=str)
def test_python_compiles_and_its_names_exist(shown: Shown) -> None:
    tree = ast.parse(shown.text)
    compile(tree, str(shown.page), "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lipcert"):
            for alias in node.names:
                assert hasattr(import_module(str(node.module)), alias.name)
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if re.fullmatch(r"lc(\.\w+)+", dotted):
                found: Any = lc
                for name in dotted.split(".")[1:]:
                    found = getattr(found, name)


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a picture, and with a tiny run in place of that of `lipcert demo`."""
    folder = tmp_path_factory.mktemp("docs")
    config = lc.TrainConfig(data="digits", width=2, epochs=1, batch_size=256, lr=0.5)
    lc.train(config, folder / "runs/demo")
    Image.new("RGB", (40, 30), "teal").save(folder / "my.png")
    return folder


RUN = {
    ("README.md", 0): {},
    ("README.md", 1): {"depth=15": "depth=5, width=4"},
    ("docs/add-a-layer.md", 2): {},
    ("docs/audit.md", 0): {"[:100]": "[:4]", "images, out": "images, attacks=['noise', 'pgd'], out"},
    ("docs/index.md", 0): {},
    ("docs/training.md", 0): {},
    ("docs/zoo.md", 0): {},
}
"""Blocks that are run by themselves, as they are or with something in them made smaller."""

RUN_ELSEWHERE = {
    ("docs/add-a-layer.md", 0): "below",
    ("docs/add-a-layer.md", 1): "below",
    ("docs/export.md", 0): "below",
    ("docs/export.md", 1): "tests/export/test_onnx.py",
    ("docs/export.md", 2): "below",
    ("docs/export.md", 3): "below",
    ("docs/export.md", 4): "below; slow, because it trains a network of the zoo",
    ("docs/own-network.md", 0): "below",
    ("docs/own-network.md", 1): "below",
    ("docs/serve.md", 0): "tests/serve/test_service.py, which starts the service that it asks",
}


def run_block(page: str, index: int, names: dict[str, Any], smaller: dict[str, str]) -> dict[str, Any]:
    """Execute one block of a page; returns the names that it leaves behind."""
    source = blocks(ROOT / page, "python")[index]
    for old, new in smaller.items():
        assert source.count(old) == 1, f"{page} no longer has {old!r}"
        source = source.replace(old, new)
    exec(compile(source, page, "exec"), names)
    return names


def test_every_block_is_run_somewhere() -> None:
    """Those of the recipes are in tests/test_recipes.py, where the packages are that they need."""
    pages = [page for page in PAGES if "recipes" not in page.parts]
    shown = {
        (str(page.relative_to(ROOT)), index)
        for page in pages
        for index, _ in enumerate(blocks(page, "python"))
    }
    assert shown == RUN.keys() | RUN_ELSEWHERE.keys()


@pytest.mark.parametrize(("page", "index"), RUN)
def test_python_runs(
    page: str,
    index: int,
    demonstration: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(demonstration)
    found = run_block(page, index, {}, RUN[page, index])
    if "cert" in found:
        assert found["cert"].radius.max() > 0
    if page == "README.md" and index == 0:
        assert lc.load("digits.proved.safetensors").hash == lc.load("runs/demo").hash  # type: ignore[union-attr]
    if page == "docs/audit.md":
        assert len(found["report"].records) == 4
        assert Path("runs/demo/audit-100/audit.jsonl").is_file()
    if "print(" in blocks(ROOT / page, "python")[index]:
        assert capsys.readouterr().out


def test_the_export_that_is_shown_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    monkeypatch.chdir(tmp_path)
    model = lc.lipconvnet(depth=5, num_classes=3, width=4, image_size=8, in_channels=1)
    given = {"model": model, "names": ("ant", "bee", "cat"), "images": torch.rand(4, 1, 8, 8)}
    found = run_block("docs/export.md", 0, given, {})
    assert (found["cert"].radius > 0).all()
    assert torch.equal(found["cert"].prediction, found["proved"].certify(given["images"]).prediction)


def test_the_onnx_form_that_is_shown_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    op = lc.operators

    @dataclass(frozen=True, eq=False, repr=False)
    class Scaled(op.Mirror):
        factor: float = 2.0

        def apply(self, x: torch.Tensor) -> torch.Tensor:
            return self.factor * x

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return self.factor

    emit = import_module("lipcert.export.emit").emit
    copied = singledispatch(emit.dispatch(object))  # what is registered here stays here
    for kind, case in emit.registry.items():
        copied.register(kind, case)
    for module in ("emit", "onnx_file"):
        monkeypatch.setattr(f"lipcert.export.{module}.emit", copied)
    parts = (Scaled(), op.Reshape(), op.Matrix(torch.eye(2, 4).double(), None))
    shapes = ((1, 2, 2), (1, 2, 2), (4,))
    proved = [op.Proved.of(part, "x", "X", shape) for part, shape in zip(parts, shapes, strict=True)]
    network = lc.ProvedNetwork(op.Sequence(tuple(proved)), (1, 2, 2), ("a", "b"))
    path = tmp_path / "a.onnx"
    with pytest.raises(lc.errors.ArgumentError, match="Scaled has no ONNX form"):
        lc.export.export_onnx(network, path)
    run_block("docs/export.md", 2, {"Scaled": Scaled}, {})
    lc.export.export_onnx(network, path)
    images = torch.rand(3, 1, 2, 2)
    assert lc.export.load(path).logits(images) == pytest.approx(2 * images.flatten(1)[:, :2].numpy())


def test_the_estimator_that_is_shown_learns() -> None:
    found = run_block("docs/export.md", 3, {}, {"random_state=0": "random_state=0, epochs=2"})
    classifier, X, y = found["classifier"], found["X"][1400:], found["y"][1400:]
    assert classifier.score(X, y) > 0.5  # a guess is right in a tenth of the cases
    assert classifier.certify(X).radius.max() > 0


@pytest.mark.slow
def test_the_estimator_that_is_shown_starts_from_the_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
    X, y = (array[:64] for array in load_digits(return_X_y=True))
    found = run_block(
        "docs/export.md", 4, {"lc": lc, "X": X, "y": y}, {"verbose=True": "verbose=True, epochs=1"}
    )
    assert found["classifier"].predict(X).shape == (64,)


@pytest.mark.parametrize("name", ["SortFour", "Bounded"])
def test_the_layers_that_are_shown_whole_work(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ACTIVATIONS, "sort4", None)  # is taken out again afterwards
    monkeypatch.setitem(CONVOLUTIONS, "bounded", None)
    source = next(shown.text for shown in PYTHON if f"class {name}" in shown.text)
    exec(compile(source, "docs/add-a-layer.md", "exec"), {"__name__": "docs"})
    radii = re.findall(r"\d\.\d+", capsys.readouterr().out)[-2:]
    assert len(radii) == 2
    assert all(float(radius) > 0 for radius in radii)


@pytest.mark.slow
def test_a_module_of_ones_own_brings_its_layers_along(tmp_path: Path) -> None:
    source = next(shown.text for shown in PYTHON if "class Bounded" in shown.text)
    (tmp_path / "mylayers.py").write_text(source)
    train = "train --data digits --depth 5 --width 4 --epochs 1 --conv bounded --out mine"
    for line in (f"--import mylayers {train}", "certify mine"):  # the proved file needs no module
        result = subprocess.run(
            [sys.executable, "-m", "lipcert", *line.split()], cwd=tmp_path, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
    result = subprocess.run(
        [sys.executable, "-m", "lipcert", "--import", "nosuch", "zoo", "list"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "the module 'nosuch' cannot be imported" in result.stderr


def test_the_network_that_is_shown_whole_trains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # it saves what it proves
    source = next(shown.text for shown in PYTHON if shown.page.name == "own-network.md")
    assert "range(10)" in source
    torch.manual_seed(0)
    exec(compile(source.replace("range(10)", "range(2)"), "docs/own-network.md", "exec"), {})
    printed = capsys.readouterr().out
    assert float(re.search(r"([\d.]+)% right", printed)[1]) > 60  # type: ignore[index]


def test_the_forward_of_ones_own_that_is_shown_is_proved_and_saved(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = [shown.text for shown in PYTHON if shown.page.name == "own-network.md"][1]
    exec(compile(source, "docs/own-network.md", "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out.count("Conv2d, BatchNorm2d") == 2 * 2
    assert len(lc.load("mine.safetensors").classes) == 10  # type: ignore[union-attr]


def test_the_page_lists_every_module_and_function_that_is_accepted() -> None:
    page = (ROOT / "docs/own-network.md").read_text()
    assert not [kind.__name__ for kind in PLAIN if f"nn.{kind.__name__}" not in page]
    shown = {"getitem": "x[:", "add": "x + ", "sub": "1 - x", "mul": "x * ", "div": "x / ", "neg": "- b"}
    names = {*NAMES.values(), *METHODS} - {"getattr"}
    assert not [name for name in sorted(names) if shown.get(name, name) not in page]


LINKS = [
    Shown(page, target)
    for page in PAGES
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))
    if not target.startswith(("http://", "https://", "mailto:"))
]


@pytest.mark.parametrize("shown", LINKS, ids=str)
def test_links_lead_somewhere(shown: Shown) -> None:
    file, _, anchor = shown.text.partition("#")
    target = (shown.page.parent / file).resolve() if file else shown.page
    assert target.is_file()
    if anchor:
        titles = re.findall(r"^#+ (.+)$", FENCE.sub("", target.read_text()), re.MULTILINE)
        slugs = {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}
        assert anchor in slugs


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs/api.md").read_text()
    shown = re.findall(r"^::: lipcert\.(?:[a-z_.]+\.)?(\w+)", text, re.MULTILINE)
    assert set(lc.__all__) - {"__version__"} <= set(shown)


PUBLIC = {
    "operators": lc.operators.__all__,
    "data": lc.data.__all__,
    "export": lc.export.__all__,
    "nn": lc.nn.__all__,
    "optim": lc.optim.__all__,
    "errors": [name for name in dir(lc.errors) if name.endswith("Error")],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_name_of_a_public_module_is_in_the_reference(module: str) -> None:
    """Classes and functions with an entry each, which may be that of `lc.NAME`; constants in a sentence."""
    text = (ROOT / "docs/api.md").read_text()
    entries = [path.rpartition(".") for path in re.findall(r"^::: ([\w.]+)", text, re.MULTILINE)]
    shown = [getattr(import_module(home), name) for home, _, name in entries]
    missing = [
        name
        for name in PUBLIC[module]
        if not any(getattr(getattr(lc, module), name) is value for value in shown)
        and f"`{module}.{name}`" not in text
    ]
    assert not missing


def test_the_pages_count_right() -> None:
    text = (ROOT / "docs/reproduce.md").read_text()
    rows = sum(len(table.rows) for table in tables().values())
    assert f"all {len(tables())} tables, {rows} rows" in text
    assert f"trains {len(networks())} distinct networks" in text
    assert all(f"`{name}`" in text for name in tables())
    activations = (ROOT / "docs/layers/activations.md").read_text()
    assert all(f"`{name}`" in activations for name in ACTIVATIONS)


def test_the_degrees_of_the_series_are_as_the_page_says() -> None:
    def degrees(name: str, mode: str) -> list[int]:
        return [len(getattr(SERIES[name], mode)[size].coefficients) - 1 for size in (1, 3, 5)]

    text = (ROOT / "docs/layers/soc.md").read_text()
    for mode in ("training", "evaluation"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| degree in {mode} |"))
        (isometric,), (wide,) = set(degrees("isometric", mode)), set(degrees("wide", mode))
        assert line.split("|")[2].split(":")[0].strip() == str(isometric)
        assert line.split("|")[3].split(":")[0].strip() == str(wide)
        assert f"{', '.join(map(str, degrees('exponential', mode)))} for `k` = 1, 3, 5" in text


def test_the_errors_of_the_series_are_as_the_page_says() -> None:
    text = (ROOT / "docs/layers/soc.md").read_text()
    (line,) = (line for line in text.splitlines() if "off 1 by at most" in line)
    # Printed with two digits, rounded up.
    shown = [[float(n) for n in re.findall(r"\de-\d+|\d\.\de-\d+", cell)] for cell in line.split("|")[2:5]]
    for name, numbers in zip(("isometric", "wide", "exponential"), shown, strict=True):
        stated = dict.fromkeys(series.modulus_error for series in SERIES[name].evaluation.values())
        assert len(numbers) >= len(stated)
        for number, error in zip(numbers, stated, strict=False):
            assert error <= number < 1.1 * error


@pytest.mark.slow
def test_the_site_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    for page in pages:
        text = page.read_text()
        assert 'class="arithmatex"' not in text, f"{page.name} has a formula that nobody draws"
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]*href="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]+href="([^"]+)"[^>]*rel="(?:stylesheet|preconnect|icon)"', text)
        assert not [target for target in loaded if "//" in target]
    api = (tmp_path / "api.html").read_text()
    assert not [name for name in lc.__all__ if name != "__version__" and f'.{name}"' not in api]
