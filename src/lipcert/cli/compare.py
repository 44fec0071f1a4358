"""lipcert compare: one network with each of several convolutions, at equal time."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipcert.cli.allocator import keep_freed_memory
from lipcert.cli.console import print_json, say
from lipcert.cli.options import given_options, takes_options
from lipcert.cli.train import DECIDED
from lipcert.errors import ArgumentError, choose
from lipcert.files import COMPARISON, COMPARISON_PAGE, write_or_explain
from lipcert.runs.config import TrainConfig, options

if TYPE_CHECKING:
    from rich.table import Table

    from lipcert.training.comparison import Contestant

MINUTES = 10.0
"""Of training per convolution, if nothing else is said."""


@takes_options([name for name in options() if name not in ("conv", "start_from")], TrainConfig(), DECIDED)
def compare(
    convolutions: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONVOLUTION", help="Names, as soc or aol; default: all that are registered."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of all runs.")] = Path("runs/compare"),
    as_json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")] = False,
    **arguments: Any,
) -> None:
    """Train one network with each convolution for the same time, and compare them.

    Ten minutes each, unless --minutes or --epochs says otherwise.
    The fast recipe decides the other options.
    Writes comparison.json and comparison.html, a page with all curves.
    The same command goes on where it was stopped.

    Examples:

    lipcert compare --data digits --minutes 0.5

    lipcert compare soc aol cayley --data cifar10 --minutes 10 --width 16

    lipcert --import my_layers compare soc my_conv --data cifar10 --epochs 6
    """
    import torch

    from lipcert.cli.report import write_page
    from lipcert.nn.contract import CONVOLUTIONS
    from lipcert.runs.run import Run, State
    from lipcert.training.comparison import measure, plan
    from lipcert.training.jobs import raise_first, run_in_order
    from lipcert.training.loop import train
    from lipcert.training.progress import Silent, for_terminal

    given = given_options(arguments)
    if "epochs" not in given:
        given = {"minutes": MINUTES} | given
    names = [choose("CONVOLUTION", name, CONVOLUTIONS) for name in convolutions or CONVOLUTIONS]
    if len(set(names)) < len(names):
        raise ArgumentError(f"CONVOLUTION: expected different names, got {' '.join(names)}")
    keep_freed_memory()
    if "threads" in given:
        torch.set_num_threads(given["threads"])  # for the frozen networks too
    jobs = plan(names, given, out)
    try:
        failures = run_in_order(
            jobs,
            train,
            progress=Silent if as_json else for_terminal,
            say=(lambda _: None) if as_json else say,
        )
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("interrupted; the same command goes on where it stopped") from error
    done = [Run.at(job.out) for job in jobs if job.state is State.DONE]
    if done:
        found = measure(done)
        rows = [dataclasses.asdict(row) for row in found]
        write_or_explain(out / COMPARISON, (json.dumps(rows, indent=2) + "\n").encode())
        write_page([Run.at(out / row.conv) for row in found], out / COMPARISON_PAGE)
        if as_json:
            print_json(rows)
        else:
            from rich.console import Console

            Console().print(_table(found))
            say(f"Report: {out / COMPARISON_PAGE}")
    raise_first(failures, len(jobs))


def _table(found: "list[Contestant]") -> "Table":
    from rich.table import Table

    caption = (
        "Percent of the test images, certified with proved bounds; train/s and frozen/s are images; "
        "memory: all tensors of a training step."
    )
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("layer")
    for column in ("standard", *found[0].certified, "epochs", "train/s", "frozen/s", "weights", "memory"):
        table.add_column(column, justify="right")
    for row in found:
        accuracies = (f"{100 * share:.1f}" for share in (row.standard, *row.certified.values()))
        rates = (f"{rate:,.0f}" for rate in (row.training, row.inference))
        table.add_row(
            row.conv, *accuracies, f"{row.epochs:.1f}", *rates, _short(row.parameters), _bytes(row.memory)
        )
    return table


def _short(count: int) -> str:
    """A count of weights in a few characters.

    >>> _short(512), _short(10_640), _short(3_041_000)
    ('512', '10.6k', '3.04M')
    """
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def _bytes(count: int) -> str:
    """A number of bytes in a few characters.

    >>> _bytes(512_000), _bytes(94_300_000), _bytes(2_040_000_000)
    ('0.5 MB', '94 MB', '2.0 GB')
    """
    millions = count / 1e6
    if millions >= 1000:
        return f"{millions / 1000:.1f} GB"
    return f"{millions:.0f} MB" if millions >= 10 else f"{millions:.1f} MB"
