"""Builds the parts of a run from its options: images and split, augmentation, loss, model, seeds."""

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipcert.data.augment import Augmentation, CropFlip
from lipcert.data.dataset import Dataset
from lipcert.data.sources import load
from lipcert.data.split import hold_out
from lipcert.errors import ArgumentError
from lipcert.models.lipconvnet import lipconvnet
from lipcert.models.liresnet import liresnet
from lipcert.models.network import Network
from lipcert.runs.config import TrainConfig
from lipcert.training.losses import AnnealingLoss, CertificateLoss, EMMALoss, MarginLoss


@dataclass(frozen=True)
class Split:
    """Training images in two parts, and a fingerprint of both and of where they were cut.

    `labels` are those of all images in the order of the data set; arrays that a caller gave have none.
    """

    images: Dataset
    held_out: Dataset
    fingerprint: str
    labels: Tensor | None = None


def load_split(config: TrainConfig) -> Split:
    """Read the training images and hold some out for selection; the test set stays unread.

    Runs with other seeds hold out the same images, so that they can be compared, averaged and continued.
    """
    dataset = load(config.data, split="train", image_size=config.image_size)
    try:
        parts = hold_out(dataset, config.held_out)
    except ArgumentError as error:
        counts = dataset.labels.bincount().tolist()
        alone = [name for name, count in zip(dataset.classes, counts, strict=False) if count == 1]
        reason = f"class '{alone[0]}' has one image besides those for testing; add others" if alone else error
        raise ArgumentError(
            f"held_out: no images of {config.data} can be held out for selection ({reason})"
        ) from error
    return Split(
        images=dataset.subset(parts.train),
        held_out=dataset.subset(parts.validation),
        fingerprint=f"images {dataset.fingerprint}, split {parts.fingerprint}",
        labels=dataset.labels,
    )


def make_loss(config: TrainConfig) -> MarginLoss:
    """The loss that `config` names."""
    margin = {"offset": config.offset, "temperature": config.temperature}
    if config.loss == "annealing":
        return AnnealingLoss(config.beta, **margin)
    if config.loss == "emma":
        return EMMALoss(config.epsilon, **margin)
    return CertificateLoss(config.gamma, **margin)


FITTED = ((9, 0), (20, 32), (100, 16), (math.inf, 8))
"""Epochs below which crops are padded by this part of the side; 0: not at all. A short run sees few
pictures often, and crops only make them harder."""


def augmentation(config: TrainConfig, images: Dataset, epochs: float) -> Augmentation | None:
    """Crops and flips, or None. Crops are padded by `config.crop`, else by an eighth of the side, or by what
    fits the number of epochs.
    """
    if not config.crops:
        return None
    side = images.image_shape[1]
    if config.crop is not None and config.crop >= side:
        raise ArgumentError(
            f"crop: expected a padding below the side of the images, {side} pixels, got {config.crop}; of "
            "some pictures nothing would be left"
        )
    padding = config.crop
    if padding is None:
        padding = fitted_padding(epochs, side) if config.augment == "fitted" else side // 8
    return CropFlip(padding, config.border)


def fitted_padding(epochs: float, side: int) -> int:
    """Padding of the crops that fits a run of so many epochs, for images of this side.

    >>> fitted_padding(6, 32), fitted_padding(18, 32), fitted_padding(30, 32)
    (0, 1, 2)
    """
    part = next(part for most, part in FITTED if epochs < most)
    return side // part if part else 0


def build_model(config: TrainConfig, images: Dataset) -> Network:
    """The network of `config` for images of this shape and these classes."""
    channels, size, width = images.image_shape
    if width != size:
        raise ArgumentError(
            f"data: {config.data} has pictures of {width}x{size} pixels, but the network takes square ones; "
            "give an image_size, to which all are cut and resized"
        )
    arguments: dict[str, Any] = {
        "depth": config.depth,
        "activation": config.activation,
        "head": config.head,
        "num_classes": images.num_classes,
        "width": config.width,
        "image_size": size,
        "in_channels": channels,
        "series": config.series,
    }
    if config.architecture == "liresnet":
        return liresnet(block=config.conv, dense=config.dense, **arguments)
    return lipconvnet(conv=config.conv, **arguments)


def seed_everything(seed: int) -> None:
    """Seed the global generators; the weights are drawn from torch's."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
