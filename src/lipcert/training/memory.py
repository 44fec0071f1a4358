"""The memory of a training step, as the tensors that are alive in it."""

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lipcert.runs.config import TrainConfig
from lipcert.training.devices import make_fabric, restored_settings
from lipcert.training.interruption import Interruption
from lipcert.training.parts import Split
from lipcert.training.progress import Silent
from lipcert.training.trainer import Trainer

STEPS = 2
"""The second step finds what the first one left: the state of the optimizer, the average of the weights."""


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that functions of torch take and return, for as long as they live.

    Views of one storage count once. What a function allocates for itself and frees before it returns, and
    what an allocator keeps in reserve, is not seen.

    Attributes:
        now: bytes at present.
        peak: the largest number so far.

    >>> with LiveTensors() as live:
    ...     x = torch.ones(1000)
    ...     x = (x + 1)[:10] + torch.ones(10)
    >>> live.peak, live.now
    (8080, 40)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor) and value.layout == torch.strided:
                self._count(value.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()  # torch keeps one object for each storage
        if key in self._alive:
            return

        def release(_: object) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, release)
        self.now += size
        self.peak = max(self.peak, self.now)


@restored_settings()
def step_memory(config: TrainConfig, split: Split) -> int:
    """Largest number of bytes that tensors hold at once in a training step of a run, on one device.

    Weights, gradients, the state of the optimizer and activations; the same on every machine, and whatever
    ran in the process before.

    Args:
        config: the options of the run.
        split: its images.
    """
    fabric = make_fabric(dataclasses.replace(config, devices=1, nodes=1, tensorboard=False))
    trainer = Trainer(config, Path(), fabric, Silent(), Interruption(), split=split)
    trainer.model.train()
    images, labels, _ = next(iter(trainer.batches(0)))
    with LiveTensors() as live:
        for step in range(STEPS):
            trainer.take_step(images, labels, step)
    peak: int = live.peak  # of a base class without types
    return peak
