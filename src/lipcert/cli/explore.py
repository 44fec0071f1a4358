"""lipcert explore: a local web page about single images, their certificates and the nearest attack."""

from pathlib import Path
from typing import Annotated

import typer

from lipcert.cli.console import say
from lipcert.cli.network import find_network, open_network, test_images
from lipcert.cli.options import Data, Weights, Zoo

EXAMPLES = """
Examples:

lipcert explore runs/a

lipcert explore runs/a --data photos/ --port 8000

lipcert explore --zoo lipconvnet5-cifar10
"""


def explore(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of a run, or a .safetensors file.")
    ] = None,
    zoo: Zoo = None,
    data: Data = None,
    weights: Weights = "best",
    port: Annotated[int, typer.Option("--port", help="Of the page.", min=1, max=65535)] = 7860,
    host: Annotated[
        str, typer.Option("--host", help="Address to serve on; the default is open to this machine alone.")
    ] = "127.0.0.1",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Serve a local page: pick an image, see its certificate and the attack that comes closest."""
    source = find_network(run, zoo, weights)

    from lipcert.cli.own_images import read_picture
    from lipcert.explore.choices import choices
    from lipcert.explore.page import need_gradio
    from lipcert.explore.server import LOCAL, check_port, serve
    from lipcert.explore.session import Session
    from lipcert.explore.state import Explorer

    check_port(host, port)
    need_gradio()
    network = open_network(source, device)
    images = test_images(source, data, network)
    say(f"Looking at {images.name} with {source.name} ...")
    explorer = Explorer(network)
    session = Session(
        explorer, choices(explorer, images), lambda file: read_picture(file, network.input_shape, resize=True)
    )

    def ready(address: str) -> None:
        if host not in LOCAL:
            say(f"Everybody who can reach {host} can use the page; there is no password.")
        say(f"Open {address} in a browser; Ctrl-C ends.")

    serve(session, source.name, host, port, ready)
    say("The page is closed.")


explore.__doc__ = f"{explore.__doc__}\n{EXAMPLES}"
