"""lipcert average: one proved network from several, or from one and its mirror image."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lipcert.cli.completion import network_names
from lipcert.cli.console import say
from lipcert.errors import ArgumentError
from lipcert.runs.naming import find_run


def average(
    named: Annotated[
        list[Path],
        typer.Argument(
            metavar="NETWORK...",
            help="Folders of runs, .safetensors files, or names of `lipcert zoo list`.",
            autocompletion=network_names,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The proved file to write.")],
    mirror: Annotated[
        bool, typer.Option("--mirrored", help="Average over every image and its mirror image too.")
    ] = False,
) -> None:
    """Average the logits of networks with the same classes. What is proved of them carries over.

    Examples:

    lipcert average runs/a --mirrored --out best.proved.safetensors

    lipcert average runs/a runs/b runs/c --mirrored --out best.proved.safetensors
    """
    runs = [find_run(name) for name in named]

    from lipcert.certify.averages import average as average_of
    from lipcert.certify.averages import mirrored
    from lipcert.certify.curve import shown_bound

    try:
        network = runs[0].network if len(runs) == 1 else average_of([run.network for run in runs])
    except ArgumentError as error:
        message = str(error)
        for k, name in enumerate(named):
            message = message.replace(f"models[{k}]", str(name))
        raise ArgumentError(message) from error
    network = mirrored(network) if mirror else network
    network.save(out)
    say(f"{out}: {network.name}, {out.stat().st_size / 1e6:.1f} MB, SHA-256 {network.hash[:16]}...")
    data = {run.data for run in runs}
    images = data.pop() if len(data) == 1 else None
    say(f"Proved Lipschitz bound {shown_bound(network.lipschitz)}.")
    say(f"Certify with it: lipcert certify {shlex.quote(str(out))} --data {images or 'IMAGES'}")
