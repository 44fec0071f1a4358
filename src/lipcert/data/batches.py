"""The batches of one epoch, each a function of (seed, epoch, step) alone."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lipcert.data.augment import Augmentation
from lipcert.data.dataset import Dataset, to_float
from lipcert.data.seeding import Stream, generator, permutation
from lipcert.errors import ArgumentError


class Batches:
    """Iterate over (images, labels, indices) of one epoch.

    Images are float32 in [0, 1], (n, C, H, W); indices are positions in the dataset, int64, (n,).

    Guarantee: a batch depends on the dataset and on (seed, epoch, step), on nothing that was drawn before, so
    a run that starts at `start_step` gets the bits it would have got. The randomness is drawn for the global
    batch and then cut by rank: the batches of all ranks, one after another, are the batch of a single
    process. Where `world_size` does not divide the last batch, the ranks' parts differ by one image and may
    be empty.

    Args:
        dataset: what to iterate over. Batches live on its device.
        batch_size: images per step over all processes together; a multiple of `world_size`.
        seed, epoch: which order and which augmentation.
        shuffle: random order, else the dataset's own.
        drop_last: leave out a last batch that is not full.
        augment: for example `CropFlip()`; works on the uint8 images.
        rank, world_size: which part of each batch this process gets.
        start_step: first step to yield.

    Raises:
        ArgumentError: an argument is out of range, or there is no batch at all.

    >>> tiny = Dataset("tiny", torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.zeros(5).long(), ("a",))
    >>> [indices.tolist() for _, _, indices in Batches(tiny, 2)]
    [[0, 1], [2, 3], [4]]
    >>> [indices.tolist() for _, _, indices in Batches(tiny, 2, start_step=2)]
    [[4]]
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        augment: Augmentation | None = None,
        rank: int = 0,
        world_size: int = 1,
        start_step: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ArgumentError(f"batch_size: expected at least 1, got {batch_size}")
        if world_size < 1 or batch_size % world_size:
            raise ArgumentError(
                f"batch_size: expected a multiple of the {world_size} processes, got {batch_size}; it counts "
                "the images of all processes together"
            )
        if not 0 <= rank < world_size:
            raise ArgumentError(f"rank: expected 0 to {world_size - 1}, got {rank}")
        self.dataset, self.batch_size, self.augment = dataset, batch_size, augment
        self.seed, self.epoch, self.shuffle = seed, epoch, shuffle
        self.rank, self.world_size, self.start_step = rank, world_size, start_step
        self.steps_per_epoch = len(dataset) // batch_size if drop_last else -(-len(dataset) // batch_size)
        if self.steps_per_epoch == 0:
            remedy = f"; use a batch_size of at most {len(dataset)}" if len(dataset) else ""
            raise ArgumentError(
                f"batch_size: {dataset.name} has {len(dataset)} images, not enough for a batch of "
                f"{batch_size}{remedy}"
            )
        if not 0 <= start_step <= self.steps_per_epoch:
            raise ArgumentError(f"start_step: expected 0 to {self.steps_per_epoch}, got {start_step}")

    def __len__(self) -> int:
        """How many batches an iteration yields: those from `start_step` on."""
        return self.steps_per_epoch - self.start_step

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        count = len(self.dataset)
        order = (
            permutation(count, Stream.ORDER, self.seed, self.epoch)
            if self.shuffle
            else torch.arange(count, device="cpu")
        )
        order = order.to(self.dataset.images.device)
        for step in range(self.start_step, self.steps_per_epoch):
            yield self._batch(order[step * self.batch_size : (step + 1) * self.batch_size], step)

    def _batch(self, chosen: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's part of the global batch of images `chosen`."""
        count = len(chosen)
        part = slice(count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size)
        indices = chosen[part]
        images = self.dataset.images.index_select(0, indices)
        if self.augment is not None:
            choices = self.augment.draw(count, generator(Stream.AUGMENT, self.seed, self.epoch, step))
            images = self.augment.apply(images, choices[part])
        return to_float(images), self.dataset.labels.index_select(0, indices), indices
