"""Ctrl-C and SIGTERM end a run between two steps, so that what is saved is a whole state."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """The user, or the cluster, ended the run; its state is saved and the message says how to go on."""


class StoppedAtOnce(Interrupted):
    """The second signal: this process stops where it is, and the others may not."""


class Interruption:
    """While entered, the first SIGINT or SIGTERM only sets `requested`; the second acts at once.

    Outside of the main thread, where Python allows no signal handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise StoppedAtOnce("stopped at once; go on from the last checkpoint with --resume")
        self.requested = True
