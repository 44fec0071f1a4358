"""holdfast zoo: the networks that ship with the package."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.console import help_without_command, print_json, print_table, say
from holdfast.cli.network import shipped_networks
from holdfast.errors import CheckpointError

zoo_app = typer.Typer(help="Networks that ship with holdfast.")
zoo_app.callback(invoke_without_command=True)(help_without_command)
EXAMPLES = """
Examples:

holdfast zoo list

holdfast zoo list --json
"""


def list_zoo(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """List the networks that can be used at once, by name."""
    rows = [
        {"name": name, "megabytes": file.stat().st_size / 1e6, **_describe(file)}
        for name, file in shipped_networks().items()
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("No network ships with this version of holdfast yet. Train your own:")
        say("  holdfast demo                               digits, about a minute")
        say("  holdfast train --data cifar10 --minutes 60 --out runs/a")
        return
    print_table(
        "Networks that ship with holdfast",
        ["Name", "Network", "Classes", "MB"],
        [
            [
                row["name"],
                f"LipConvnet-{row['depth']}, {row['conv']}, {row['activation']}, {row['head']}",
                str(row["num_classes"]),
                f"{row['megabytes']:.1f}",
            ]
            for row in rows
        ],
        numbers=2,
    )
    say(f"Try one: holdfast certify --zoo {rows[0]['name']} --images my.png")


list_zoo.__doc__ = f"{list_zoo.__doc__}\n{EXAMPLES}"
zoo_app.command("list")(list_zoo)


def _describe(file: Path) -> dict[str, Any]:
    """The arguments that the network was built with, from the head of its file."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        try:
            header = json.loads(content.read(length))["__metadata__"]["holdfast"]
            config: dict[str, Any] = json.loads(header)["config"]
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{file}: is damaged; install holdfast again") from error
    return config
