"""The speed table of docs/speed.md: lipcert against the network as the paper formulates it.

    python -m tools.bench                      # into results/bench; a quarter of an hour on two cores
    python -m tools.bench --threads 4 --out speed

Contenders take turns, ratios are of medians.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from lipcert.cli.allocator import keep_freed_memory
from lipcert.cli.console import make_folder
from lipcert.machine import has_bf16
from tools.bench.plot import plot
from tools.bench.run import Line, lines, machine, save, scaling
from tools.bench.timing import peak_gflops, share_of_peak


def bench(out: Path, repetitions: int) -> None:
    """Measure and print every line; writes speed.json and speed.png to `out`."""
    make_folder(out)  # or fail now, and not after a quarter of an hour
    keep_freed_memory()  # for all contenders alike
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    bf16 = has_bf16()
    if not bf16:
        console.print("this processor has no bf16 instructions: everything is in fp32")
    with console.status("measuring the machine's peak"):
        peak = peak_gflops(bf16=bf16)
    rates = ", ".join(f"{rate:.0f} GFLOP/s in {precision}" for precision, rate in peak.items())
    console.print(f"peak: {rates}")
    table = Table("work", "contender", "images/s", "GFLOP/s", "of peak", "ratio", "goal")
    done: list[Line] = []
    for title, run in lines(repetitions, (5, 20), bf16):
        with console.status(title):
            line = run()
        done.append(line)
        for index, timing in enumerate(line.timings):
            last = index == len(line.timings) - 1
            share = share_of_peak(line.precision, timing.name, timing.gflops, peak)
            table.add_row(
                line.title if index == 0 else "",
                timing.name,
                f"{timing.images_per_second:,.1f}",
                f"{timing.gflops:.0f}",
                "" if share is None else f"{share:.0%}",
                f"{line.ratio:.2f}" if last else "",
                line.reach if last else "",
            )
        if not line.timings:
            table.add_row(line.title, line.note, "", "", "", f"{line.ratio:.2f}", line.reach)
        table.add_section()
    with console.status("time per image against depth and batch"):
        curves = scaling(3)
    console.print(table)
    path = save(out / "speed.json", done, peak, curves)
    console.print(f"written: {path}, {plot(path)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--repetitions", type=int, default=5, help="how often each contender runs")
    parser.add_argument("--threads", type=int, help="threads for torch; all cores by default")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    bench(options.out, options.repetitions)


if __name__ == "__main__":
    main()
