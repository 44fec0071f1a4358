"""Writes the generated parts of README.md, RESULTS.md and docs/: every measured number comes from a record.

    python -m tools.fill_docs            # rewrite the parts between the marks, and the pictures of results/
    python -m tools.fill_docs --check    # name the files that are out of date, and exit with 1

A part stands between `<!-- generated:NAME -->` and `<!-- /generated -->`.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from lipcert.certify.curve import RADII, shown
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.records import read_records
from lipcert.paper.budget import budget_label, network_of
from lipcert.paper.compare import means
from lipcert.paper.measure import finished_runs, on_test_images
from lipcert.paper.render import Sheet, markdown
from lipcert.paper.tables import COLUMNS, Network, Row, Table, reported_rows
from lipcert.paper.times import TIMES
from lipcert.report.plots.curve import Reported, curve_figure
from lipcert.report.style import write_png
from lipcert.runs.config import PANELS, TrainConfig
from lipcert.runs.config import options as config_options
from lipcert.runs.run import Run
from lipcert.training.parts import fitted_padding
from lipcert.zoo import FOLDER as ZOO
from lipcert.zoo import card as card_of
from lipcert.zoo import certificates
from tools import autoattack, lab, results
from tools.bench.tables import (
    degrees,
    image_sizes,
    markdown_table,
    one_polynomial,
    precision,
    read_record,
    row_cost,
    serve,
    speed,
    speed_summary,
)
from tools.claims import claims_sheet
from tools.keep import read_certificates

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "docs/pictures/demo.json"
RESULTS = ROOT / "results"
FLAGSHIP = Network("cifar10", depth=5, conv="soc", activation="hh1", head="orthogonal", gamma=0.5)
SHOWN = ("cifar100-main", "cifar10-main", "gamma-selection")
"""Tables of the paper that RESULTS.md shows; docs/results.md has all of them."""
PART = re.compile(r"(<!-- generated:([a-z-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def demo(record: Path = DEMO) -> str:
    """What the demonstration found, in words."""
    data = read_record(record, "make_pictures")
    certified = ", ".join(f"{share:.1%} at {radius}" for radius, share in data["certified"].items())
    return (
        f"On {data['images']} digits that the network has never seen, {data['standard']:.1%} of its "
        f"predictions are right; right and certified are {certified}. The median radius is "
        f"{shown(data['median_radius'], 2)}. The attacks tried {data['points_tried']:,} points and broke "
        f"{data['broken']} of {data['certified_images']} certificates. All of it took {data['seconds']:.0f} "
        f"seconds ({data['machine']})."
    )


def zoo(folder: Path = ZOO) -> str:
    """The networks that ship, from their cards."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        training, audit = card["training"], card["audit"]
        verdict = "not yet" if audit is None else f"{audit['broken']} of {audit['certified']:,} broken"
        shares = [f"{share:.2%}" for share in (card["standard"], *card["certified"].values())]
        spent = _spent(training)
        if other := training.get("averaged_with"):
            spent = f"average of two: {spent}; {_spent(other)}"
        spent += ", mirrored" if card.get("mirrored") else ""
        rows.append([f"`{card['name']}`", *shares, spent, verdict])
        printed, label = card["paper"], "the paper"
        if not printed and (best := best_of_paper(card["data"])):
            printed = [best.reported[column] for column in COLUMNS]
            label = f"the paper's best, LipConvnet-{best.depth}"
        if printed:
            rows.append([label, *(f"{value}%" for value in printed), "width 32, 200 epochs", ""])
    head = ["network", "standard", *RADII, "training", "audit"]
    return markdown_table(head, rows, numbers=6)


def best_of_paper(data: str) -> Row | None:
    """The printed row with the highest accuracies on these test images, on average over the columns.

    >>> best_of_paper("cifar100").name
    '20-cr'
    """
    printed = [row for network, (_, row) in reported_rows().items() if network.dataset == data]
    return max(printed, key=lambda row: sum(map(float, row.reported.values())), default=None)


