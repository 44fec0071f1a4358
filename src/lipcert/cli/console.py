"""Output of commands: messages, tables, JSON and progress bars."""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipcert.errors import ArgumentError


def complain(message: str, code: int) -> int:
    """Print an error message on standard error; returns `code`."""
    console = Console(stderr=True)
    # Names of files need not be text that can be printed.
    message = message.encode("utf-8", "backslashreplace").decode()
    console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def print_json(content: Any) -> None:
    """Print JSON on standard output."""
    typer.echo(json.dumps(content, indent=2))


def say(message: str) -> None:
    """Print a message; brackets in it are not read as markup."""
    Console().print(message, markup=False, highlight=False, soft_wrap=True)


def print_table(title: str, columns: list[str], rows: list[list[str]], *, numbers: int = 0) -> None:
    """Print a table; the last `numbers` columns are aligned to the right."""
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        right = place >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def make_folder(folder: Path) -> None:
    """Make the output folder and check that it can be written to, before the work begins.

    Raises:
        ArgumentError: it cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(f"out: cannot write to {folder}: {error.strerror or error}") from error


def silence_pillow() -> None:
    """Ignore Pillow's warnings about damaged EXIF data, in the whole process."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def help_without_command(context: typer.Context) -> None:
    """Callback of a group of commands: without a subcommand it prints the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, one line elsewhere, nothing if `quiet`; yields update(done, total)."""
    if quiet:
        yield lambda done, total: None
        return
    if not sys.stdout.isatty():
        typer.echo(title)
        yield lambda done, total: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
