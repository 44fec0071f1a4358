"""Writes the generated parts of README.md and docs/, so that every measured number there comes from a record.

    python scripts/fill_docs.py            # rewrite the parts between the marks
    python scripts/fill_docs.py --check    # name the files that are out of date, and exit with 1

A part stands between `<!-- generated:NAME -->` and `<!-- /generated -->`.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lipcert.benchmarks.run import OTHER_SERIES
from lipcert.benchmarks.timing import share_of_peak
from lipcert.certify.curve import shown
from lipcert.paper.budget import PAPER
from lipcert.paper.measure import Run, finished_runs
from lipcert.paper.tables import COLUMNS, Network

ROOT = Path(__file__).parents[1]
SPEED = ROOT / "benchmarks/results/speed.json"
DEMO = ROOT / "docs/pictures/demo.json"
DEGREES = ROOT / "benchmarks/results/degrees.json"
PRECISION = ROOT / "benchmarks/results/precision.json"
RESULTS = ROOT / "results"
ZOO = ROOT / "src/lipcert/zoo"
FLAGSHIP = Network("cifar10", depth=5, conv="soc", activation="hh1", head="orthogonal", gamma=0.5)
RADII = ("36/255", "72/255", "108/255")
PART = re.compile(r"(<!-- generated:([a-z-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def speed(record: Path = SPEED) -> str:
    """Every line of the speed table with its contenders."""
    data = _read(record)
    if data is None:
        return "Not measured yet on a quiet machine: `lipcert bench` writes the record."
    rows = []
    for line in data["lines"]:
        timings = line["timings"]
        for number, timing in enumerate(timings):
            share = share_of_peak(line["precision"], timing["name"], timing["gflops"], data["peak_gflops"])
            last = number == len(timings) - 1
            rows.append(
                [
                    line["title"] if number == 0 else "",
                    timing["name"],
                    _rate(timing["images_per_second"]),
                    f"{timing['gflops']:,.0f}",
                    "" if share is None else f"{share:.0%}",
                    f"{line['ratio']:.2f}" if last else "",
                ]
            )
        if not timings:
            rows.append([line["title"], line["note"], "", "", "", f"{line['ratio']:.2f}"])
    table = _table(["work", "contender", "images/s", "GFLOP/s", "of peak", "ratio"], rows, numbers=4)
    noted = [line for line in data["lines"] if line["timings"] and line["note"]]
    notes = "\n".join(f"- {_capital(line['title'])}: {line['note']}." for line in noted)
    return "\n\n".join(part for part in (_machine(data), table, notes, _scaling(data)) if part)


def speed_summary(record: Path = SPEED) -> str:
    """The lines that compare with the paper's formulation, one row each."""
    data = _read(record)
    if data is None:
        return "Not measured yet on a quiet machine: `lipcert bench` writes the record."
    rows = []
    for line in data["lines"]:
        if line["key"].startswith(("train-", "certify-")):
            rates = {timing["name"]: _rate(timing["images_per_second"]) for timing in line["timings"]}
            first, *_, last = rates.values()
            title = line["title"].replace(", SOC + hh1", "")
            mode = ", frozen" if line["key"].startswith("certify-") else ""
            others = [rates[name + mode] for name in OTHER_SERIES.values()]
            rows.append([title, first, *others, last, f"{line['ratio']:.1f}x"])
    memory = [
        f"{_capital(line['title'])}: {line['note']}."
        for line in data["lines"]
        if line["key"].startswith("memory")
    ]
    head = ["images per second", "the paper's formulation, fp32", *OTHER_SERIES.values(), "lipcert", ""]
    table = _table(head, rows, numbers=len(head) - 1)
    return "\n\n".join([table, " ".join([_machine(data), *memory])])


