"""Pictures of concurrent requests are certified together, by one thread."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from lipcert.certify.network import ProvedNetwork
from lipcert.pictures import Picture, answers

Answer = dict[str, Any]


class BusyError(Exception):
    """More pictures are waiting than the service holds; try again later."""


class Batcher:
    """A bounded queue in front of a network.

    A batch is never delayed to fill up: when the network is free it takes all waiting pictures, up to
    `largest`. So a single request is answered at once, and batches grow with the load.

    Args:
        network: to certify with.
        largest: pictures in one batch.
        waiting: pictures that may wait; beyond that `certify` raises.
        batched: called with the size of every batch.
    """

    def __init__(
        self, network: ProvedNetwork, *, largest: int, waiting: int, batched: Callable[[int], None]
    ) -> None:
        self.network, self.largest, self.waiting, self.batched = network, largest, waiting, batched
        self._queue: asyncio.Queue[tuple[Picture, asyncio.Future[Answer]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "lipcert-certify")

    def __len__(self) -> int:
        return self._queue.qsize()

    async def certify(self, pictures: Sequence[Picture]) -> list[Answer]:
        """Answers for the pictures of one request.

        Raises:
            BusyError: they do not fit into the queue.
        """
        if len(self) + len(pictures) > self.waiting:
            raise BusyError
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in pictures]
        for entry in zip(pictures, futures, strict=True):
            self._queue.put_nowait(entry)
        return list(await asyncio.gather(*futures))

    async def run(self) -> None:
        """Certify what arrives, until this task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self.largest and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            # Skip requests whose client has disconnected.
            batch = [(picture, future) for picture, future in batch if not future.done()]
            if not batch:
                continue
            self.batched(len(batch))
            pictures = [picture for picture, _ in batch]
            try:
                found = await loop.run_in_executor(self._thread, self._certify, pictures)
            except Exception as error:  # of the network: every request of the batch gets it
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), answer in zip(batch, found, strict=True):
                    if not future.done():
                        future.set_result(answer)

    def _certify(self, pictures: Sequence[Picture]) -> list[Answer]:
        found = self.network.certify(torch.stack([picture.pixels for picture in pictures]))
        return answers(self.network, pictures, found)
