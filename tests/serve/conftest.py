"""A small proved network, and the command `lipcert serve` in a process of its own."""

import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lipcert as lc


@dataclass
class Service:
    """A service that runs, until it is told to stop."""

    process: subprocess.Popen[str]
    port: int
    stopping: bool = False

    def stop(self, number: int) -> None:
        """Send a signal to stop, once: a second one could meet Python on its way out."""
        if not self.stopping:
            self.process.send_signal(number)
        self.stopping = True

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of the answer; `_` in names of headers is `-`."""
        connection = self.connect()
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="session")
def network() -> lc.ProvedNetwork:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        lc.Normalize((0.5, 0.5, 0.5), (0.2, 0.3, 0.25)), lc.Flatten(), lc.NormalizedLinear(3 * 8 * 8, 3)
    )
    return lc.prove(model, input_shape=(3, 8, 8), classes=("ant", "bee", "cow"))


@pytest.fixture(scope="session")
def network_file(network: lc.ProvedNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("networks") / "three.proved.safetensors"
    network.save(file)
    return file


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One at the network's size, one at another."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, shape in (("small.png", (8, 8, 3)), ("wide.jpg", (20, 30, 3))):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)).save(folder / name)
    return sorted(folder.iterdir())


@contextmanager
def running(file: Path, *options: object) -> Iterator[Service]:
    """`lipcert serve` on a free port; it has to end by itself, without an error, when it is told to."""
    command = [sys.executable, "-m", "lipcert", "serve", str(file), "--port", "0", *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        printed = process.stdout.readline() + process.stdout.readline()
        found = re.search(r"on http://127\.0\.0\.1:(\d+); its page is", printed)
        assert found, printed + process.stdout.read()
        service = Service(process, int(found[1]))
        yield service
        service.stop(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "The service has stopped.\n")
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def service(network_file: Path) -> Iterator[Service]:
    with running(network_file, "--batch", 4, "--megabytes", 1) as found:
        yield found
