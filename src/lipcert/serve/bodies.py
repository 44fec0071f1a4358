"""Time limits on receiving the bodies of requests."""

import asyncio
import math

from starlette.types import Message, Receive

GRACE = 5.0
"""Seconds that bodies have to arrive after the service was asked to stop."""


class Bodies:
    """The bodies that are being received, each with a deadline; `stop` brings all deadlines forward.

    Args:
        seconds: that a body may take from the beginning of its request.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._latest = math.inf
        self._awaited: dict[asyncio.Timeout, float] = {}

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._latest < math.inf

    def deadline(self) -> float:
        """Of a request that begins now, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + self.seconds

    async def next(self, receive: Receive, deadline: float) -> Message:
        """The next part of a body.

        Raises:
            TimeoutError: it did not arrive until the deadline, or in time after `stop`.
        """
        async with asyncio.timeout_at(min(deadline, self._latest)) as limit:
            self._awaited[limit] = deadline
            try:
                return await receive()
            finally:
                del self._awaited[limit]

    def stop(self) -> None:
        """Give bodies that are on their way `GRACE` seconds, those of new requests too."""
        self._latest = asyncio.get_running_loop().time() + GRACE
        for limit, deadline in self._awaited.items():
            limit.reschedule(min(deadline, self._latest))
