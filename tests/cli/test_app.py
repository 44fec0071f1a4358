"""The command line as a whole: quick, helpful, and one sentence for every bad input."""

import os
import re
import signal
import time
from itertools import pairwise

import pytest
import torch
import typer

from lipcert.cli import app as app_module
from lipcert.cli import console
from lipcert.cli.app import app
from lipcert.errors import BrokenCertificateError, DataError, NotProvedError

from .conftest import Command, in_its_own_process

COMMANDS = [command.name for command in app.registered_commands]
GROUPS = [("data", "list"), ("data", "download"), ("zoo", "list")]


@pytest.mark.parametrize("words", [*((name,) for name in COMMANDS), *GROUPS], ids=" ".join)
def test_every_help_has_examples_that_name_the_command(command: Command, words: tuple[str, ...]) -> None:
    result = command(*words, "--help")
    assert result.code == 0
    assert "Examples" in result.out
    description, _, examples = result.out.partition("Examples")
    assert f"lipcert {' '.join(words)}" in examples
    assert not re.search(r"^ {2,}\S", description, re.MULTILINE), "a paragraph is indented"
    lines = [line.strip() for line in description.splitlines()]
    for line, after in pairwise(lines):
        if line and after:
            assert len(line) + len(after.split()[0]) + 3 > 200, "a line ends where the docstring's does"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(command: Command, arguments: tuple[str, ...]) -> None:
    result = command(*arguments)
    assert (result.code, result.err) == (0, "")
    for name in (*COMMANDS, "data", "zoo"):
        assert f" {name} " in result.out


@pytest.mark.parametrize("group", ["data", "zoo"])
def test_a_group_alone_prints_its_help(command: Command, group: str) -> None:
    result = command(group)
    assert (result.code, result.err) == (0, "")
    assert "list" in result.out


HEAVY = ("torch", "numpy", "matplotlib", "jinja2", "sklearn", "PIL", "scipy", "lightning_fabric", "fastapi")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["certify", "--help"],
        ["train", "--help"],
        ["serve", "--help"],
        ["zoo", "list"],
        ["data", "list"],
    ],
    ids=str,
)
def test_help_starts_without_torch(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv[1:] = {arguments!r}\n"
        "from lipcert.cli import main\n"
        f"assert main() == 0\nprint('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    result = in_its_own_process(code)
    assert result.returncode == 0, result.stderr
    found = result.stdout.partition("HEAVY ")[2].strip()
    # The list of archives lives beside the tensors of the datasets.
    assert found == "[]" or arguments == ["data", "list"]


def test_completion_offers_commands_options_and_names() -> None:
    def complete(words: str) -> list[str]:
        code = (
            "import os, sys\n"
            f"os.environ.update(_LIPCERT_COMPLETE='complete_bash', COMP_WORDS={words!r}, "
            f"COMP_CWORD=str({len(words.split(' ')) - 1}))\n"
            "from lipcert.cli import main\nsys.exit(main())"
        )
        result = in_its_own_process(code)
        assert "Traceback" not in result.stderr
        return result.stdout.split()

    assert complete("lipcert cer") == ["certify"]
    assert "--resize" in complete("lipcert certify --res")
    assert complete("lipcert certify --data cifar1") == ["cifar10", "cifar100"]
    assert complete("lipcert train --data dig") == ["digits"]
    assert complete("lipcert train --start-from lipconvnet5-cifar10") == [
        "lipconvnet5-cifar10", "lipconvnet5-cifar100"
    ]  # fmt: skip
    assert complete("lipcert data download cifar100") == ["cifar100"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["certfy"], "No such command 'certfy'. Did you mean 'certify'"),
        (["certify", "--wieghts", "best"], "--wieghts"),
        (["certify", "x", "--count", "0"], "'--count'"),
        (["report"], "Missing argument 'RUN'; see lipcert report --help"),
        (["data", "download", "cifar1"], "got 'cifar1'; did you mean 'cifar10'?"),
        (["reproduce", "figur1"], "did you mean 'figure1'?"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_sentence(command: Command, arguments: list[str], message: str) -> None:
    result = command(*arguments)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_ctrl_c_again_while_the_first_is_answered(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt("saved")

    def press_again(message: str, code: int) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # Python looks for signals between two instructions
        return console.complain(message, code)

    monkeypatch.setattr(app_module.app.registered_commands[0], "callback", stop)
    monkeypatch.setattr(app_module, "complain", press_again)
    result = command(app_module.app.registered_commands[0].name)
    assert (result.code, result.err.strip()) == (130, "saved")


def test_ctrl_c_before_the_command_line_is_read() -> None:
    code = (
        "import sys\n"
        "class Press:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'lipcert.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Press())\n"
        "from lipcert.cli import main\n"
        "sys.exit(main())"
    )
    done = in_its_own_process(code)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("saved; go on with --resume"), 130, "saved; go on with --resume"),
        (BrokenCertificateError("image 3 is broken"), 1, "image 3 is broken"),
        (NotProvedError("nobody proved it"), 2, "nobody proved it"),
        (DataError("[red]x[/red] is missing"), 2, "[red]x[/red] is missing"),
        (PermissionError(13, "Permission denied", "/a"), 2, "/a: Permission denied"),
        (OSError(28, "No space left on device", "/a"), 2, "/a: No space left on device"),
        (typer.BadParameter("not so"), 2, "Invalid value: not so; see lipcert demo --help"),
        (RuntimeError("boom\nmore"), 3, "lipcert failed (RuntimeError: boom); this is a bug in lipcert"),
        (RuntimeError("alloc: can't allocate memory: 9 TB"), 2, "out of memory (alloc: can't allocate"),
        (torch.cuda.OutOfMemoryError("CUDA"), 2, "out of memory (CUDA); use a smaller network, smaller"),
        (MemoryError("no room"), 2, "out of memory (no room)"),
        (typer.Exit(1), 1, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_exit_codes(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(app_module.app.registered_commands[0], "callback", fail)
    result = command(app_module.app.registered_commands[0].name)
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err


def test_debug_shows_the_error(command: Command) -> None:
    with pytest.raises(Exception, match="nowhere"):
        command("certify", "nowhere", "--debug")


def test_version(command: Command) -> None:
    assert command("--version").out.startswith("lipcert 0.")
