"""The parts of the docs that say how fast lipcert is, and what its speed costs, from records."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lipcert.certify.curve import RADII, shown_bound
from lipcert.paper.budget import PAPER
from tools.bench.run import OTHER_SERIES
from tools.bench.timing import share_of_peak

FOLDER = Path(__file__).parents[2] / "results/bench"
SPEED, DEGREES, PRECISION, ONE_POLYNOMIAL, SERVE, IMAGE_SIZES = (
    FOLDER / f"{name}.json"
    for name in ("speed", "degrees", "precision", "one-polynomial", "serve", "image_sizes")
)


def speed(record: Path = SPEED) -> str:
    """Every line of the speed table with its contenders."""
    data = read_record(record, "bench")
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
    table = markdown_table(["work", "contender", "images/s", "GFLOP/s", "of peak", "ratio"], rows, numbers=4)
    noted = [line for line in data["lines"] if line["timings"] and line["note"]]
    notes = "\n".join(f"- {_capital(line['title'])}: {line['note']}." for line in noted)
    return "\n\n".join(part for part in (_machine(data), table, notes, _scaling(data)) if part)


def speed_summary(record: Path = SPEED) -> str:
    """The lines that compare with the paper's formulation, one row each."""
    data = read_record(record, "bench")
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
    table = markdown_table(head, rows, numbers=len(head) - 1)
    return "\n\n".join([table, " ".join([_machine(data), *memory])])


def row_cost(record: Path = SPEED) -> str:
    """Hours of one LipConvnet-5 row at the paper's budget, by the rates of the speed table."""
    data = read_record(record, "bench")
    lines = [line for line in data["lines"] if line["key"].startswith("train-5-")]
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


def degrees(record: Path = DEGREES) -> str:
    """Which polynomial of SOC trains best: accuracy after a few epochs beside the cost of a step."""
    data = read_record(record, "bench.degrees")
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
            markdown_table(head, rows, numbers=len(head)),
            f"LipConvnet-5 at width {first['width']} on CIFAR-10, bf16, one cycle to a learning rate of "
            f"{first['lr']}, one seed, {first['held_out']['images']:,} held-out images. A step is relative "
            "to that of degree 2 with angles up to 1.0, at width 32; that polynomial is the default.",
        ]
    )


def one_polynomial(record: Path = ONE_POLYNOMIAL) -> str:
    """One polynomial for training and evaluation beside the pair that ships."""
    data = read_record(record, "bench.one_polynomial")
    rows = [
        [
            " and ".join(map(str, row["degrees"]))
            if row["kind"] == "pair"
            else f"{row['degrees'][0]} in both",
            f"{row['modulus_errors'][1]:.1e}",
            str(row["seed"]),
            *(
                f"{100 * share:.2f}"
                for share in (row["test"]["standard"], *row["test"]["certified"].values())
            ),
        ]
        for row in data["trained"]
    ]
    head = ["degrees", "modulus error in evaluation", "seed", "standard", *RADII]
    timed, epochs = data["inference"], data["trained"][0]["epochs"]
    gain = timed["seconds"]["pair"] / timed["seconds"]["one"]
    return markdown_table(head, rows, numbers=5) + (
        f"\n\nLipConvnet-5 at width 16 on CIFAR-10, the fast recipe, {epochs:g} epochs, proved on the "
        f"test set. A frozen network with one polynomial infers {gain:.2f} times as fast (width "
        f"{timed['width']}, batch {timed['batch']})."
    )


def precision(record: Path = PRECISION) -> str:
    """Accuracy of the same training in fp32 and in bf16."""
    data = read_record(record, "bench.precision")
    rows = [
        [f"{run['data']}, {run['epochs']} epochs", name, *(f"{share:.1%}" for share in shares.values())]
        for run in data
        for name, shares in run["test"].items()
    ]
    head = ["training", "precision", "standard", *RADII]
    return markdown_table(head, rows, numbers=4) + (
        f"\n\nLipConvnet-5 at width {data[0]['width']}, equal seeds, proved on the test sets."
    )


