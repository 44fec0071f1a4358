"""lipcert reproduce: the paper's tables and figures by name, reported beside measured."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lipcert.errors import ArgumentError, TrainingError, choose

if TYPE_CHECKING:
    from lipcert.paper.render import Sheet
    from lipcert.paper.reproduction import Reproduction
    from lipcert.paper.run import Failure

EXAMPLES = """
Examples:

lipcert reproduce list

lipcert reproduce cifar10-main --rows 5 --epochs 200

lipcert reproduce cifar100-main --rows 5-lln,5-cr --width 16 --epochs 5 --schedule onecycle --lr 0.3

lipcert reproduce cifar10-times --count 512

lipcert reproduce figure1

lipcert reproduce all --dry-run

lipcert reproduce results --out runs/paper --results results
"""
FIGURE_NAMES = ("figure1", "figure2")
TAKES = {"list": (), "figure1": ("out",), "figure2": ("out",), "results": ("out", "results")}
"""Names that train nothing, and the options that they read."""


def _budget(name: str, explained: str | None = None) -> Any:
    return typer.Option(name, help=explained, rich_help_panel="Budget")


def _machine(name: str, explained: str) -> Any:
    return typer.Option(name, help=explained, rich_help_panel="Machine")


def reproduce(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="list, a table (several with commas), all, figure1, figure2, or results."
        ),
    ],
    rows: Annotated[
        str, typer.Option("--rows", help="Depths (5,10), methods (cr) or both (5-cr); all if not given.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder of all runs and written tables.")] = Path(
        "runs/paper"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    results: Annotated[
        Path,
        typer.Option(
            "--results", help="With NAME results: folder of kept records; finished runs of --out are added."
        ),
    ] = Path("results"),
    epochs: Annotated[int | None, _budget("--epochs", "Passes over the training images, else 200.")] = None,
    minutes: Annotated[float | None, _budget("--minutes", "Time per row in place of --epochs.")] = None,
    width: Annotated[int, _budget("--width", "Channels of the first stage.")] = 32,
    schedule: Annotated[str, _budget("--schedule", "step (the paper's), onecycle or cosine.")] = "step",
    lr: Annotated[float, _budget("--lr", "Highest learning rate.")] = 0.1,
    nesterov: Annotated[bool, _budget("--nesterov", "Nesterov's momentum.")] = False,
    series: Annotated[
        str,
        _budget(
            "--series",
            "exponential (the paper's), isometric or wide SOC layers, to train; times are of the paper's.",
        ),
    ] = "exponential",
    crop: Annotated[
        int | None, _budget("--crop", "Padding of the random crops, 0: only flips; the paper's is 4.")
    ] = None,
    gamma: Annotated[
        float | None, _budget("--gamma", "For the rows with CR, where the paper says 0.5 and 0.1.")
    ] = None,
    seed: Annotated[str, _budget("--seed", "One or several (0,1,2): every row runs once per seed.")] = "0",
    count: Annotated[int, _budget("--count", "Images to time in the time tables, 128 or more.")] = 10_000,
    data_root: Annotated[
        Path | None,
        _machine("--data-root", "Folder with the CIFAR data; else $LIPCERT_DATA, else ~/.cache/lipcert."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="CPU threads per row.", rich_help_panel="Machine", min=1)
    ] = None,
    precision: Annotated[str, _machine("--precision", "fp32 or bf16-mixed.")] = "fp32",
    cluster: Annotated[str, _machine("--cluster", "Run rows on Ray: ray, or ray://host:port.")] = "",
) -> None:
    """Reproduce a table or figure of the paper. The default budget is the paper's."""
    _refuse_ignored(context, name)
    if name == "list":
        _list()
    elif name in FIGURE_NAMES:
        _figure(name, out)
    elif name == "results":
        _results(out, results)
    else:
        # Torch takes seconds to import, and --help does not need it.
        from lipcert.paper.budget import Budget
        from lipcert.paper.reproduction import Reproduction, parse_seeds, select

        if data_root is not None:
            os.environ["LIPCERT_DATA"] = str(data_root.resolve())
        if epochs is not None and minutes is not None:
            raise ArgumentError("minutes: takes the place of --epochs; leave one of the two out")
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
        budget = Budget(
            epochs=Budget.epochs if epochs is None else epochs,
            minutes=minutes,
            width=width,
            schedule=schedule,
            lr=lr,
            nesterov=nesterov,
            series=series,
            crop=crop,
            gamma=gamma,
            precision=precision,
            threads=threads,
        )
        _tables(
            Reproduction(chosen, budget, parse_seeds(seed), out),
            cluster=cluster,
            images=count,
            dry_run=dry_run,
        )


