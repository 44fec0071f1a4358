"""Exception types. Every error a user can cause is a LipcertError whose message is one clear sentence."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType


class LipcertError(Exception):
    """Base of all errors that lipcert raises on purpose; the command line prints it and exits with 2."""


class ArgumentError(LipcertError, ValueError):
    """An argument has the wrong type, shape or value."""


class NotProvedError(LipcertError):
    """A certificate would rest on something that is not proved."""


class DataError(LipcertError):
    """A dataset is missing, damaged or not what it claims to be."""


class CheckpointError(LipcertError):
    """A saved model or checkpoint is missing, damaged or of another shape."""


class TrainingError(LipcertError):
    """Training cannot go on (the loss is not finite, the configuration changed, ...)."""


class BrokenCertificateError(LipcertError):
    """An attack broke a certificate, or `verify` derived another one; the command line exits with 1."""


def choose(kind: str, name: object, known: Iterable[str]) -> str:
    """Return `name` if it is one of `known`, else raise an ArgumentError that suggests the nearest name.

    >>> choose("conv", "soc", ["soc", "bcop"])
    'soc'
    >>> choose("conv", "sco", ["soc", "bcop"])
    Traceback (most recent call last):
    ...
    lipcert.errors.ArgumentError: conv: expected one of bcop, soc, got 'sco'; did you mean 'soc'?
    """
    names = sorted(known)
    if isinstance(name, str) and name in names:
        return name
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise ArgumentError(f"{kind}: expected one of {', '.join(names)}, got {name!r}{hint}")


def check_positive(**integers: object) -> None:
    """Raise an ArgumentError that names the first argument that is not a positive integer.

    >>> check_positive(width=16, depth=0)
    Traceback (most recent call last):
    ...
    lipcert.errors.ArgumentError: depth: expected a positive integer, got 0
    """
    for name, value in integers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ArgumentError(f"{name}: expected a positive integer, got {value!r}")


def import_extra(package: str, argument: str, extra: str) -> ModuleType:
    """Import a package that one of lipcert's extras installs.

    Raises:
        ArgumentError: it is not installed; the message starts with `argument` and says what to type.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise not_installed(argument, package, extra) from error


def not_installed(argument: str, package: str, extra: str) -> ArgumentError:
    """The error for a missing package: names it and the pip command."""
    return ArgumentError(
        f"{argument}: the package {package} is not installed; run pip install {package} "
        f"(lipcert's extra {extra})"
    )
