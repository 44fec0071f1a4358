"""Options that several commands share: one wording, one completion."""

from typing import Annotated

import typer

from lipcert.cli.completion import data_names, shipped_names

Zoo = Annotated[
    str | None,
    typer.Option(
        "--zoo", help="A network that ships with lipcert, in place of RUN.", autocompletion=shipped_names
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="digits, cifar10, cifar100 or a folder of images; else the run's own.",
        autocompletion=data_names,
    ),
]
Weights = Annotated[str, typer.Option("--weights", help="Of a run: last, or best on held-out images.")]
