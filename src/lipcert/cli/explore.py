"""lipcert explore: a local web page about single images, their certificates and the nearest attack."""

from typing import Annotated

import typer

from lipcert.cli.console import say
from lipcert.cli.options import Data, Device, Network, Weights
from lipcert.cli.places import pick_device
from lipcert.runs.naming import find_run


def explore(
    named: Network,
    data: Data = None,
    weights: Weights = "best",
    port: Annotated[int, typer.Option("--port", help="Port of the page.", min=1, max=65535)] = 7860,
    host: Annotated[
        str, typer.Option("--host", help="Address to serve on; the default is open to this machine alone.")
    ] = "127.0.0.1",
    device: Device = "auto",
) -> None:
    """Serve a local page: pick an image, see its certificate and the attack that comes closest.

    Examples:

    lipcert explore runs/a

    lipcert explore runs/a --data photos/ --port 8000

    lipcert explore lipconvnet5-cifar10
    """
    run = find_run(named, weights)

    from lipcert.explore.choices import choices
    from lipcert.explore.page import need_gradio
    from lipcert.explore.server import serve
    from lipcert.explore.session import Session
    from lipcert.explore.state import Explorer
    from lipcert.pictures import as_levels, read_picture
    from lipcert.ports import LOCAL, bind_port

    bind_port(host, port).close()  # before the slow part begins
    need_gradio()
    network = run.network.to(pick_device(device))
    images = run.test_images(data)
    say(f"Looking at {images.name} with {run.name} ...")
    explorer = Explorer(network)
    session = Session(
        explorer, choices(explorer, images), lambda file: as_levels(read_picture(file, network.input_shape))
    )

    def ready(address: str) -> None:
        if host not in LOCAL:
            say(f"Everybody who can reach {host} can use the page; there is no password.")
        say(f"Open {address} in a browser; Ctrl-C ends.")

    serve(session, run.name, host, port, ready)
    say("The page is closed.")
