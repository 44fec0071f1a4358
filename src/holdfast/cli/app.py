"""The command line as a whole: its commands, and what becomes of errors."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.train import train
from holdfast.errors import BrokenCertificateError, HoldfastError

app = typer.Typer(
    name="holdfast",
    help="Image classifiers with a guarantee: how far may an image change before the prediction can?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("train")(train)


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that every command takes; `main` looks for --debug itself, before or after the command."""


def main() -> int:
    """Run the command line; returns the exit code.

    0 is success, 1 a broken certificate, 2 bad input (one sentence on standard error), 130 an interruption.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        app(args=arguments, prog_name="holdfast")
    except HoldfastError as error:
        if debug:
            raise
        _complain(str(error))
        return 1 if isinstance(error, BrokenCertificateError) else 2
    except KeyboardInterrupt as error:
        _complain(str(error) or "interrupted")
        return 130
    except SystemExit as error:
        # typer turns an interruption into an exit; what the interruption says is for the user to read.
        interruption = _behind(error)
        if interruption is not None:
            _complain(str(interruption) or "interrupted")
            return 130
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _behind(error: BaseException) -> KeyboardInterrupt | None:
    link: BaseException | None = error
    while link is not None and not isinstance(link, KeyboardInterrupt):
        link = link.__cause__ or link.__context__
    return link


def _complain(message: str) -> None:
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
