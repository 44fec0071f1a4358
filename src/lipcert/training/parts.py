"""What a run is made of, built from its options: images and their split, augmentation, model, seeds."""

import random
from dataclasses import dataclass

import numpy as np
import torch

from lipcert.data.augment import Augmentation, CropFlip
from lipcert.data.dataset import Dataset
from lipcert.data.sources import load
from lipcert.data.split import hold_out
from lipcert.errors import ArgumentError
from lipcert.models.lipconvnet import LipConvnet, lipconvnet
from lipcert.training.config import TrainConfig


@dataclass(frozen=True)
class Split:
    """Training images in two parts, and a fingerprint of both and of where they were cut."""

    images: Dataset
    held_out: Dataset
    fingerprint: str


def load_split(config: TrainConfig) -> Split:
    """Read the training images and hold some out for selection; the test set stays unread."""
    dataset = load(config.data, split="train", image_size=config.image_size)
    try:
        parts = hold_out(dataset, config.held_out, config.seed)
    except ArgumentError as error:
        raise ArgumentError(f"held_out: {config.data} cannot be split ({error})") from error
    return Split(
        images=dataset.subset(parts.train),
        held_out=dataset.subset(parts.validation),
        fingerprint=f"images {dataset.fingerprint}, split {parts.fingerprint}",
    )


def augmentation(config: TrainConfig, images: Dataset) -> Augmentation | None:
    """Crops padded by `config.crop`, else by an eighth of the side, and flips; None if there are none."""
    if not config.crops:
        return None
    side = images.image_shape[1]
    if config.crop is not None and config.crop >= side:
        raise ArgumentError(
            f"crop: expected a padding below the side of the images, {side} pixels, got {config.crop}; of "
            "some pictures nothing would be left"
        )
    return CropFlip(side // 8 if config.crop is None else config.crop)


def build_model(config: TrainConfig, images: Dataset) -> LipConvnet:
    """The network of `config` for images of this shape and these classes."""
    channels, size, width = images.image_shape
    if width != size:
        raise ArgumentError(
            f"data: {config.data} has pictures of {width}x{size} pixels, but the network takes square ones; "
            "give an image_size, to which all are cut and resized"
        )
    return lipconvnet(
        depth=config.depth,
        conv=config.conv,
        activation=config.activation,
        head=config.head,
        num_classes=images.num_classes,
        width=config.width,
        image_size=size,
        in_channels=channels,
        series=config.series,
    )


def seed_everything(seed: int) -> None:
    """Seed the global generators; the weights are drawn from torch's."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
