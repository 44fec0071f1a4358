"""Layers of other packages: those that are installed, and modules that a user names."""

import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points

from lipcert.errors import ArgumentError

GROUP = "lipcert.layers"
"""Entry points of this group name modules that register layers when they are imported."""


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
