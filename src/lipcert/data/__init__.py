"""Datasets as tensors: CIFAR, the embedded digits, folders of images."""

from lipcert.data.archives import ARCHIVES, data_root
from lipcert.data.augment import Augmentation, CropFlip
from lipcert.data.batches import Batches
from lipcert.data.dataset import Dataset, to_float
from lipcert.data.fetch import download
from lipcert.data.sources import NAMES, load
from lipcert.data.split import HeldOut, hold_out

__all__ = [
    "ARCHIVES",
    "NAMES",
    "Augmentation",
    "Batches",
    "CropFlip",
    "Dataset",
    "HeldOut",
    "data_root",
    "download",
    "hold_out",
    "load",
    "to_float",
]
