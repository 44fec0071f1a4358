"""Shell completion of datasets and networks; does not import torch."""

from pathlib import Path

from lipcert.zoo import networks

DATA = ("cifar10", "cifar100", "digits")


def data_names(incomplete: str) -> list[str]:
    """Names of datasets, and folders."""
    return [name for name in (*DATA, *_folders(incomplete)) if name.startswith(incomplete)]


def network_names(incomplete: str) -> list[str]:
    """Networks of the zoo, and folders."""
    return [name for name in (*networks(), *_folders(incomplete)) if name.startswith(incomplete)]


def archive_names(incomplete: str) -> list[str]:
    """Datasets that can be downloaded."""
    return [name for name in ("cifar10", "cifar100") if name.startswith(incomplete)]


def _folders(incomplete: str) -> list[str]:
    stem = Path(incomplete).parent if incomplete and not incomplete.endswith("/") else Path(incomplete or ".")
    return [f"{entry}/" for entry in sorted(stem.iterdir()) if entry.is_dir()] if stem.is_dir() else []
