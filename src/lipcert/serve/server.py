"""Running the service until it is told to stop; requests that have begun are answered first."""

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

PATIENCE = 30
"""Seconds that requests have to end after the signal to stop."""


class Server(uvicorn.Server):
    """uvicorn, which tells when it is ready.

    Args:
        config: of uvicorn.
        ready: called once requests are accepted.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()


def run(app: FastAPI, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Serve on a bound socket until SIGINT (Ctrl-C) or SIGTERM, then return.

    Args:
        app: answers requests.
        bound: where to listen.
        ready: called once requests are accepted.
    """
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=PATIENCE
    )
    # uvicorn raises the signal again when it has stopped; by then it has done its work.
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(config, ready).run(sockets=[bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Take a signal and do nothing."""
