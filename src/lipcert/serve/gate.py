"""Middleware in front of the service: limits on the size and time of requests, and counters."""

import asyncio
import time
from contextlib import suppress

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lipcert.serve.bodies import Bodies
from lipcert.serve.metrics import Metrics

PATHS = ("/certify", "/certify/batch", "/health", "/metrics")
"""Paths that are counted by name; all others together, so that the list stays short."""
CERTIFYING = PATHS[:2]
TOGETHER, DRAINED = 16, 8
"""In units of the largest request: what all requests may hold at once, and what is read of one too large."""
CLOSE = {"connection": "close"}
STOPPING = "the service is stopping; try again later"


class Gate:
    """Refuses bodies above `largest` bytes and bodies that arrive too late; counts requests.

    All requests together may hold `TOGETHER` times `largest` bytes.

    Args:
        app: answers the rest.
        metrics: count here.
        largest: bytes of a request's body.
        bodies: have the deadlines.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, largest: int, bodies: Bodies) -> None:
        self.app, self.metrics, self.largest, self.bodies = app, metrics, largest, bodies
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, received = time.perf_counter(), 0, 0
        deadline, arriving = self.bodies.deadline(), True

        async def count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def timed() -> Message:
            nonlocal arriving
            if not arriving:  # after the body only a disconnect follows
                return await receive()
            message = await self.bodies.next(receive, deadline)
            arriving = message.get("more_body", False)
            return message

        async def limited() -> Message:
            nonlocal received
            try:
                message = await timed()
            except TimeoutError as error:
                raise self._too_late() from error
            size = len(message.get("body", b""))
            received, self.held = received + size, self.held + size
            if received > self.largest:
                await self._drain(message, timed)
                raise HTTPException(413, self._too_large(), CLOSE)
            if self.held > TOGETHER * self.largest:
                busy = "too many large requests at once; try again after a second"
                raise HTTPException(503, busy, {"Retry-After": "1"})
            return message

        try:
            if _announced(scope) > self.largest:
                await self._drain({"more_body": True}, timed)
                await JSONResponse({"error": self._too_large()}, 413, CLOSE)(scope, receive, count)
            else:
                await self.app(scope, limited, count)
        except asyncio.CancelledError:  # the graceful shutdown has timed out
            if not status:
                await JSONResponse({"error": STOPPING}, 503, CLOSE)(scope, receive, count)
        finally:
            self.held -= received
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.requests[path, status or 500] += 1
            if path in CERTIFYING:
                self.metrics.seconds.add(time.perf_counter() - started)

    async def _drain(self, message: Message, receive: Receive) -> None:
        """Read and discard the rest: many clients read the answer only after they have sent everything."""
        left = DRAINED * self.largest
        with suppress(TimeoutError):
            while left > 0 and message.get("more_body", False):
                message = await receive()
                left -= len(message.get("body", b""))

    def _too_late(self) -> HTTPException:
        if self.bodies.stopping:
            return HTTPException(503, STOPPING, CLOSE)
        late = (
            f"the body of the request did not arrive within {self.bodies.seconds:g} seconds; send it faster, "
            "or send fewer or smaller pictures"
        )
        return HTTPException(408, late, CLOSE)

    def _too_large(self) -> str:
        return f"the request is larger than {self.largest / 1e6:g} MB; send fewer or smaller pictures"


def _announced(scope: Scope) -> int:
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0
