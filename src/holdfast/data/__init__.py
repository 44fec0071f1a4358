"""Datasets as tensors: CIFAR, the embedded digits, folders of images."""

from holdfast.data.archives import ARCHIVES, data_root
from holdfast.data.augment import Augmentation, CropFlip
from holdfast.data.batches import Batches
from holdfast.data.dataset import Dataset, to_float
from holdfast.data.fetch import download
from holdfast.data.image import read_image
from holdfast.data.sources import NAMES, load
from holdfast.data.split import HeldOut, hold_out

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
    "read_image",
    "to_float",
]
