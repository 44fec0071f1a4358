"""Fixed, stratified splits: which images select the model, and which train it."""

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipcert.data.dataset import Dataset
from lipcert.data.seeding import Stream, permutation
from lipcert.errors import ArgumentError


class HeldOut(NamedTuple):
    """Two disjoint, sorted lists of positions that together are the whole set; unpacks as a pair."""

    train: Tensor
    validation: Tensor

    def __repr__(self) -> str:
        return f"HeldOut(train: {len(self.train)} images, validation: {len(self.validation)} images)"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of both lists; a run records it and a resume compares it."""
        digest = hashlib.sha256()
        for part in self:
            digest.update(len(part).to_bytes(8, "little") + part.numpy().astype("<i8").tobytes())
        return digest.hexdigest()


def hold_out(dataset: Dataset, count: int = 5000, seed: int = 0) -> HeldOut:
    """Hold out training images for model selection, the same share of every class.

    A small set gives no more than a tenth of itself (but one image of each class at least), so `count` is an
    upper limit: CIFAR gives 5,000, the digits give 143. The choice depends on the labels, `count` and `seed`
    alone and is the same with every version of numpy and torch.

    Args:
        dataset: the training set.
        count: how many images at most.
        seed: which of the possible choices.

    Returns:
        (train, validation) positions, with a `fingerprint`.

    Raises:
        ArgumentError: `count` is below the number of classes, or a class has a single image.
    """
    return held_out_by(dataset.labels, count, seed)


def held_out_by(labels: Tensor, count: int, seed: int = 0) -> HeldOut:
    """What `hold_out` chooses in a set with these labels."""
    present = int((labels.bincount() > 0).sum())
    return stratified(labels, min(count, max(len(labels) // 10, present)), Stream.HOLD_OUT, seed)


def stratified(labels: Tensor, count: int, stream: Stream, seed: int) -> HeldOut:
    """Choose `count` positions, of each class in proportion to its size, at least one and never all of them.

    Raises:
        ArgumentError: no such choice exists.
    """
    plain = labels.cpu().numpy()
    sizes = np.bincount(plain)
    held = _quotas(sizes, count)
    order = permutation(len(plain), stream, seed).numpy()
    # Grouped by class and, within a class, in random order; the first quota of each group is held out.
    order = order[np.argsort(plain[order], kind="stable")]
    rank_in_class = np.arange(len(plain)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = rank_in_class < np.repeat(held, sizes)
    return HeldOut(
        train=torch.from_numpy(np.sort(order[~chosen])), validation=torch.from_numpy(np.sort(order[chosen]))
    )


def _quotas(sizes: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Share `count` among classes in proportion to their sizes, by largest remainder within the limits."""
    single = np.flatnonzero(sizes == 1)
    if len(single):
        raise ArgumentError(
            f"class {single[0]} (from 0) has one image only, so it cannot be in both parts; add another"
        )
    lowest = np.minimum(sizes, 1)
    highest = np.maximum(sizes - 1, 0)
    if not lowest.sum() <= count <= highest.sum() or count < 1:
        raise ArgumentError(
            f"count: expected {max(lowest.sum(), 1)} to {highest.sum()} images, so that both parts have some "
            f"of every class, got {count}"
        )
    share = sizes * count / sizes.sum()
    quota: npt.NDArray[np.int64] = np.clip(np.floor(share).astype(np.int64), lowest, highest)
    while quota.sum() != count:
        if quota.sum() < count:
            quota[np.argmax(np.where(quota < highest, share - quota, -np.inf))] += 1
        else:
            quota[np.argmax(np.where(quota > lowest, quota - share, -np.inf))] -= 1
    return quota
