from dataclasses import replace
from pathlib import Path

import pytest
from small_cifar import PER_FILE, write_all

from lipcert.data.archives import ARCHIVES, Archive


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Archive:
    """The table's CIFAR-10, with 4 images per file."""
    public = ARCHIVES["cifar10"]
    archive = replace(
        public, train=dict.fromkeys(public.train, PER_FILE), test=dict.fromkeys(public.test, PER_FILE)
    )
    monkeypatch.setitem(ARCHIVES, "cifar10", archive)
    return archive


@pytest.fixture
def small_root(small: Archive, tmp_path: Path) -> Path:
    """A root with all files of the small CIFAR-10."""
    write_all(tmp_path / small.folder, small.meta, (*small.train, *small.test))
    return tmp_path
