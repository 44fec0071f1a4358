"""Shares of one piece of work among processes: who does what, and how all get every result."""

from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Shares:
    """Which items each process works on; the same on all of them.

    Args:
        rank: this process.
        items: the items of every process, in order.
    """

    rank: int
    items: list[list[int]]

    @property
    def own(self) -> list[int]:
        """The items of this process."""
        return self.items[self.rank]


def fair_shares(costs: list[float]) -> Shares:
    """Give every item, the dearest first, to the process that has least to do; all to one without others.

    >>> fair_shares([3.0, 1.0]).items
    [[0, 1]]
    """
    rank, size = 0, 1
    if distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
    return Shares(rank, assign(costs, size))


def assign(costs: list[float], size: int) -> list[list[int]]:
    """Items of each of `size` processes.

    >>> assign([2.0, 5.0, 4.0, 2.0], 2)
    [[1, 3], [0, 2]]
    """
    load = [0.0] * size
    items: list[list[int]] = [[] for _ in range(size)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        least = load.index(min(load))
        load[least] += costs[index]
        items[least].append(index)
    return [sorted(own) for own in items]


def gather_shares(shares: Shares, like: list[Tensor], results: dict[int, Tensor]) -> list[Tensor]:
    """The results of all processes, in the order of the items; a broadcast per process, bits unchanged.

    Args:
        shares: from `fair_shares`.
        like: a tensor per item, of the shape, dtype and device of its result.
        results: of this process, by item.
    """
    found = dict(results)
    if len(shares.items) > 1:
        waiting = []
        for rank, items in enumerate(shares.items):
            if not items:
                continue
            if rank == shares.rank:
                flat = torch.cat([results[index].flatten() for index in items])
            else:
                flat = like[0].new_empty(sum(like[index].numel() for index in items))
            waiting.append((distributed.broadcast(flat, rank, async_op=True), flat, items))
        for handle, flat, items in waiting:
            handle.wait()
            parts = torch.split(flat, [like[index].numel() for index in items])
            found.update({i: part.view(like[i].shape) for i, part in zip(items, parts, strict=True)})
    return [found[index] for index in range(len(like))]
