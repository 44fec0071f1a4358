"""Serving the page on this machine until it is stopped."""

import os
import tempfile
import time
from collections.abc import Callable

from lipcert.errors import ArgumentError
from lipcert.explore.page import build_page, looks
from lipcert.explore.session import Session
from lipcert.ports import LOCAL

LARGEST_UPLOAD = "50mb"


def serve(session: Session, network: str, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; pictures that were dropped on it are deleted then.

    Args:
        session: answers the clicks.
        network: its name, for the heading.
        host: address of this machine.
        port: a free one.
        ready: called with the address of the page.

    Raises:
        ArgumentError: gradio is missing, or the port was taken in the meantime.
    """
    # gradio requests its own page once to check it, which must not go through a proxy.
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
