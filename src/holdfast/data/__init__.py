"""Datasets as tensors: CIFAR, the embedded digits, folders of images."""
