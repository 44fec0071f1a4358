"""lipcert explore before its page is there: one sentence and exit code 2 for every bad input."""

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lipcert.cli import main
from lipcert.errors import ArgumentError
from lipcert.ports import bind_port

Explore = Callable[..., tuple[int, str]]


@pytest.fixture
def explore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explore:
    """Run the command with arguments; returns the exit code and what stands on standard error."""

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["lipcert", "explore", *map(str, arguments)])
        return main(), capsys.readouterr().err

    return call


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_in_use(explore: Explore, run: Path, taken: int) -> None:
    code, error = explore(run, "--port", taken)
    assert code == 2
    assert error.strip() == (
        f"port: {taken} is in use on 127.0.0.1; stop what uses it, or choose another, such as "
        f"--port {taken + 1}"
    )


def test_a_port_that_was_just_closed_is_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # this side closes first, so the port lingers in TIME_WAIT
    bind_port("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine(host: str) -> None:
    with pytest.raises(ArgumentError, match=f"^host: .*{host}"):
        bind_port(host, 0)


def test_without_gradio(explore: Explore, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    code, error = explore(run, "--port", _free_port())
    assert code == 2
    assert error.strip() == (
        "explore: the package gradio is not installed; run pip install gradio (lipcert's extra explore)"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs/none",), "runs/none: no such file or folder"),
        ((), "Missing argument 'NETWORK'"),
        (("x", "--port", "0"), "'--port'"),
    ],
)
def test_bad_arguments(explore: Explore, arguments: tuple[str, ...], words: str) -> None:
    code, error = explore(*arguments)
    assert code == 2
    assert words in error
    assert len(error.strip().splitlines()) == 1


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port