def image_sizes(record: Path = IMAGE_SIZES) -> str:
    """What larger pictures cost a proof and a certificate."""
    data = read_record(record, "bench.image_sizes")
    rows = [
        [
            f"{size['side']}x{size['side']}",
            f"{size['prove_seconds']:.0f}",
            f"{size['certify_ms']:.0f}",
            shown_bound(size["constant"], 6),
        ]
        for size in data["sizes"]
    ]
    head = ["pictures", "proof, seconds", "certificate, ms", "constant"]
    return "\n\n".join(
        [
            markdown_table(head, rows, numbers=3),
            "Processor time of LipConvnet-5 at width 16 with the wide series and random weights, on one core "
            f"of {data['machine']['cpu']}; certificates in batches of {data['images']}.",
        ]
    )


def serve(record: Path = SERVE) -> str:
    """What the service answers under load, by its largest batch, and what the long run found."""
    data = read_record(record, "bench.load_serve")
    loads = {"one at a time": data["alone"]} | {
        f"{load['clients']} at once, `--batch {batch}`": load for batch, load in data["batches"].items()
    }
    rows = [
        [
            name,
            _rate(load["requests_per_second"]),
            f"{load['p50_ms']:,.0f}",
            f"{load['p99_ms']:,.0f}",
            f"{load['cpu_ms']:.1f}",
            f"{load['mean_batch']:.1f}",
            str(load["errors"]),
        ]
        for name, load in loads.items()
    ]
    head = ["requests", "per second", "median, ms", "99th percentile, ms", "CPU, ms", "mean batch", "errors"]
    about, soak = data["machine"], data["soak"]
    memory = soak["memory_mb"]
    interval = soak["seconds"] / (len(memory) - 2)  # the last two readings are both of the end
    others = about["load_before"]
    shared = f", shared with other work (load average {others:g} before the test)" if others >= 0.5 else ""
    return "\n\n".join(
        [
            markdown_table(head, rows, numbers=len(head) - 1),
            f"`{data['network']}` on {about['cpu']}, {about['cores']} cores{shared}; the service had "
            f"{_threads(data['threads'])}, and the clients ran on the same cores. Measured on "
            f"{about['time'].split()[0]}, {data['alone']['seconds']:.0f} seconds or more for each line. CPU "
            "is the processor time of the service for one picture, which depends less on other work.",
            f"Then {soak['seconds'] / 60:.0f} minutes of {soak['clients']} requests at once: "
            f"{soak['requests']:,} answers, {soak['errors']} errors, {_rate(soak['requests_per_second'])} "
            f"per second. Resident memory was {memory[0]:,.0f} MB at the start, {memory[1]:,.0f} MB after "
            f"{interval:.0f} seconds and {memory[-1]:,.0f} MB at the end, at most {max(memory):,.0f} MB in "
            f"{len(memory)} readings.",
        ]
    )


def _threads(count: str) -> str:
    return {"1": "1 thread", "default": "torch's number of threads"}.get(count, f"{count} threads")


def markdown_table(head: list[str], rows: Iterable[list[str]], numbers: int) -> str:
    """A table in Markdown whose last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *rows])


def read_record(record: Path, maker: str) -> Any:
    """The content of a record.

    Raises:
        SystemExit: there is none; the message names the module that makes it.
    """
    if not record.exists():
        raise SystemExit(f"{record}: no such record; make it with python -m tools.{maker}")
    return json.loads(record.read_text(encoding="utf-8"))


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
        markdown_table(
            [titles[kind], *points],
            [["ms per image", *(f"{value:.3g}" for value in points.values())]],
            numbers=len(points),
        )
        for kind, points in data["scaling"].items()
    ]
    return "\n\n".join(["Inference with margins by the frozen network:", *tables])


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
