"""Options that several commands share, and command options made from `TrainConfig`."""

from collections.abc import Callable, Container, Iterable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lipcert.cli.completion import data_names, network_names
from lipcert.errors import ArgumentError
from lipcert.runs.config import PANELS, TrainConfig, options

C = TypeVar("C", bound=Callable[..., None])
COMPLETIONS = {"data": data_names, "start_from": network_names}

Network = Annotated[
    Path,
    typer.Argument(
        metavar="NETWORK",
        help="Folder of a run, a .safetensors file, or a name of `lipcert zoo list`.",
        autocompletion=network_names,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="digits, cifar10, cifar100 or a folder of images; default: that of the run.",
        autocompletion=data_names,
    ),
]
Count = Annotated[int | None, typer.Option("--count", help="Use only the first COUNT test images.", min=1)]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Weights = Annotated[str, typer.Option("--weights", help="Of a run: last, or best on held-out images.")]


def given_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `takes_options` that were given.

    Raises:
        ArgumentError: --epochs and --minutes together.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    if {"epochs", "minutes"} <= given.keys():
        raise ArgumentError("minutes: replaces --epochs; give only one of the two")
    return given


def takes_options(names: Iterable[str], base: TrainConfig, decided: Container[str] = ()) -> Callable[[C], C]:
    """Decorator: replaces a command's `**` argument by the options `names`, None unless given.

    Args:
        names: of options.
        base: its values are shown as defaults.
        decided: options whose default is shown as "by the recipe".
    """

    def parameter(name: str) -> Parameter:
        kind, about = options()[name]
        flag, default = "--" + name.replace("_", "-"), getattr(base, name)
        is_switch = isinstance(default, bool)
        shown = ("off", "on")[default] if is_switch else default is not None and str(default)
        if name in decided:
            shown = "by the recipe"
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if is_switch else flag,
            help=about.help,
            show_default=shown,
            rich_help_panel=about.panel,
            autocompletion=COMPLETIONS.get(name),
        )
        return Parameter(
            name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
        )

    def decorate(command: C) -> C:
        plain = signature(command)
        own = [p for p in plain.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        ordered = sorted(names, key=lambda name: PANELS.index(options()[name][1].panel))
        made = plain.replace(parameters=[*own, *map(parameter, ordered)])
        command.__signature__ = made  # type: ignore[attr-defined]
        return command

    return decorate
