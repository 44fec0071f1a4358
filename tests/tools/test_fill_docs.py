"""The generated parts of the docs are those of the records, and formulas become MathML."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from lipcert.certify.outcomes import Outcomes
from lipcert.zoo import card, proved_networks
from tools import docs_hooks, fill_docs
from tools.bench import tables
from tools.fill_docs import ROOT


def test_generated_parts_are_up_to_date() -> None:
    assert not [str(path) for path in fill_docs.stale()], "run python -m tools.fill_docs"


def test_the_results_are_readable() -> None:
    assert len((ROOT / "RESULTS.md").read_text().splitlines()) <= 250


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
    lines = tables.speed(speed_record(tmp_path / "speed.json")).splitlines()
    assert "2026-11-15: a processor, 2 threads" in lines[0]
    assert "| training, SOC + hh1 | the paper's formulation, fp32 | 28.4 | 50 | 50% |  |" in lines
    assert "|  | lipcert | 1,234 | 50 | 25% | 43.40 |" in lines  # a bf16 contender against the bf16 peak
    assert "| peak memory | 4 MiB by one, 1 by another |  |  |  | 0.25 |" in lines
    assert "| ms per image | 1.23 | 2.5 |" in lines


def test_the_short_speed_table_is_its_record(tmp_path: Path) -> None:
    text = tables.speed_summary(speed_record(tmp_path / "speed.json"))
    assert "| training | 28.4 | 141 | 300 | 1,234 | 43.4x |" in text
    assert "Peak memory: 4 MiB by one, 1 by another." in text


def test_the_cost_of_a_row_follows_from_the_rates(tmp_path: Path) -> None:
    text = tables.row_cost(speed_record(tmp_path / "speed.json"))
    # 200 epochs of 45,000 images at 28.44 and at 1,234.5 images per second.
    assert text.endswith(
        "counted: the paper's formulation 87.9; lipcert, the paper's series 17.8; lipcert, wide series "
        "8.3; lipcert 2.0."
    )


def test_the_table_of_the_service_is_its_record(tmp_path: Path) -> None:
    load = {"clients": 32, "seconds": 10.0, "requests": 1234, "requests_per_second": 123.4, "p50_ms": 250.4}
    load |= {
        "p99_ms": 400.6,
        "mean_batch": 15.9,
        "errors": 0,
        "cpu_ms": 14.26,
        "memory_mb": [400.0, 410.0, 405.0, 405.2],
    }
    machine = {"cpu": "a processor", "cores": 2, "time": "2026-11-15 22:14:19", "load_before": 1.5}
    record: dict[str, Any] = {"network": "net", "machine": machine, "threads": "1", "batches": {"16": load}}
    record |= {"alone": load | {"requests_per_second": 31.2}, "soak": load | {"seconds": 600, "errors": 3}}
    path = tmp_path / "serve.json"
    path.write_text(json.dumps(record))
    text = tables.serve(path)
    assert "| one at a time | 31.2 | 250 | 401 | 14.3 | 15.9 | 0 |" in text
    assert "| 32 at once, `--batch 16` | 123 | 250 | 401 | 14.3 | 15.9 | 0 |" in text
    assert (
        "2 cores, shared with other work (load average 1.5 before the test); the service had 1 thread" in text
    )
    assert "10 minutes of 32 requests at once: 1,234 answers, 3 errors, 123 per second" in text
    assert "400 MB at the start, 410 MB after 300 seconds and 405 MB at the end, at most 410 MB in 4" in text


def test_the_table_of_image_sizes_is_its_record(tmp_path: Path) -> None:
    size = {"side": 64, "prove_seconds": 16.4, "certify_ms": 43.6, "constant": 3.9888311}
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps({"machine": {"cpu": "a processor"}, "images": 32, "sizes": [size]}))
    text = tables.image_sizes(path)
    assert "| 64x64 | 16 | 44 | 3.98884 |" in text
    assert "one core of a processor; certificates in batches of 32" in text


def test_the_table_of_a_folder_is_its_records(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no records"):
        fill_docs.folder_runs(tmp_path)
    rows = [line.split(" | ") for line in fill_docs.folder_runs().splitlines()[2:6]]
    assert [row[:2] for row in rows] == [
        ["| `lipconvnet5-cifar10`", "best"],
        ["| `lipconvnet5-cifar10`", "last"],
        ["| random", "best"],
        ["| random", "last"],
    ]
    files = sorted((ROOT / "results/folder").glob("*/summary.json"))
    assert len(files) == int(rows[0][2]) + int(rows[2][2])
    shares = {f"{100 * json.loads(file.read_text())['test']['last']['standard']:.2f}" for file in files}
    assert len(files) > 2 or shares == {rows[1][4], rows[3][4]}


def test_the_table_of_budgets_has_every_run_of_that_network() -> None:
    lines = fill_docs.budgets().splitlines()[2:]
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
    for part, maker in ((tables.speed, "bench"), (fill_docs.demo, "make_pictures")):
        with pytest.raises(SystemExit, match=f"no such record; make it with python -m tools.{maker}"):
            part(tmp_path / "none.json")


def test_filling_replaces_what_stood_there() -> None:
    text = "a\n<!-- generated:demo -->\nold\n<!-- /generated -->\nb"
    filled = fill_docs.fill(text)
    assert "old" not in filled
    assert fill_docs.fill(filled) == filled
    with pytest.raises(SystemExit, match="expected one of speed"):
        fill_docs.fill(text.replace("demo", "speeed"))


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
    assert expected in docs_hooks.mathml(tex)


@pytest.mark.parametrize("tex", [r"\foo", "x_", "{x", "x}", r"\begin{cases} x \end{cases}", "a # b"])
def test_formulas_that_would_be_spoilt_are_refused(tex: str) -> None:
    with pytest.raises(docs_hooks.UnknownTeXError, match="formula"):
        docs_hooks.mathml(tex)


def test_the_curves_are_of_the_networks_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[dict[str, Outcomes], Any]] = []

    def draw(curves: dict[str, Outcomes], reported: Any) -> Figure:
        drawn.append((curves, reported))
        return Figure()

    monkeypatch.setattr(fill_docs, "curve_figure", draw)
    paths = fill_docs.draw_curves(tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    shown = {name: outcomes for curves, _ in drawn for name, outcomes in curves.items()}
    assert shown.keys() == proved_networks().keys()
    for name, outcomes in shown.items():
        assert outcomes.accuracy().standard == card(name)["standard"]
    assert drawn[0][1].values["standard"] == 76.34  # of LipConvnet-20


def test_examples_of_docstrings_become_code() -> None:
    text = "One.\n\n>>> [[0, 1]]\n[[0, 1]]\n>>> 2\n2\n\nEnd."
    fenced = docs_hooks.EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
    assert fenced == "One.\n\n```pycon\n>>> [[0, 1]]\n[[0, 1]]\n>>> 2\n2\n```\n\nEnd."