def row_cost(record: Path = SPEED) -> str:
    """Hours of one LipConvnet-5 row at the paper's budget, by the rates of the speed table."""
    data = _read(record)
    lines = [] if data is None else [line for line in data["lines"] if line["key"].startswith("train-5-")]
    if not lines:
        return "Not measured yet on a quiet machine: `lipcert bench` writes the record."
    images = PAPER.epochs * (50_000 - PAPER.held_out)
    costs = [
        f"{timing['name'].removesuffix(', fp32')} {images / timing['images_per_second'] / 3600:.1f}"
        for timing in lines[0]["timings"]
    ]
    about = data["machine"]
    return (
        f"Hours that {PAPER.epochs} epochs of a LipConvnet-5 row take at width {PAPER.width}, at the rates "
        f"of [the speed table](speed.md) ({about['cpu']}, {about['threads']} threads, {lines[0]['precision']}"
        f"; the paper's formulation in fp32), evaluations not counted: {'; '.join(costs)}."
    )


def demo(record: Path = DEMO) -> str:
    """What the demonstration found, in words."""
    data = _read(record)
    if data is None:
        raise SystemExit(f"{record}: no such record; make it with python scripts/make_pictures.py")
    certified = ", ".join(f"{share:.1%} at {radius}" for radius, share in data["certified"].items())
    return (
        f"On {data['images']} digits that the network has never seen, {data['standard']:.1%} of its "
        f"predictions are right; right and certified are {certified}. The median radius is "
        f"{shown(data['median_radius'], 2)}. The attacks tried {data['points_tried']:,} points and broke "
        f"{data['broken']} of {data['certified_images']} certificates. All of it took {data['seconds']:.0f} "
        f"seconds ({data['machine']})."
    )


def degrees(record: Path = DEGREES) -> str:
    """Which polynomial of SOC trains best: accuracy after a few epochs beside the cost of a step."""
    data = _read(record)
    if data is None:
        return "Not measured yet: `python benchmarks/degrees.py` writes the record."
    seconds = data["step"].get("seconds", {})
    unit = seconds.get("degree 2/3, angles to 1.0")
    rows = []
    for row in data["trained"]:
        shares = (row["held_out"]["standard"], *row["held_out"]["certified"].values())
        rows.append(
            [
                str(row["degrees"][0]),
                f"{row['largest_angle']:.1f}",
                f"{row['modulus_errors'][0]:.1e}",
                f"{seconds[row['series']] / unit:.2f}" if row["series"] in seconds else "not timed",
                str(row["epochs"]),
                *(f"{share:.1%}" for share in shares),
            ]
        )
    head = ["degree", "angles up to", "modulus error", "step", "epochs", "standard", *RADII]
    first = data["trained"][0]
    return "\n\n".join(
        [
            _table(head, rows, numbers=len(head)),
            f"LipConvnet-5 at width {first['width']} on CIFAR-10, bf16, one cycle to a learning rate of "
            f"{first['lr']}, one seed, {first['held_out']['images']:,} held-out images. A step is relative "
            "to that of degree 2 with angles up to 1.0, at width 32; that polynomial is the default.",
        ]
    )


def precision(record: Path = PRECISION) -> str:
    """Accuracy of the same training in fp32 and in bf16."""
    data = _read(record)
    if data is None:
        return "Not measured yet: `python benchmarks/precision.py` writes the record."
    rows = [
        [f"{run['data']}, {run['epochs']} epochs", name, *(f"{share:.1%}" for share in shares.values())]
        for run in data
        for name, shares in run["test"].items()
    ]
    head = ["training", "precision", "standard", *RADII]
    return _table(head, rows, numbers=4) + (
        f"\n\nLipConvnet-5 at width {data[0]['width']}, equal seeds, proved on the test sets."
    )


def zoo(folder: Path = ZOO) -> str:
    """The networks that ship, from their cards."""
    cards = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not cards:
        return "No network ships with this version."
    rows = []
    for card in cards:
        training, audit = card["training"], card["audit"]
        verdict = "not yet" if audit is None else f"{audit['broken']} of {audit['certified']:,} broken"
        shares = [f"{share:.2%}" for share in (card["standard"], *card["certified"].values())]
        cores = "1 core" if training["threads"] == 1 else f"{training['threads']} cores"
        epochs, width = training["budget"].split(", ")[:2]
        hours = f"{training['hours']:.1f} hours"
        if start := training.get("started_from"):
            epochs, hours = f"{start['epochs']:g} + {epochs}", f"{start['hours']:.1f} + {hours}"
        spent = f"{width}, {epochs}, {hours} of {cores}"
        rows.append([f"`{card['name']}`", *shares, spent, verdict])
        if card["paper"]:
            rows.append(["the paper", *(f"{value}%" for value in card["paper"]), "width 32, 200 epochs", ""])
    head = ["network", "standard", *RADII, "training", "audit"]
    return _table(head, rows, numbers=6)