def _spent(training: dict[str, Any]) -> str:
    """What one training cost, that of the network it started from included."""
    cores = "1 core" if training["threads"] == 1 else f"{training['threads']} cores"
    epochs, width = training["budget"].split(", ")[:2]
    hours = f"{training['hours']:.1f} hours"
    if start := training.get("started_from"):
        epochs, hours = f"{round(start['epochs'], 1):g} + {epochs}", f"{start['hours']:.1f} + {hours}"
    return f"{width}, {epochs}, {hours} of {cores}"


def budgets(folder: Path = RESULTS) -> str:
    """What width, epochs and crops make of the time that they take: every budget of one network, by its cost.

    Runs that went on with a trained network are left out: the cost of that is not theirs.
    """
    found: dict[str, list[Run]] = {}
    for run in flagship_runs(finished_runs(folder)):
        found.setdefault(budget_label(run.config), []).append(run)
    rows = []
    for runs in sorted(found.values(), key=lambda runs: results.core_hours(runs[0])):
        config = runs[0].config
        rows.append(
            [
                str(config.width),
                f"{runs[0].summary.epochs:.0f}",
                f"{config.optimizer}{', averaged' if config.ema else ''}"
                f"{', mirrored' if config.mirrored else ''}",
                config.series,
                f"{config.lr:g}",
                str(_padding(config, runs[0].summary.epochs)),
                f"{results.core_hours(runs[0]):.1f}",
                *means([on_test_images(run) for run in runs]),
            ]
        )
    head = ["width", "epochs", "optimizer", "series", "lr", "crops padded by", "core hours", *COLUMNS]
    return markdown_table(head, rows, numbers=len(head))


def _padding(config: TrainConfig, epochs: float) -> int:
    """Padding of the crops, in pixels of CIFAR's images."""
    if config.crop is not None:
        return config.crop
    return fitted_padding(epochs, 32) if config.augment == "fitted" else 4


def folder_runs(folder: Path = RESULTS / "folder") -> str:
    """What a folder of pictures gives by the recipe, from the network that ships and from random weights."""
    found: dict[str, list[Run]] = {}
    for run in finished_runs(folder):
        found.setdefault(run.config.start_from or "random", []).append(run)
    if not found:
        raise SystemExit(f"{folder}: no records; make them as tools/make_photos.py says")
    rows = []
    for start, runs in sorted(found.items()):
        name = start if start == "random" else f"`{start}`"
        held_out = sum(run.summary.best["standard"] for run in runs) / len(runs)
        radius = shown(min(read_certificates(run.root).median_radius() for run in runs), 3)
        for model, others in (("best", (f"{100 * held_out:.1f}", radius)), ("last", ("", ""))):
            values = means([on_test_images(run, model) for run in runs])
            rows.append([name, model, str(len(runs)), others[0], *values, others[1]])
    head = ["weights at the start", "model", "seeds", "held out", *COLUMNS, "median radius"]
    first = next(iter(found.values()))[0].summary
    return "\n\n".join(
        [
            markdown_table(head, rows, numbers=len(head) - 2),
            f"{first.steps} steps each, {first.epochs:.0f} epochs. Percent of {first.best['images']} "
            f"held-out pictures (an estimate) and of {first.test['best']['images']:,} test pictures: right, "
            "then right and certified. The median radius counts wrong predictions as 0; of several seeds it "
            "is the smallest.",
        ]
    )


def flagship_runs(runs: Iterable[Run]) -> list[Run]:
    """The runs of one network, from random weights."""
    return [run for run in runs if network_of(run.config) == FLAGSHIP and run.config.start_from is None]


def ten_minutes() -> str:
    """What ten minutes of the fast recipe give on CIFAR-10, beside the paper's row of that network."""
    found = [run for run in flagship_runs(records()) if run.config.minutes == 10]
    if not found:
        raise SystemExit("results: no record of lipcert train --data cifar10 --minutes 10")
    values = means([on_test_images(run) for run in found])
    printed = reported_rows()[FLAGSHIP][1].reported
    machine = found[0].environment
    return (
        f"`lipcert train --data cifar10 --minutes 10` gave {' / '.join(values)} (percent of the test "
        f"images: right, then right and certified at {', '.join(RADII)}), on {machine['threads']} threads of "
        f"an {machine['cpu']} with bfloat16 instructions, certified as the mean over a picture and its "
        "mirror image. The paper's LipConvnet-5, twice as wide and trained for 200 epochs, has "
        f"{' / '.join(printed[column] for column in COLUMNS)}."
    )


