"""Layers of other installed packages, and of modules that a user names."""

import sys
import warnings
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

from lipcert.errors import ArgumentError

Layer = TypeVar("Layer")
GROUP = "lipcert.layers"
"""Entry points of this group name modules that register layers when they are imported."""


class Registry(MutableMapping[str, Layer]):
    """Layers by name. The first look-up in any registry imports the layers of installed packages.

    Importing lipcert does not: a package may use all of lipcert while it is imported.

    Attributes:
        registered: what is known so far; reading it imports nothing.
    """

    is_loaded = is_loading = False  # of all registries together

    def __init__(self) -> None:
        self.registered: dict[str, Layer] = {}

    def __getitem__(self, name: str) -> Layer:
        self._load()
        return self.registered[name]

    def __setitem__(self, name: str, layer: Layer) -> None:
        if Registry.is_loading:  # a name that a script has registered before stays its own
            self.registered.setdefault(name, layer)
        else:
            self.registered[name] = layer

    def __delitem__(self, name: str) -> None:
        del self.registered[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self.registered)

    def __len__(self) -> int:
        self._load()
        return len(self.registered)

    def __repr__(self) -> str:
        self._load()
        return repr(self.registered)

    @staticmethod
    def _load() -> None:
        if not Registry.is_loaded:
            Registry.is_loaded = Registry.is_loading = True  # the packages look up layers, too
            try:
                load_installed_layers()
            finally:
                Registry.is_loading = False


def load_installed_layers() -> None:
    """Import what installed packages name as their layers; one that fails is left out with a warning."""
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(
                f"the layers {entry.name!r} of the package {entry.dist and entry.dist.name!r} cannot be "
                f"loaded ({type(error).__name__}: {error}); update or uninstall it",
                stacklevel=2,
            )


def import_layers(name: str) -> None:
    """Import a module that registers layers, also from the current folder.

    Raises:
        ArgumentError: there is no such module, or it fails.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        import_module(name)
    except Exception as error:
        raise ArgumentError(
            f"import: the module {name!r} cannot be imported ({type(error).__name__}: {error})"
        ) from error
