"""What stands in front of every request: limits on its size, and a clock."""

import time

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lipcert.serve.metrics import Metrics

PATHS = ("/certify", "/certify/batch", "/health", "/metrics")
"""Counted by name; all others together, so that strangers cannot make the list long."""
CERTIFYING = PATHS[:2]
TOGETHER, DRAINED = 16, 8
"""In units of the largest request: what all requests may hold at once, and what is read of one too large."""


class Gate:
    """Refuses bodies above `largest` bytes, announced or not, and counts requests.

    All requests together may hold `TOGETHER` times as much.

    Args:
        app: answers the rest.
        metrics: count here.
        largest: bytes of a request's body.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, largest: int) -> None:
        self.app, self.metrics, self.largest = app, metrics, largest
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, received = time.perf_counter(), 500, 0

        async def count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received, self.held = received + size, self.held + size
            if received > self.largest:
                await self._drain(message, receive)
                raise HTTPException(413, self._too_large())
            if self.held > TOGETHER * self.largest:
                busy = "too many large requests at once; try again after a second"
                raise HTTPException(503, busy, {"Retry-After": "1"})
            return message

        try:
            if _announced(scope) > self.largest:
                await self._drain({"more_body": True}, receive)
                refusal = JSONResponse({"error": self._too_large()}, 413, {"connection": "close"})
                await refusal(scope, receive, count)
            else:
                await self.app(scope, limited, count)
        finally:
            self.held -= received
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.requests[path, status] += 1
            if path in CERTIFYING:
                self.metrics.seconds.add(time.perf_counter() - started)

    async def _drain(self, message: Message, receive: Receive) -> None:
        """Read on and keep nothing: many clients look for an answer only once they have sent all."""
        left = DRAINED * self.largest
        while left > 0 and message.get("more_body", False):
            message = await receive()
            left -= len(message.get("body", b""))

    def _too_large(self) -> str:
        return f"the request is larger than {self.largest / 1e6:g} MB; send fewer or smaller pictures"


def _announced(scope: Scope) -> int:
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0
