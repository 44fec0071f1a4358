"""README and documentation: what they show runs, what they link to is there, what they count is true."""

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import typer

import lipcert as lc
from lipcert.cli.app import UsageError, app
from lipcert.kernels.series import SERIES
from lipcert.nn import ACTIVATIONS
from lipcert.paper.results import results
from lipcert.paper.tables import networks, tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "RESULTS.md"
PAGES = [ROOT / "README.md", RESULTS, ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:srun |.*-m )?(lipcert .*)$", re.MULTILINE)


class Shown(NamedTuple):
    """Something that a page shows, and where."""

    page: Path
    text: str
    whole: bool = True

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text[:60]}"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        ("lipcert train --data digits", "--out"),
        ("lipcert train --out a --epochs many", "valid integer"),
    ],
)
def test_wrong_command_lines_do_not_parse(line: str, message: str) -> None:
    with pytest.raises((AssertionError, UsageError)) as caught:
        parse(line, whole=True)
    text = caught.value.format_message() if isinstance(caught.value, UsageError) else str(caught.value)
    assert message in text


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


def test_the_layer_that_is_shown_whole_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ACTIVATIONS, "sort4", None)  # is taken out again afterwards
    source = next(shown.text for shown in PYTHON if "class SortFour" in shown.text)
    exec(compile(source, "docs/add-a-layer.md", "exec"), {"__name__": "docs"})
    radii = re.findall(r"\d\.\d+", capsys.readouterr().out)
    assert len(radii) == 2
    assert all(float(radius) > 0 for radius in radii)


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


def test_the_forward_of_ones_own_that_is_shown_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    source = [shown.text for shown in PYTHON if shown.page.name == "own-network.md"][1]
    exec(compile(source, "docs/own-network.md", "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out.count("SkewPolynomial") == 3


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


def test_generated_parts_are_up_to_date() -> None:
    assert not [str(path) for path in load_script("fill_docs").stale()], "run python scripts/fill_docs.py"


def test_the_results_are_those_of_the_records() -> None:
    assert results(ROOT / "results") == RESULTS.read_text(), "run lipcert reproduce results"


def speed_record(path: Path) -> Path:
    """A record as `lipcert bench` writes it, of one line that took turns and one of memory."""

    def timing(name: str, rate: float) -> dict[str, Any]:
        return {"name": name, "seconds": 1, "images_per_second": rate, "gflops": 50.0, "repetitions": 5}

    timings = [
        timing("the paper's formulation, fp32", 28.44),
        timing("lipcert, the paper's series", 140.6),
        timing("lipcert, wide series", 300.4),
        timing("lipcert", 1234.5),
    ]
    train = {"key": "train-5-bf16", "title": "training, SOC + hh1", "ratio": 43.4, "precision": "bf16"}
    memory = {"key": "memory-20", "title": "peak memory", "ratio": 0.25, "precision": "bf16", "timings": []}
    record = {
        "machine": {"cpu": "a processor", "threads": 2, "torch": "2.13", "time": "2026-11-15 22:14:19"},
        "peak_gflops": {"fp32": 100.0, "bf16": 200.0},
        "lines": [
            train | {"timings": timings, "note": ""},
            memory | {"note": "4 MiB by one, 1 by another"},
        ],
        "scaling": {"depth": {"5": 1.234, "10": 2.5}},
    }
    path.write_text(json.dumps(record))
    return path


def test_the_speed_table_is_its_record(tmp_path: Path) -> None:
    lines = load_script("fill_docs").speed(speed_record(tmp_path / "speed.json")).splitlines()
    assert "2026-11-15: a processor, 2 threads" in lines[0]
    assert "| training, SOC + hh1 | the paper's formulation, fp32 | 28.4 | 50 | 50% |  |" in lines
    assert "|  | lipcert | 1,234 | 50 | 25% | 43.40 |" in lines  # a bf16 contender against the bf16 peak
    assert "| peak memory | 4 MiB by one, 1 by another |  |  |  | 0.25 |" in lines
    assert "| ms per image | 1.23 | 2.5 |" in lines


def test_the_short_speed_table_is_its_record(tmp_path: Path) -> None:
    text = load_script("fill_docs").speed_summary(speed_record(tmp_path / "speed.json"))
    assert "| training | 28.4 | 141 | 300 | 1,234 | 43.4x |" in text
    assert "Peak memory: 4 MiB by one, 1 by another." in text


def test_the_cost_of_a_row_follows_from_the_rates(tmp_path: Path) -> None:
    text = load_script("fill_docs").row_cost(speed_record(tmp_path / "speed.json"))
    # 200 epochs of 45,000 images at 28.44 and at 1,234.5 images per second.
    assert text.endswith(
        "counted: the paper's formulation 87.9; lipcert, the paper's series 17.8; lipcert, wide series "
        "8.3; lipcert 2.0."
    )


def test_the_table_of_budgets_has_every_run_of_that_network() -> None:
    lines = load_script("fill_docs").budgets().splitlines()[2:]
    found = (ROOT / "results").glob("cifar10-lipconvnet5-soc-hh1-orthogonal-cr0.5-*/summary.json")
    kept = [path for path in sorted(found) if "start_from" not in (path.parent / "config.toml").read_text()]
    assert len(lines) == len(kept) > 0
    for path in kept:
        best = json.loads(path.read_text())["test"]["best"]
        shares = (
            best["standard"],
            *(best["certified"][radius] for radius in ("36/255", "72/255", "108/255")),
        )
        assert any(
            line.endswith(" | ".join(["", *(f"{100 * share:.2f}" for share in shares)]) + " |")
            for line in lines
        )


def test_what_was_not_measured_is_not_claimed(tmp_path: Path) -> None:
    filler = load_script("fill_docs")
    assert "Not measured" in filler.speed(tmp_path / "none.json")
    assert "Not measured" in filler.speed_summary(tmp_path / "none.json")
    with pytest.raises(SystemExit, match="no such record"):
        filler.demo(tmp_path / "none.json")


def test_filling_replaces_what_stood_there() -> None:
    filler = load_script("fill_docs")
    text = "a\n<!-- generated:demo -->\nold\n<!-- /generated -->\nb"
    filled = filler.fill(text)
    assert "old" not in filled
    assert filler.fill(filled) == filled
    with pytest.raises(SystemExit, match="expected one of speed"):
        filler.fill(text.replace("demo", "speeed"))


@pytest.mark.parametrize(
    ("tex", "expected"),
    [
        ("x_1^2", "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>"),
        (r"\min_{i \ne l} x", "<munder><mo"),
        (r"\lVert x' \rVert", "<msup><mi>x</mi><mo>′</mo></msup>"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "<mtr><mtd><mrow><mi>c</mi></mrow></mtd>"),
        ("a < b", "<mo>&lt;</mo>"),
    ],
)
def test_formulas(tex: str, expected: str) -> None:
    assert expected in load_script("mathml").mathml(tex)


@pytest.mark.parametrize("tex", [r"\foo", "x_", "{x", "x}", r"\begin{cases} x \end{cases}", "a # b"])
def test_formulas_that_would_be_spoilt_are_refused(tex: str) -> None:
    script = load_script("mathml")
    with pytest.raises(script.UnknownTeXError, match="formula"):
        script.mathml(tex)


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
