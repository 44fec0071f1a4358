"""lipcert reproduce: the paper's tables and figures by name, reported beside measured."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lipcert.cli.options import given_options, takes_options
from lipcert.errors import ArgumentError, choose
from lipcert.paper.budget import OPTIONS, PAPER, Budget
from lipcert.runs.config import DATA, MACHINE, TRAINING

if TYPE_CHECKING:
    from lipcert.paper.render import Sheet
    from lipcert.paper.reproduction import Reproduction
    from lipcert.training.jobs import Failure

FIGURE_NAMES = ("figure1", "figure2")
TAKES = {"list": (), "figure1": ("out",), "figure2": ("out",)}
"""Names that train nothing, and the options that they read."""


@takes_options(OPTIONS, PAPER)
def reproduce(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="list, a table (several with commas), all, figure1 or figure2."),
    ],
    rows: Annotated[
        str, typer.Option("--rows", help="Depths (5,10), methods (cr) or both (5-cr); all if not given.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of all runs and written tables.")] = Path(
        "runs/paper"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="Decides the options that are not given: paper, or fast (Muon, minutes).",
            rich_help_panel=TRAINING,
        ),
    ] = "paper",
    gamma: Annotated[
        float | None,
        typer.Option(
            "--gamma",
            help="For the rows with CR, where the paper says 0.5 and 0.1.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[
        str,
        typer.Option(
            "--seed", help="One or several (0,1,2): every row runs once per seed.", rich_help_panel=TRAINING
        ),
    ] = "0",
    count: Annotated[
        int,
        typer.Option("--count", help="Images to time in the time tables, 128 or more.", rich_help_panel=DATA),
    ] = 10_000,
    data_root: Annotated[
        Path | None,
        typer.Option(
            "--data-root",
            help="Folder with the CIFAR data; default: $LIPCERT_DATA, or ~/.cache/lipcert.",
            rich_help_panel=DATA,
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option("--cluster", help="Run rows on Ray: ray, or ray://host:port.", rich_help_panel=MACHINE),
    ] = "",
    **options: Any,
) -> None:
    """Reproduce a table or figure of the paper. The default budget is the paper's.

    Examples:

    lipcert reproduce list

    lipcert reproduce cifar10-main --rows 5 --epochs 200

    lipcert reproduce cifar100-main --rows 5-lln,5-cr --recipe fast --width 16 --epochs 12

    lipcert reproduce cifar10-times --count 512

    lipcert reproduce figure1

    lipcert reproduce all --dry-run
    """
    _refuse_ignored(context, name)
    if name == "list":
        _list()
    elif name in FIGURE_NAMES:
        _figure(name, out)
    else:
        # Torch takes seconds to import, and --help does not need it.
        from lipcert.paper.reproduction import Reproduction, parse_seeds, select

        if data_root is not None:
            os.environ["LIPCERT_DATA"] = str(data_root.resolve())
        given = given_options(options)
        names = _table_names(name)
        chosen = select(names, [part.strip() for part in rows.split(",") if part.strip()])
        if gamma is not None and "gamma-selection" in names:
            raise ArgumentError(
                "gamma: gamma-selection has its own values; leave --gamma out, or name other tables"
            )
        if gamma is not None and not any(
            network.gamma for _, part in chosen for row in part for network in row.networks.values()
        ):
            raise ArgumentError("gamma: none of the chosen rows has CR; leave --gamma out, or choose one")
        budget = Budget(recipe=recipe, gamma=gamma, **given)
        _tables(
            Reproduction(chosen, budget, parse_seeds(seed), out),
            cluster=cluster,
            images=count,
            dry_run=dry_run,
        )


def _refuse_ignored(context: typer.Context, name: str) -> None:
    """An option that has no effect was given for a reason."""
    for option in context.params:
        source = context.get_parameter_source(option)
        given = source is not None and source.name == "COMMANDLINE" and option != "name"
        if given and name in TAKES and option not in TAKES[name]:
            flag = option.replace("_", "-")
            raise ArgumentError(f"{flag}: {name} trains nothing and does not take it; leave --{flag} out")


def _table_names(name: str) -> list[str]:
    from lipcert.paper.tables import tables

    if name == "all":
        return list(tables())
    others = ("all", "list", *FIGURE_NAMES)
    names = [choose("NAME", part.strip(), [*tables(), *others]) for part in name.split(",")]
    if alone := [part for part in names if part in others]:
        raise ArgumentError(f"NAME: {alone[0]!r} cannot be combined with other names")
    return names


def _list() -> None:
    from lipcert.paper.tables import networks, tables

    table = Table(title="The paper's tables", title_justify="left")
    for column in ("Name", "No.", "Rows", "Networks", "What it shows"):
        table.add_column(column)
    for entry in tables().values():
        trained = "random" if entry.kind == "times" else str(len(networks(entry.name)))
        table.add_row(entry.name, str(entry.number), str(len(entry.rows)), trained, entry.title)
    rows = sum(len(entry.rows) for entry in tables().values())
    console = Console()
    console.print(table)
    console.print(f"{rows} rows in all, {len(networks())} distinct networks. Also: figure1, figure2, all.")


def _figure(name: str, out: Path) -> None:
    from lipcert.paper.figures import write_figure

    _say_written(write_figure(name, out / "figures"))


def _tables(reproduction: "Reproduction", *, cluster: str, images: int, dry_run: bool) -> None:
    import torch

    from lipcert.cli.allocator import keep_freed_memory
    from lipcert.paper.times import TIMES, check_count, time_networks, time_sheet
    from lipcert.training.jobs import raise_first

    console = Console()
    if reproduction.timed:
        check_count(images)
    if dry_run:
        from lipcert.paper.render import terminal

        console.print(terminal(reproduction.plan_sheet()))
        for table, rows in reproduction.timed:
            console.print(f"{table.name}: times {len(rows)} rows on {images} images")
        return
    keep_freed_memory()
    given = reproduction.budget.given
    if "threads" in given:
        torch.set_num_threads(given["threads"])
    failures = _run(reproduction, cluster)
    for sheet in reproduction.sheets():
        _show(sheet, reproduction.out)
    for table, rows in reproduction.timed:
        folder = reproduction.out / TIMES
        timings = time_networks(rows, folder, width=given.get("width", PAPER.width), images=images)
        _show(time_sheet(table, rows, timings), reproduction.out)
    raise_first(failures, len(reproduction.jobs))


def _show(sheet: "Sheet", out: Path) -> None:
    from lipcert.paper.render import terminal, write

    Console().print(terminal(sheet))
    _say_written(write(sheet, out / "tables"))


def _run(reproduction: "Reproduction", cluster: str) -> "Sequence[Failure]":
    from lipcert.training.jobs import run_in_order
    from lipcert.training.loop import train
    from lipcert.training.progress import for_terminal

    try:
        if cluster:
            from lipcert.paper.cluster import run_on_ray

            inherited = {name: os.environ[name] for name in ("LIPCERT_DATA",) if name in os.environ}
            return run_on_ray(reproduction.jobs, train, cluster, environment=inherited)
        return run_in_order(reproduction.jobs, train, progress=for_terminal)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("interrupted; the same command goes on where it stopped") from error


def _say_written(paths: Iterable[Path]) -> None:
    typer.echo(f"wrote {', '.join(map(str, paths))}")
