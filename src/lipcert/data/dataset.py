"""A labelled set of images in memory, as every loader returns it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from lipcert.errors import ArgumentError, DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as they were stored, with their labels.

    Args:
        name: where the images come from: `digits`, `cifar10`, `cifar100` or the path of a folder.
        images: uint8, (N, C, H, W), 0 to 255. `to_float` gives the [0, 1] pixels that models take.
        labels: int64, (N,), positions in `classes`.
        classes: the name of each class.
        split: `train` or `test`.
        exact: (N, C, H, W), float64 in [0, 1], what `images` are when they are not rounded to 8 bits; None if
            nothing was rounded.
        sizes: width and height of every picture before it was cut and resized; None if none was.

    Raises:
        DataError: a type, a shape, a count or a label does not fit the others.

    >>> images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    >>> tiny = Dataset("tiny", images, torch.tensor([0, 1]), ("cat", "dog"))
    >>> len(tiny), tiny.num_classes, tiny.image_shape
    (2, 2, (3, 4, 4))
    >>> tiny
    Dataset('tiny', train: 2 images of shape (3, 4, 4), 2 classes)
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    split: str = "train"
    exact: Tensor | None = None
    sizes: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise DataError(
                f"{self.name}: expected uint8 images of shape (N, C, H, W), got {self.images.dtype} of shape "
                f"{tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{self.name}: expected one int64 label for each of the {len(self.images)} images, got "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )
        if self.labels.numel() and (self.labels.min() < 0 or self.labels.max() >= len(self.classes)):
            raise DataError(
                f"{self.name}: expected labels from 0 to {len(self.classes) - 1}, got labels from "
                f"{int(self.labels.min())} to {int(self.labels.max())}"
            )
        if self.exact is not None and (
            self.exact.dtype != torch.float64 or self.exact.shape != self.images.shape
        ):
            raise DataError(
                f"{self.name}: expected exact float64 images of shape {tuple(self.images.shape)}, got "
                f"{self.exact.dtype} of shape {tuple(self.exact.shape)}"
            )
        if self.sizes is not None and len(self.sizes) != len(self.images):
            raise DataError(
                f"{self.name}: expected one size for each of the {len(self.images)} images, got "
                f"{len(self.sizes)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {self.split}: {len(self)} images of shape {self.image_shape}, "
            f"{self.num_classes} classes)"
        )

    @property
    def num_classes(self) -> int:
        """How many classes there are, also those without an image in this subset."""
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def pixels(self) -> Tensor:
        """The [0, 1] pixels that a network takes and a certificate is about: float32, or `exact`."""
        return to_float(self.images) if self.exact is None else self.exact

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of shape, images and labels, in order; a run records it and a resume compares it.

        Of the images with 8 bits: the last bits of a resize depend on the machine.
        """
        digest = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        digest.update(self.images.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().astype("<i8").data)
        return digest.hexdigest()

    def subset(self, indices: Tensor | Sequence[int]) -> Self:
        """Return the images at `indices`, in that order.

        Raises:
            ArgumentError: the indices are no flat list of integers from 0 to len - 1.
        """
        chosen = torch.as_tensor(indices, device="cpu")
        if chosen.numel() == 0:
            chosen = chosen.long()
        if chosen.ndim != 1 or chosen.dtype not in (torch.int64, torch.int32):
            raise ArgumentError(
                "indices: expected a flat list of integers, got "
                f"{chosen.dtype} of shape {tuple(chosen.shape)}"
            )
        if chosen.numel() and (chosen.min() < 0 or chosen.max() >= len(self)):
            raise ArgumentError(
                f"indices: expected positions from 0 to {len(self) - 1}, got "
                f"{int(chosen.min())} to {int(chosen.max())}"
            )
        chosen = chosen.to(self.images.device, torch.int64)
        return replace(
            self,
            images=self.images[chosen],
            labels=self.labels[chosen],
            exact=None if self.exact is None else self.exact[chosen],
            sizes=None if self.sizes is None else tuple(self.sizes[place] for place in chosen.tolist()),
        )

    def to(self, device: torch.device | str) -> Self:
        """Return the same set with its tensors on `device`; batches are then cut there."""
        exact = None if self.exact is None else self.exact.to(device)
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), exact=exact)


def to_float(images: Tensor) -> Tensor:
    """Turn stored uint8 images into the float32 pixels in [0, 1] that models take: x / 255.

    >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if images.dtype != torch.uint8:
        raise ArgumentError(f"images: expected uint8, got {images.dtype}; float images are in [0, 1] already")
    return images.to(torch.float32).div_(255)
