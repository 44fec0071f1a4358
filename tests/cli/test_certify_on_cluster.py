"""certify --cluster on a real local Ray: what one process writes, also after a killed worker or a stop."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lipcert as lc
from lipcert.certify.network import BATCH
from lipcert.cli.own_images import BATCH as OWN_BATCH
from lipcert.data import Dataset
from lipcert.errors import DataError
from lipcert.files import CERTIFICATES
from lipcert.runs.naming import find_run
from lipcert.runs.parts import PARTS, Read, certify_on_ray, find_parts

from .conftest import Command

ray = pytest.importorskip("ray", reason="needs the extra `cluster`")
IMAGES = 2 * BATCH + 38


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        root = Path(__file__).parents[2]
        ray.init(
            "local",  # whatever a run that was killed left behind in /tmp
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}},
        )
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("net") / "tiny.proved.safetensors"
    model = lc.lipconvnet(5, num_classes=2, width=2, image_size=8)
    lc.prove(model, classes=("ant", "owl")).save(file)
    return file


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, numbers = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for kind in ("ant", "owl"):
        for split, count in (("train", 1), ("test", IMAGES // 2)):
            (root / split / kind).mkdir(parents=True)
            for number in range(count):
                picture = numbers.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(picture).save(root / split / kind / f"{number}.png")
    return root


@dataclass(frozen=True)
class WaitsOnce:
    """Reads a part; the worker that does so first says who it is and then waits to be killed."""

    read: Read
    file: Path

    def __call__(self) -> Dataset:
        try:
            with self.file.open("x") as file:
                file.write(f"{os.getpid()}\n")
        except FileExistsError:
            return self.read()
        time.sleep(120)
        raise AssertionError("nobody killed this worker")


@dataclass(frozen=True)
class Refuses:
    """Reads a part that has a broken picture."""

    def __call__(self) -> Dataset:
        raise DataError("ant.png: is broken")


def lines(folder: Path) -> list[str]:
    """The records, without the command that made them."""
    header, *rows = (folder / CERTIFICATES).read_text().splitlines()
    content = json.loads(header)
    del content["command"]
    return [json.dumps(content), *rows]


@pytest.mark.slow
def test_the_sum_of_parts_is_what_one_process_writes(
    command: Command,
    cluster: None,
    network: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lipcert.runs.parts.find_parts.__defaults__", (BATCH,))
    certify = ("certify", network, "--data", photos, "--json")
    alone = command(*certify, "--out", tmp_path / "alone")
    shared = command(*certify, "--out", tmp_path / "shared", "--cluster", "ray")
    assert (alone.code, shared.code, shared.err) == (0, 0, "")
    assert lines(tmp_path / "alone") == lines(tmp_path / "shared")
    assert len(lines(tmp_path / "alone")) == IMAGES + 1
    assert (tmp_path / "shared" / "report.html").is_file()
    assert not (tmp_path / "shared" / PARTS).exists()
    names = ("standard", "certified", "median_radius", "images")
    one, many = json.loads(alone.out), json.loads(shared.out)
    assert [one[name] for name in names] == [many[name] for name in names]


@pytest.mark.slow
def test_a_part_whose_worker_is_killed_is_certified_by_another(
    cluster: None, network: Path, photos: Path, tmp_path: Path
) -> None:
    run, file = find_run(network), tmp_path / "pid"
    images = find_parts(run, str(photos), BATCH)
    first, *others = images.reads
    images = replace(images, reads=(WaitsOnce(first, file), *others))

    def kill() -> None:
        while not (file.exists() and file.read_text().endswith("\n")):
            time.sleep(0.05)
        os.kill(int(file.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    whole, found = certify_on_ray(run, images, tmp_path)
    killer.join(timeout=1)
    assert not killer.is_alive()
    expected = run.network.certify(run.test_images(str(photos)).pixels)
    assert found.radius.tolist() == expected.radius.tolist()
    assert found.margin.tolist() == expected.margin.tolist()
    assert whole.fingerprint == run.test_images(str(photos)).fingerprint


@pytest.mark.slow
def test_finished_parts_are_not_certified_again(
    cluster: None, network: Path, photos: Path, tmp_path: Path
) -> None:
    run = find_run(network)
    images = find_parts(run, str(photos), BATCH)
    stopped = replace(images, reads=(*images.reads[:2], Refuses()))
    with pytest.raises(DataError, match=r"ant\.png: is broken"):
        certify_on_ray(run, stopped, tmp_path)
    _, found = certify_on_ray(run, images, tmp_path)
    # A radius that only the file can know shows which parts were taken over.
    place = tmp_path / PARTS / "000001" / CERTIFICATES
    header, row, *rest = place.read_text().splitlines()
    place.write_text("\n".join([header, json.dumps(json.loads(row) | {"radius": 0.125}), *rest]) + "\n")
    _, again = certify_on_ray(run, images, tmp_path)
    assert again.radius[BATCH] == 0.125 != found.radius[BATCH]
    assert again.radius[:BATCH].tolist() == found.radius[:BATCH].tolist()
    # Other pictures are certified, whatever was written before.
    first, second, third = images.reads
    _, swapped = certify_on_ray(run, replace(images, reads=(second, first, third)), tmp_path)
    assert swapped.radius[:BATCH].tolist() == found.radius[BATCH : 2 * BATCH].tolist()
    assert swapped.radius[BATCH] == found.radius[0]


@pytest.mark.slow
def test_pictures_have_the_lines_of_one_process(
    command: Command,
    cluster: None,
    network: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(photos / "test", tmp_path / "test")
    (tmp_path / "test/owl/0.png").write_bytes(b"broken")
    monkeypatch.chdir(tmp_path)  # the workers' working directory is another one
    monkeypatch.setattr("lipcert.cli.own_images.PART", OWN_BATCH)
    certify = ("certify", network, "--images", "test", "--json")
    alone = command(*certify, "--out", tmp_path / "alone")
    shared = command(*certify, "--out", tmp_path / "shared", "--cluster", "ray")
    assert (alone.code, shared.code) == (2, 2)
    assert "0.png: cannot be read" in shared.err
    assert alone.err == shared.err
    assert alone.out == shared.out
    assert lines(tmp_path / "alone") == lines(tmp_path / "shared")
    assert len(lines(tmp_path / "alone")) == IMAGES + 1


def command_line(module: str, *arguments: object) -> list[str]:
    """A module of packages in this environment, as a process of its own."""
    return [sys.executable, "-m", module, *map(str, arguments)]


@pytest.fixture
def head() -> Iterator[str]:
    """The address of a head node, started as docs/scale.md says; its processes end with it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    ports = ("--port", 0, "--ray-client-server-port", port, "--include-dashboard", "false")
    start = command_line("ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", 2, *ports)
    with subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"ray://127.0.0.1:{port}"
        process.terminate()


@pytest.mark.slow
def test_a_cluster_that_runs_elsewhere(head: str, network: Path, photos: Path, tmp_path: Path) -> None:
    """Through Ray's client, from a process that starts no cluster of its own."""
    certify = command_line("lipcert", "certify", network, "--images", photos / "test" / "owl")
    for more in ([], ["--cluster", head]):
        subprocess.run([*certify, "--out", str(tmp_path / str(len(more))), *more], check=True, timeout=300)
    assert lines(tmp_path / "0") == lines(tmp_path / "2")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--cluster", "slurm"], "cluster: expected 'ray' or an address 'ray://host:port', got 'slurm'"),
        (["--cluster", "ray", "--count", "3"], "cluster: certifies a whole test set; leave out"),
        (["--cluster", "ray", "--device", "cuda:1"], "device (on a cluster): expected one of auto, cpu, got"),
    ],
)
def test_what_a_cluster_cannot_do_is_said_at_once(
    command: Command, network: Path, photos: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    result = command("certify", network, "--data", photos, "--out", tmp_path, *more)
    assert result.code == 2
    assert result.err.startswith(message)
