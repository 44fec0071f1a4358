"""lipcert serve: certificates over HTTP, on this machine."""

from typing import Annotated

import typer

from lipcert.cli.console import say, silence_pillow
from lipcert.cli.options import Device, Network, Weights
from lipcert.cli.places import pick_device
from lipcert.errors import not_installed
from lipcert.runs.naming import find_run


def serve(
    named: Network,
    weights: Weights = "best",
    port: Annotated[
        int, typer.Option("--port", help="Port of the service; 0 chooses a free one.", min=0, max=65535)
    ] = 8000,
    host: Annotated[
        str, typer.Option("--host", help="Address to serve on; the default is open to this machine alone.")
    ] = "127.0.0.1",
    batch: Annotated[
        int, typer.Option("--batch", help="Pictures that are certified together.", min=1, max=1024)
    ] = 32,
    waiting: Annotated[
        int, typer.Option("--waiting", help="Pictures that may wait; more are refused (503).", min=1)
    ] = 256,
    megabytes: Annotated[
        int, typer.Option("--megabytes", help="Largest request; a larger one is refused (413).", min=1)
    ] = 32,
    seconds: Annotated[
        int,
        typer.Option("--seconds", help="For the body of a request; a slower one is refused (408).", min=1),
    ] = 60,
    device: Device = "auto",
) -> None:
    """Serve certificates: POST a picture to /certify, get its class and a proved radius.

    Examples:

    lipcert serve runs/a

    lipcert serve lipconvnet5-cifar10 --port 9000

    curl --data-binary @my.png http://127.0.0.1:8000/certify
    """
    run = find_run(named, weights)

    try:
        from lipcert.serve.app import create_app
        from lipcert.serve.server import run as serve_on
    except ImportError as error:
        raise not_installed("serve", str(error.name), "serve") from error
    from lipcert.ports import LOCAL, bind_port

    silence_pillow()
    with bind_port(host, port) as bound:
        say(f"Opening {run.name} ...")
        network = run.network.to(pick_device(device))
        app = create_app(
            network, run.name, batch=batch, waiting=waiting, megabytes=megabytes, seconds=seconds
        )
        place = f"[{host}]" if ":" in host else host
        address = f"http://{place}:{bound.getsockname()[1]}"

        def ready() -> None:
            if host not in LOCAL:
                say(f"Everybody who can reach {host} can use the service; there is no password.")
            say(f"Serving {run.name} on {address}; its page is {address}/docs; Ctrl-C ends.")

        serve_on(app, bound, ready)
    say("The service has stopped.")