reproduce.__doc__ = f"{reproduce.__doc__}\n{EXAMPLES}"


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
    others = ("all", "list", "results", *FIGURE_NAMES)
    names = [choose("NAME", part.strip(), [*tables(), *others]) for part in name.split(",")]
    if alone := [part for part in names if part in others]:
        raise ArgumentError(f"NAME: {alone[0]!r} stands alone and is not combined with other names")
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
    console.print(
        f"{rows} rows in all, {len(networks())} distinct networks. Also: figure1, figure2, all, results."
    )


def _figure(name: str, out: Path) -> None:
    from lipcert.paper.figures import write_figure

    _say_written(write_figure(name, out / "figures"))


def _results(runs: Path, results: Path) -> None:
    from lipcert.paper.keep import keep_runs
    from lipcert.paper.results import write_results

    kept = keep_runs(runs, results)
    for folder in kept:
        typer.echo(f"kept {folder}")
    if not kept:
        typer.echo(f"no finished run in {runs}")
    _say_written([write_results(results), *_draw_curves(results)])


def _draw_curves(results: Path) -> "Iterable[Path]":
    """The pictures that RESULTS.md shows: a curve per dataset, the paper's numbers as crosses."""
    from lipcert.paper.curves import best_runs, curve_file
    from lipcert.paper.keep import read_certificates
    from lipcert.paper.measure import epochs_of, finished_runs
    from lipcert.paper.tables import reported_rows
    from lipcert.report.plots.curve import Reported, curve_figure
    from lipcert.report.style import write_png

    for dataset, run in best_runs(finished_runs(results)).items():
        crosses = None
        if printed := reported_rows().get(run.network):
            values = {column: float(value) for column, value in printed[1].reported.items()}
            crosses = Reported("the paper, 200 epochs", values)
        name = f"lipcert, {epochs_of(run, 0)} epochs"
        figure = curve_figure({name: read_certificates(run.folder)}, crosses)
        write_png(figure, curve_file(results, dataset))
        yield curve_file(results, dataset)


def _tables(reproduction: "Reproduction", *, cluster: str, images: int, dry_run: bool) -> None:
    import torch

    from lipcert.cli.allocator import keep_freed_memory
    from lipcert.paper.times import TIMES, check_count, time_networks, time_sheet

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
    if reproduction.budget.threads is not None:
        torch.set_num_threads(reproduction.budget.threads)
    failures = _run(reproduction, cluster)
    for sheet in reproduction.sheets():
        _show(sheet, reproduction.out)
    for table, rows in reproduction.timed:
        folder = reproduction.out / TIMES
        timings = time_networks(rows, folder, width=reproduction.budget.width, images=images)
        _show(time_sheet(table, rows, timings), reproduction.out)
    if failures:
        raise TrainingError(
            f"{len(failures)} of {len(reproduction.jobs)} runs failed; the first is "
            f"{failures[0].job.out.name}: {failures[0].message}"
        ) from failures[0].error


def _show(sheet: "Sheet", out: Path) -> None:
    from lipcert.paper.render import terminal, write

    Console().print(terminal(sheet))
    _say_written(write(sheet, out / "tables"))


def _run(reproduction: "Reproduction", cluster: str) -> "Sequence[Failure]":
    from lipcert.paper.run import run_in_order
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
