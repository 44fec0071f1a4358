"""Runs the service until a signal stops it; requests that have begun are answered first."""

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

PATIENCE = 30
"""Seconds that complete requests have to be answered after the signal to stop."""


class Server(uvicorn.Server):
    """uvicorn with callbacks for the start and the begin of the shutdown.

    Args:
        config: of uvicorn.
        ready: called once requests are accepted.
        stop: called when they are no longer accepted.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._stop = ready, stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and wait for the requests that have begun."""
        self._stop()
        await super().shutdown(sockets)


def run(app: FastAPI, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Serve on a bound socket until SIGINT (Ctrl-C) or SIGTERM, then return.

    Args:
        app: answers requests, made by `lipcert.serve.app.create_app`.
        bound: where to listen.
        ready: called once requests are accepted.
    """
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=PATIENCE
    )
    # uvicorn raises the signal again after it has stopped; it must not end the process.
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Server(config, ready, app.state.bodies.stop).run(sockets=[bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Take a signal and do nothing."""
