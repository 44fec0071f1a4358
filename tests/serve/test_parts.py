"""The queue, the counters and the gate, without a network connection."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch

from lipcert.certify.certificates import Certificates
from lipcert.errors import NotProvedError
from lipcert.pictures import Picture
from lipcert.serve.batching import Batcher, BusyError
from lipcert.serve.bodies import Bodies
from lipcert.serve.gate import Gate
from lipcert.serve.metrics import Histogram, Metrics

SCOPE: dict[str, Any] = {"type": "http", "path": "/certify", "headers": []}


class Slow:
    """Stands for a network: certifies when it is let, and notes the sizes of batches."""

    classes, hash = ("a", "b"), "0" * 64

    def __init__(self, error: Exception | None = None) -> None:
        self.free, self.error = threading.Event(), error

    def certify(self, pixels: torch.Tensor) -> Certificates:
        assert self.free.wait(30)
        if self.error is not None:
            raise self.error
        radius = pixels.flatten(1)[:, 0]
        zeros = torch.zeros(len(pixels), dtype=torch.int64)
        return Certificates(zeros, radius, zeros + 1, radius, radius, 1.0)


def picture(number: int) -> Picture:
    return Picture(torch.full((1, 1, 1), float(number), dtype=torch.float64), "", (1, 1))


def with_batcher(
    network: Slow, use: Callable[[Batcher, list[int]], Coroutine[Any, Any, None]], **options: int
) -> None:
    async def main() -> None:
        sizes: list[int] = []
        queue: Any = network
        batcher = Batcher(queue, **({"largest": 4, "waiting": 10} | options), batched=sizes.append)  # type: ignore[arg-type]
        worker = asyncio.create_task(batcher.run())
        try:
            await asyncio.wait_for(use(batcher, sizes), 30)
        finally:
            network.free.set()
            worker.cancel()

    asyncio.run(main())


def test_what_waits_is_certified_together() -> None:
    network = Slow()

    async def use(batcher: Batcher, sizes: list[int]) -> None:
        requests = [asyncio.create_task(batcher.certify([picture(0)]))]
        await until(lambda: sizes == [1])  # a lone picture does not wait for others
        requests += [asyncio.create_task(batcher.certify([picture(n)])) for n in range(1, 5)]
        requests.append(asyncio.create_task(batcher.certify([picture(5), picture(6)])))
        await until(lambda: len(batcher) == 6)
        network.free.set()
        found = [row["radius"] for rows in await asyncio.gather(*requests) for row in rows]
        assert found == [0, 1, 2, 3, 4, 5, 6]
        assert sizes == [1, 4, 2]

    with_batcher(network, use)


def test_more_than_may_wait_is_refused_and_forgotten_requests_are_dropped() -> None:
    network = Slow()

    async def use(batcher: Batcher, sizes: list[int]) -> None:
        first = asyncio.create_task(batcher.certify([picture(0)]))
        await until(lambda: sizes == [1])
        second = asyncio.create_task(batcher.certify([picture(1), picture(2)]))
        await until(lambda: len(batcher) == 2)
        with pytest.raises(BusyError):
            await batcher.certify([picture(3), picture(4)])
        second.cancel()
        third = asyncio.create_task(batcher.certify([picture(5)]))
        await until(lambda: len(batcher) == 3)
        network.free.set()
        assert [row["radius"] for row in await first + await third] == [0, 5]
        assert sizes == [1, 1]

    with_batcher(network, use, waiting=3)


def test_an_error_reaches_every_request_and_the_queue_goes_on() -> None:
    network = Slow(NotProvedError("overflow"))
    network.free.set()

    async def use(batcher: Batcher, sizes: list[int]) -> None:
        found = await asyncio.gather(
            batcher.certify([picture(0)]), batcher.certify([picture(1)]), return_exceptions=True
        )
        assert [str(error) for error in found] == ["overflow"] * 2
        network.error = None
        assert [row["radius"] for row in await batcher.certify([picture(2)])] == [2]

    with_batcher(network, use)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_histogram_counts_up_to_its_limits() -> None:
    histogram = Histogram("size", "Of things.", (1, 2))
    for value in (1, 1.5, 2, 3):
        histogram.add(value)
    assert list(histogram.lines()) == [
        "# HELP size Of things.",
        "# TYPE size histogram",
        'size_bucket{le="1"} 1',
        'size_bucket{le="2"} 3',
        'size_bucket{le="+Inf"} 4',
        "size_sum 7.5",
        "size_count 4",
    ]


def test_all_requests_together_have_a_limit() -> None:
    """Sixteen of the largest may be held at once; the next one is refused, until one of them is done."""

    async def main() -> None:
        held, release = [], asyncio.Event()

        async def hold(scope: Any, receive: Any, send: Any) -> None:
            try:
                held.append(len((await receive())["body"]))
                await release.wait()
            except Exception as error:
                held.append(error)

        gate = Gate(hold, Metrics(), 10, Bodies(30))

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": bytes(10)}

        async def send(message: Any) -> None:
            pass

        waiting = [asyncio.create_task(gate(SCOPE, receive, send)) for _ in range(16)]
        await until(lambda: len(held) == 16)
        await gate(SCOPE, receive, send)
        refused = held.pop()
        assert (refused.status_code, held) == (503, [10] * 16)
        release.set()
        await asyncio.gather(*waiting)
        assert gate.held == 0

    asyncio.run(main())


class Stalled:
    """A request whose body stops after `sent` bytes, and what its application and its client get to see."""

    def __init__(self, bodies: Bodies, *, sent: int = 5, announced: int = 8) -> None:
        self.refused: Any = None
        self.answer: list[Any] = []
        self.metrics = Metrics()
        self.gate = Gate(self._read, self.metrics, 10, bodies)
        self._scope = SCOPE | {"headers": [(b"content-length", str(announced).encode())]}
        self._left = [bytes(sent)]

    async def run(self) -> None:
        await asyncio.wait_for(self.gate(self._scope, self._receive, self._send), 30)

    async def _read(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            while (await receive())["more_body"]:
                pass
        except Exception as error:
            self.refused = error

    async def _receive(self) -> dict[str, Any]:
        if not self._left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._left.pop(), "more_body": True}

    async def _send(self, message: Any) -> None:
        self.answer.append(message)


def test_a_body_that_takes_too_long_is_refused_and_no_longer_held() -> None:
    async def main() -> None:
        request = Stalled(Bodies(0.05))
        await request.run()
        assert request.refused.status_code == 408
        assert "did not arrive within 0.05 seconds" in request.refused.detail
        assert request.refused.headers == {"connection": "close"}
        assert request.gate.held == 0

    asyncio.run(main())


@pytest.mark.parametrize(("sent", "announced"), [(5, 11), (11, 8)])
def test_a_body_that_is_too_large_may_not_take_longer(sent: int, announced: int) -> None:
    async def main() -> None:
        request = Stalled(Bodies(0.05), sent=sent, announced=announced)
        await request.run()
        assert (request.refused.status_code if announced < 10 else request.answer[0]["status"]) == 413

    asyncio.run(main())


def test_a_body_has_little_time_once_the_service_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipcert.serve.bodies.GRACE", 0.05)

    async def main() -> None:
        bodies = Bodies(1000)
        before, after = Stalled(bodies), Stalled(bodies)
        task = asyncio.create_task(before.run())
        await until(lambda: before.gate.held == 5)
        await asyncio.sleep(0)
        bodies.stop()
        await asyncio.gather(task, after.run())
        for request in (before, after):
            assert (request.refused.status_code, request.refused.detail) == (
                503,
                "the service is stopping; try again later",
            )

    asyncio.run(main())


def test_the_time_limit_is_of_the_body_alone() -> None:
    async def main() -> None:
        answered = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert not (await receive())["more_body"]
            await asyncio.sleep(0.1)
            assert (await receive())["type"] == "http.disconnect"
            answered.set()

        messages: list[dict[str, Any]] = [
            {"type": "http.disconnect"},
            {"type": "http.request", "body": b"", "more_body": False},
        ]

        async def receive() -> dict[str, Any]:
            if len(messages) == 1:  # the body arrives at once, whatever else the machine does
                await asyncio.sleep(0.1)
            return messages.pop()

        async def send(message: Any) -> None:
            pass

        await Gate(app, Metrics(), 10, Bodies(0.05))(SCOPE, receive, send)
        assert answered.is_set()

    asyncio.run(main())


def test_a_request_that_the_server_cancels_is_answered_quietly() -> None:
    async def main() -> None:
        request = Stalled(Bodies(1000))
        task = asyncio.create_task(request.gate(request._scope, request._receive, request._send))
        await until(lambda: request.gate.held == 5)
        task.cancel()
        await task
        assert (request.answer[0]["status"], request.gate.held) == (503, 0)
        assert request.metrics.requests["/certify", 503] == 1

    asyncio.run(main())
