"""Serving the page on this machine: the port first, then the page, until it is stopped."""

import errno
import os
import socket
import tempfile
import time
from collections.abc import Callable

from lipcert.errors import ArgumentError
from lipcert.explore.page import build_page, looks
from lipcert.explore.session import Session

LOCAL = ("127.0.0.1", "localhost", "::1")
LARGEST_UPLOAD = "50mb"


def check_port(host: str, port: int) -> None:
    """Whether the page can be served there; asked before the slow part begins.

    Raises:
        ArgumentError: the port is in use or not allowed, or the host is none of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            if os.name == "posix":
                # There it means: connections that are just closing do not count, somebody who listens does.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except socket.gaierror as error:
        raise ArgumentError(f"host: expected a name or address of this machine, got {host!r}") from error
    except PermissionError as error:
        raise ArgumentError(f"port: {port} is not allowed here; choose one above 1023") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ArgumentError(
                f"port: {port} is in use on {host}; stop what uses it, or choose another, such as "
                f"--port {port + 1 if port < 65535 else 7860}"
            ) from error
        raise ArgumentError(f"host: cannot serve on {host}, port {port}: {error.strerror}") from error


def serve(session: Session, network: str, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; pictures that were dropped on it are deleted then.

    Args:
        session: answers the clicks.
        network: its name, for the heading.
        host: address of this machine.
        port: a free one.
        ready: told the address of the page.

    Raises:
        ArgumentError: gradio is missing, or somebody took the port in the meantime.
    """
    # gradio asks its own page once whether it answers; a proxy could not say.
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), host, *LOCAL]))
    with tempfile.TemporaryDirectory(prefix="lipcert-explore-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        style = looks()
        page = build_page(session, network)
        try:
            _, address, _ = page.launch(
                server_name=host,
                server_port=port,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                inbrowser=False,
                ssr_mode=False,
                mcp_server=False,
                footer_links=[],
                max_file_size=LARGEST_UPLOAD,
                **style,
            )
        except OSError as error:
            raise ArgumentError(f"port: {port} was taken on {host}; choose another") from error
        try:
            ready(address)
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return
        finally:
            page.close(verbose=False)