def budgets(folder: Path = RESULTS) -> str:
    """What width, epochs and crops make of the time that they take: every run of one network, by its cost.

    Runs that went on with a trained network are left out: the cost of that is not theirs.
    """
    runs = [run for run in finished_runs(folder) if run.network == FLAGSHIP and run.config.start_from is None]
    rows = [
        [
            str(run.config.width),
            f"{run.summary.epochs:.0f}",
            f"{run.config.optimizer}{', averaged' if run.config.ema else ''}",
            run.config.series,
            f"{run.config.lr:g}",
            str(4 if run.config.crop is None else run.config.crop),
            f"{_core_hours(run):.1f}",
            *(f"{run.test('best')[column]:.2f}" for column in COLUMNS),
        ]
        for run in sorted(runs, key=_core_hours)
    ]
    head = [
        "width",
        "epochs",
        "optimizer",
        "series",
        "lr",
        "crops padded by",
        "core hours",
        "standard",
        *RADII,
    ]
    return _table(head, rows, numbers=len(head))


PARTS: dict[str, Callable[[], str]] = {
    "speed": speed,
    "speed-summary": speed_summary,
    "row-cost": row_cost,
    "demo": demo,
    "degrees": degrees,
    "precision": precision,
    "zoo": zoo,
    "budgets": budgets,
}


def fill(text: str) -> str:
    """The text with all its generated parts made anew."""

    def part(found: re.Match[str]) -> str:
        if found[2] not in PARTS:
            raise SystemExit(f"generated:{found[2]}: expected one of {', '.join(PARTS)}")
        return f"{found[1]}{PARTS[found[2]]()}\n{found[3]}"

    return PART.sub(part, text)


def pages() -> list[Path]:
    """The files that may have generated parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stale() -> dict[Path, str]:
    """What should stand in the files that are out of date."""
    made = {path: (path.read_text(), fill(path.read_text())) for path in pages()}
    return {path: new for path, (old, new) in made.items() if new != old}


def main(arguments: list[str]) -> int:
    """Rewrite, or check."""
    check = arguments == ["--check"]
    if arguments and not check:
        raise SystemExit(f"expected --check or nothing, got {' '.join(arguments)}")
    changed = stale()
    for path, text in changed.items():
        print(f"{'out of date' if check else 'wrote'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(text)
    return int(check and bool(changed))


def _read(record: Path) -> Any:
    return json.loads(record.read_text()) if record.exists() else None


def _core_hours(run: Run) -> float:
    return run.hours * float(run.environment["threads"])


def _machine(data: dict[str, Any]) -> str:
    about, peak = data["machine"], data["peak_gflops"]
    counts = [timing["repetitions"] for line in data["lines"] for timing in line["timings"]]
    usual, most = min(counts), max(counts)
    rates = " and ".join(f"{rate:,.0f} GFLOP/s in {precision}" for precision, rate in peak.items())
    more = f" ({most} where a ratio is near 1)" if most > usual else ""
    return (
        f"Measured on {about['time'].split()[0]}: {about['cpu']}, {about['threads']} threads, torch "
        f"{about['torch']}; peak {rates}; "
        f"medians of {usual} repetitions{more}, in turns."
    )


def _scaling(data: dict[str, Any]) -> str:
    if not data["scaling"]:
        return ""
    titles = {"depth": "depth, at batch 128", "batch": "batch, LipConvnet-5"}
    tables = [
        _table(
            [titles[kind], *points],
            [["ms per image", *(f"{value:.3g}" for value in points.values())]],
            numbers=len(points),
        )
        for kind, points in data["scaling"].items()
    ]
    return "\n\n".join(["Inference with margins by the frozen network:", *tables])


def _table(head: list[str], rows: Iterable[list[str]], numbers: int) -> str:
    rule = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
