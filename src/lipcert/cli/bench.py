"""lipcert bench: speed on this machine, against the paper's own formulation."""

from pathlib import Path
from typing import Annotated

import typer

from lipcert.cli.allocator import keep_freed_memory

EXAMPLES = """
Examples:

lipcert bench                              # the whole table, into runs/bench

lipcert bench --quick                      # LipConvnet-5 alone, twice, no curves: speed-quick.json

lipcert bench --threads 4 --out speed/     # elsewhere, with four threads
"""


def bench(
    out: Annotated[Path, typer.Option(help="Folder for speed.json and speed.png.")] = Path("runs/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="LipConvnet-5 alone, few repetitions.")] = False,
    repetitions: Annotated[
        int | None, typer.Option(min=1, help="How often each contender runs; else 5, or 2 with --quick.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads for torch; all cores by default.")
    ] = None,
) -> None:
    """Measure speed on this machine, against the network as the paper formulates it.

    Contenders take turns, ratios are of medians. Takes about a quarter of an hour on two cores.
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from lipcert.benchmarks.plot import plot
    from lipcert.benchmarks.run import Line, lines, machine, peak_gflops, save, scaling
    from lipcert.benchmarks.timing import share_of_peak
    from lipcert.cli.console import make_folder
    from lipcert.machine import has_bf16

    make_folder(out)  # or fail now, and not after a quarter of an hour
    keep_freed_memory()  # for all contenders alike
    console = Console()
    if threads is not None:
        torch.set_num_threads(threads)
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
    repetitions = repetitions or (2 if quick else 5)
    for title, run in lines(repetitions, (5,) if quick else (5, 20), bf16):
        if quick and "LipConvnet-20" in title:
            continue
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
    curves = None
    if not quick:
        with console.status("time per image against depth and batch"):
            curves = scaling(3)
    console.print(table)
    # A quick look never replaces the record of the whole table.
    path = save(out / ("speed-quick.json" if quick else "speed.json"), done, peak, curves)
    console.print(f"written: {path}, {plot(path)}")


bench.__doc__ = f"{bench.__doc__}\n{EXAMPLES}"
