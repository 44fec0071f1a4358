"""Help pages made from docstrings."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

import typer

Function = TypeVar("Function", bound=Callable[..., Any])


class App(typer.Typer):
    """A Typer whose help pages break lines where the terminal does, and not where the docstring does."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Register a command, as `typer.Typer.command` does."""

        def register(function: Function) -> Function:
            options["help"] = unwrapped(function.__doc__ or "")
            return super(App, self).command(name, **options)(function)

        return register


def unwrapped(text: str) -> str:
    r"""A docstring with one line per paragraph.

    >>> unwrapped("First.\n\n    One\n    and\n\n    two.")
    'First.\n\nOne and\n\ntwo.'
    """
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))