def options() -> str:
    """Every option of a run, from the fields of `TrainConfig`."""
    described = config_options()
    rows = [
        [
            f"`--{name.replace('_', '-')}`",
            f"`{about.within}`" if about.within else ", ".join(f"`{choice}`" for choice in about.choices),
            "" if getattr(TrainConfig, name) is None else f"`{getattr(TrainConfig, name)}`",
            about.help,
        ]
        for panel in PANELS
        for name, (_, about) in described.items()
        if about.panel == panel
    ]
    return markdown_table(["option", "range", "default", ""], rows, numbers=0)


@cache
def records() -> tuple[Run, ...]:
    """The records of the repository."""
    return finished_runs(RESULTS)


@cache
def paper_tables() -> list[tuple[Table, Sheet | None, int]]:
    """The paper's tables with what these records have of them."""
    return list(results.table_sheets(records(), RESULTS / TIMES))


def short_tables() -> str:
    """The main tables of the paper, a line for each row that was run."""
    found = [results.short(sheet) for table, sheet, _ in paper_tables() if sheet and table.name in SHOWN]
    return "\n".join(map(markdown, found))


PARTS: dict[str, Callable[[], str]] = {
    "speed": speed,
    "speed-summary": speed_summary,
    "row-cost": row_cost,
    "ten-minutes": ten_minutes,
    "demo": demo,
    "degrees": degrees,
    "one-polynomial": one_polynomial,
    "precision": precision,
    "serve": serve,
    "image-sizes": image_sizes,
    "zoo": zoo,
    "folder": folder_runs,
    "budgets": budgets,
    "options": options,
    "best-runs": lambda: markdown(results.best_sheet(records())),
    "claims": lambda: markdown(claims_sheet(records())),
    "short-tables": short_tables,
    "runs": lambda: markdown(results.runs_sheet(records())),
    "paper-tables": lambda: "\n".join(markdown(sheet) for _, sheet, _ in paper_tables() if sheet),
    "not-run": lambda: results.not_run(records(), {t.name: missing for t, _, missing in paper_tables()}),
    "machines": lambda: results.machines(records()),
    "autoattack": autoattack.table,
    "lab-dial": lambda: lab.table("dial"),
    "lab-crops": lambda: lab.table("crops"),
    "lab-recipe": lambda: lab.table("recipe"),
}


def fill(text: str) -> str:
    """The text with all its generated parts replaced."""

    def part(found: re.Match[str]) -> str:
        if found[2] not in PARTS:
            raise SystemExit(f"generated:{found[2]}: expected one of {', '.join(PARTS)}")
        return f"{found[1]}{PARTS[found[2]]()}\n{found[3]}"

    return PART.sub(part, text)


def pages() -> list[Path]:
    """The files that may have generated parts."""
    return [ROOT / "README.md", ROOT / "RESULTS.md", *sorted((ROOT / "docs").rglob("*.md"))]


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
    if not check:
        draw_curves()
        write_png(lab.dial_figure(), ROOT / "docs/pictures/lab-dial.png")
        write_png(autoattack.gap_figure(), ROOT / "docs/pictures/attack-gap.png")
    return int(check and bool(changed))


def draw_curves(folder: Path = RESULTS) -> list[Path]:
    """Draw the networks that ship, from the certificates that ship, the paper's numbers as crosses."""
    curves: dict[str, dict[str, Outcomes]] = {}
    crosses: dict[str, Reported] = {}
    for name, file in certificates().items():
        card = card_of(name)
        curves.setdefault(card["data"], {})[name] = read_records(file).outcomes
        if best := best_of_paper(card["data"]):
            values = {column: float(best.reported[column]) for column in COLUMNS}
            crosses[card["data"]] = Reported(f"the paper's best, LipConvnet-{best.depth}", values)
    paths = {data: folder / f"curve-{data}.png" for data in curves}
    for data, path in paths.items():
        write_png(curve_figure(curves[data], crosses.get(data)), path)
    return list(paths.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
