"""No part of training, proof, certificate, audit, report and verification connects to anything."""

import subprocess
import sys
from pathlib import Path

import pytest

NO_NETWORK = """
import os
import sys

def forbid(event, arguments):
    names = ("connect", "bind", "sendto", "getaddrinfo", "gethostbyname", "gethostbyaddr", "getnameinfo")
    if event.startswith("socket.") and event.removeprefix("socket.") in names:
        print(f"network: {event} {arguments}", file=sys.stderr, flush=True)
        os._exit(3)  # an exception could be caught, and in a thread it would end the thread alone

sys.addaudithook(forbid)
"""
DEMONSTRATION = """
import lipcert.cli.demo
from dataclasses import replace
from lipcert.cli import main

whole = lipcert.cli.demo.demo_config
lipcert.cli.demo.demo_config = lambda threads: replace(whole(threads), epochs=1, width=4)
sys.argv = ["lipcert", *sys.argv[1:]]
main()
"""


def run(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", NO_NETWORK + code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_the_demonstration_and_its_verification_need_no_network(tmp_path: Path) -> None:
    for arguments in (("demo", "--threads", "1"), ("verify", "runs/demo")):
        done = run(DEMONSTRATION, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs/demo/report.html").is_file()


@pytest.mark.parametrize(
    "code",
    [
        "import urllib.request as u; u.urlopen('http://127.0.0.1:9/')",
        "import socket; socket.create_server(('127.0.0.1', 0))",
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
        "import socket, threading as t\nt.Thread(target=socket.create_server, args=(('', 0),)).start()",
        "try:\n import urllib.request as u; u.urlopen('http://127.0.0.1:9/')\nexcept BaseException: pass",
    ],
)
def test_a_connection_would_be_seen(code: str, tmp_path: Path) -> None:
    done = run(code, cwd=tmp_path)
    assert done.returncode == 3
    assert "network: socket." in done.stderr
