"""The command line: its commands, error messages and exit codes."""

import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lipcert.cli.audit import audit
from lipcert.cli.average import average
from lipcert.cli.bench import bench
from lipcert.cli.certify import certify
from lipcert.cli.compare import compare
from lipcert.cli.console import complain
from lipcert.cli.data import data_app
from lipcert.cli.demo import demo
from lipcert.cli.explore import explore
from lipcert.cli.export import export
from lipcert.cli.help import App
from lipcert.cli.report import report
from lipcert.cli.reproduce import reproduce
from lipcert.cli.selftest import selftest
from lipcert.cli.serve import serve
from lipcert.cli.train import train
from lipcert.cli.verify import verify
from lipcert.cli.zoo import zoo_app
from lipcert.errors import BrokenCertificateError, LipcertError

FINE, CHECK_FAILED, BAD_INPUT, FAULT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141

# The parser's error class has moved between versions of typer; its subclass BadParameter has not.
UsageError = typer.BadParameter.__bases__[0]


class Stopped(Exception):  # noqa: N818 (not an error)
    """Ctrl-C; the message says how to go on, if there is a way."""


class Commands(TyperGroup):
    """Keeps the message of a KeyboardInterrupt, which typer would drop."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Stopped(str(error) or "interrupted") from error


app = App(
    name="lipcert",
    cls=Commands,
    help="Image classifiers with a guarantee: how far may an image change before the prediction can?",
    epilog="Start with: lipcert demo",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for name, function, panel in (
    ("demo", demo, "Start here"),
    ("train", train, "Networks"),
    ("certify", certify, "Networks"),
    ("audit", audit, "Networks"),
    ("verify", verify, "Networks"),
    ("report", report, "Networks"),
    ("explore", explore, "Networks"),
    ("serve", serve, "Networks"),
    ("average", average, "Networks"),
    ("export", export, "Networks"),
    ("compare", compare, "Evidence"),
    ("reproduce", reproduce, "Evidence"),
    ("bench", bench, "Evidence"),
    ("selftest", selftest, "Evidence"),
):
    app.command(name, rich_help_panel=panel)(function)
app.add_typer(data_app, name="data", rich_help_panel="Images and weights")
app.add_typer(zoo_app, name="zoo", rich_help_panel="Images and weights")


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import a module of yours that registers layers."),
    ] = None,
) -> None:
    """Options that every command takes; `main` looks for --debug itself, before or after the command."""
    if modules:
        from lipcert.nn.outside import import_layers

        for module in modules:
            import_layers(module)
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"lipcert {installed('lipcert')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> int:
    """Run the command line; returns the exit code.

    0 is success, 1 a failed check (a broken certificate), 2 bad input (one sentence on standard error), 3 a
    bug in lipcert, 130 an interruption.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        code = app(args=arguments, prog_name="lipcert", standalone_mode=False)
    except KeyboardInterrupt:
        return _stop("interrupted")
    except SystemExit as error:
        # Shell completion exits by itself; so does typer when the output pipe is closed.
        if isinstance(error.__context__, BrokenPipeError):
            return BROKEN_PIPE
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:
        if isinstance(error, Stopped):
            return _stop(str(error))
        if debug:
            raise
        return complain(*_judge(error))
    return code if isinstance(code, int) else FINE


def _stop(message: str) -> int:
    """Print how to continue; further Ctrl-C are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return complain(message, INTERRUPTED)


def _usage(error: Any) -> str:
    """What is wrong with the arguments, and which help page to read."""
    message = str(error.format_message()).rstrip(".")
    path = "lipcert" if error.ctx is None else error.ctx.command_path
    return message if message.endswith("?") else f"{message}; see {path} --help"


def _judge(error: Exception) -> tuple[str, int]:
    """Message and exit code of an error."""
    if isinstance(error, BrokenCertificateError):
        return str(error), CHECK_FAILED
    if isinstance(error, LipcertError):
        return str(error), BAD_INPUT
    if isinstance(error, UsageError):
        return _usage(error), BAD_INPUT
    if isinstance(error, typer.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror or error}", BAD_INPUT
    first = str(error).partition("\n")[0]
    signs = ("can't allocate memory", "not enough memory")
    if "MemoryError" in type(error).__name__ or any(sign in first for sign in signs):
        return f"out of memory ({first}); use a smaller network, smaller images or fewer at a time", BAD_INPUT
    return (
        f"lipcert failed ({type(error).__name__}: {first}); this is a bug in lipcert, please report "
        "it with what --debug shows",
        FAULT,
    )
