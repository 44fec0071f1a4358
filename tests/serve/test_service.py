"""A real server in a process of its own, asked over HTTP on this machine."""

import http.client
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest

import lipcert as lc
from lipcert.pictures import answers, read_picture
from lipcert.serve.server import PATIENCE

from .conftest import Service, running

FORM = "multipart/form-data; boundary=frontier"


def form(files: dict[str, bytes], field: str = "files") -> bytes:
    parts = [
        f'--frontier\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in files.items()
    ]
    return b"".join(parts) + b"--frontier--\r\n"


def expected(network: lc.ProvedNetwork, file: Path) -> dict[str, Any]:
    picture = read_picture(file, network.input_shape)
    (row,) = answers(network, [picture], network.certify(picture.pixels[None]))
    return row


def assert_same(found: dict[str, Any], row: dict[str, Any]) -> None:
    """Batches of other sizes may round otherwise in the last digits, which `rounding` allows for."""
    assert found.keys() == row.keys()
    for name, value in row.items():
        assert found[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)


def test_one_picture(service: Service, network: lc.ProvedNetwork, pictures: list[Path]) -> None:
    small, wide = pictures
    for file in pictures:
        status, body = service.ask("POST", "/certify", file.read_bytes())
        assert status == 200
        assert_same(json.loads(body), expected(network, file))
    assert expected(network, small)["radius_original"] is None
    assert expected(network, wide)["radius_original"] > expected(network, wide)["radius"] > 0
    assert expected(network, wide)["network_sha256"] == network.hash


@pytest.mark.parametrize("kind", [FORM, FORM.replace("multipart/form-data", "Multipart/Form-Data")])
def test_several_pictures(
    service: Service, network: lc.ProvedNetwork, pictures: list[Path], kind: str
) -> None:
    small, wide = pictures
    content = {
        small.name: small.read_bytes(),
        "half.png": small.read_bytes()[:60],
        wide.name: wide.read_bytes(),
    }
    status, body = service.ask("POST", "/certify/batch", form(content), content_type=kind)
    first, broken, last = json.loads(body)["answers"]
    assert status == 200
    assert_same(first, {"file": "small.png"} | expected(network, small))
    assert_same(last, {"file": "wide.jpg"} | expected(network, wide))
    assert broken == {
        "file": "half.png",
        "error": "half.png: cannot be read as a PNG, JPEG or WebP image: it is truncated",
    }


@pytest.mark.parametrize(
    ("path", "body", "content_type", "status", "message"),
    [
        ("/certify", b"", "image/png", 400, "picture: cannot be read as a PNG, JPEG or WebP image"),
        ("/certify", bytes(1_000_001), "image/png", 413, "the request is larger than 1 MB; send fewer or"),
        ("/certify", iter([bytes(600_000)] * 2), "image/png", 413, "the request is larger than 1 MB; send"),
        ("/certify/batch", form({"a": bytes(1_000_000)}), FORM, 413, "the request is larger than 1 MB"),
        ("/certify", form({"a.png": b""}), FORM, 415, "expected the picture itself as the body, got a form"),
        ("/certify", form({"a.png": b""}), FORM.title(), 415, "expected the picture itself as the body"),
        ("/certify/batch", b"{}", "application/json", 422, "expected a form with one or more pictures"),
        ("/certify/batch", form({"a.png": b""}, "images"), FORM, 422, "pictures under the name files"),
        ("/certify/batch", form({str(n): b"" for n in range(5)}), FORM, 413, "expected at most 4 pictures"),
        ("/certified", b"", "image/png", 404, "Not Found"),
    ],
    ids=[
        "empty",
        "announced",
        "chunked",
        "form",
        "form-of-one",
        "form-in-capitals",
        "json",
        "field",
        "many",
        "path",
    ],
)
def test_bad_requests(
    service: Service, path: str, body: Any, content_type: str, status: int, message: str
) -> None:
    found, said = service.ask("POST", path, body, content_type=content_type)
    assert found == status
    assert list(json.loads(said)) == ["error"]
    assert message in json.loads(said)["error"]
    assert service.ask("GET", "/health")[0] == 200


def test_health(service: Service, network: lc.ProvedNetwork) -> None:
    status, body = service.ask("GET", "/health")
    assert status == 200
    assert json.loads(body) == {
        "status": "ok",
        "network": "three",
        "network_sha256": network.hash,
        "input_shape": [3, 8, 8],
        "classes": ["ant", "bee", "cow"],
        "lipcert": lc.__version__,
    }


def test_many_at_once_are_answered_as_one_alone(
    service: Service, network: lc.ProvedNetwork, pictures: list[Path]
) -> None:
    before = metrics(service)
    asked = [pictures[number % 2] for number in range(60)]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda file: service.ask("POST", "/certify", file.read_bytes()), asked))
    for file, (status, body) in zip(asked, found, strict=True):
        assert status == 200
        assert_same(json.loads(body), expected(network, file))
    after = metrics(service)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('lipcert_requests_total{path="/certify",status="200"}') == 60
    assert grown('lipcert_pictures_total{outcome="certified"}') == 60
    assert grown('lipcert_request_seconds_bucket{le="+Inf"}') == grown("lipcert_request_seconds_count") == 60
    assert grown("lipcert_batch_pictures_sum") == 60
    assert grown('lipcert_batch_pictures_bucket{le="4"}') == grown("lipcert_batch_pictures_count") <= 60


def metrics(service: Service) -> dict[str, float]:
    """What /metrics says; every line is a comment or a value, as Prometheus demands."""
    status, body = service.ask("GET", "/metrics")
    assert status == 200
    found = {}
    for line in body.decode().splitlines():
        if not re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line):
            value = re.fullmatch(
                r"([a-z_]+(?:\{[a-z]+=\"[^\"]*\"(?:,[a-z]+=\"[^\"]*\")*\})?) ([0-9.e+-]+)", line
            )
            assert value, line
            found[value[1]] = float(value[2])
    return found


def test_the_page_needs_no_other_machine(service: Service) -> None:
    status, page = service.ask("GET", "/docs")
    assert status == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.decode())
    assert loaded
    assert all(target.startswith("/") for target in loaded)
    assert [service.ask("GET", target)[0] for target in loaded] == [200] * len(loaded)
    status, schema = service.ask("GET", "/openapi.json")
    described = json.loads(schema)["components"]["schemas"]["Certificate"]["properties"]
    assert "about the decoded 8-bit RGB picture" in described["radius_original"]["description"]
    paths = json.loads(schema)["paths"]
    assert set(paths) == {"/certify", "/certify/batch", "/health", "/metrics"}
    assert set(paths["/certify"]["post"]["requestBody"]["content"]) == {
        "image/png",
        "image/jpeg",
        "image/webp",
    }


@pytest.mark.parametrize(
    "language",
    [
        "python",
        pytest.param("", marks=pytest.mark.skipif(which("curl") is None, reason="curl is not installed")),
    ],
)
def test_what_the_page_shows_works(
    service: Service,
    network: lc.ProvedNetwork,
    pictures: list[Path],
    tmp_path: Path,
    language: str,
) -> None:
    small, wide = (file.read_bytes() for file in pictures)
    for name, content in (("my.png", small), ("a.png", small), ("b.jpg", wide)):
        (tmp_path / name).write_bytes(content)
    page = (Path(__file__).parents[2] / "docs/serve.md").read_text()
    page = page.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
    fences = re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    blocks = [block for name, block in fences if name == language]
    shown = [line for block in blocks for line in block.splitlines() if line.startswith("curl ")]
    commands = [[sys.executable, "-c", blocks[0]]] if language else [shlex.split(line) for line in shown]
    printed = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
        for command in commands
    ]
    first = expected(network, pictures[0])
    if language:
        assert printed == [f"{first['prediction']} {first['radius']}\n"]
    else:
        assert_same(json.loads(printed[0]), first)
        assert [row["file"] for row in json.loads(printed[1])["answers"]] == ["a.png", "b.jpg"]


def lets_in(service: Service) -> bool:
    try:
        return service.ask("GET", "/health")[0] == 200
    except OSError:
        return False


def test_a_request_that_has_begun_is_answered_before_the_end(
    network_file: Path, network: lc.ProvedNetwork, pictures: list[Path]
) -> None:
    content = pictures[0].read_bytes()
    with running(network_file) as service, closing(service.connect()) as connection:
        connection.putrequest("POST", "/certify")
        connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content[:50])
        assert service.ask("GET", "/health")[0] == 200  # so the request before it has arrived
        service.stop(signal.SIGINT)
        deadline = time.monotonic() + 30
        while lets_in(service):
            assert time.monotonic() < deadline
        connection.send(content[50:])
        answer = connection.getresponse()
        assert answer.status == 200
        assert_same(json.loads(answer.read()), expected(network, pictures[0]))


@contextmanager
def stalled(service: Service, count: int, size: int) -> Iterator[list[http.client.HTTPConnection]]:
    """Connections that have sent all but 10 of the `size` bytes that they announced."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(service.connect())) for _ in range(count)]
        for connection in connections:
            connection.putrequest("POST", "/certify")
            connection.putheader("Content-Length", str(size))
            connection.endheaders(bytes(size - 10))
        yield connections


def test_stalled_bodies_do_not_block_others_for_long(network_file: Path, pictures: list[Path]) -> None:
    with (
        running(network_file, "--megabytes", 1, "--seconds", 3) as service,
        stalled(service, 17, 1_000_000) as connections,
    ):
        answers = [connection.getresponse() for connection in connections]
        assert sorted(answer.status for answer in answers) == [408] * 16 + [503]
        late = next(answer for answer in answers if answer.status == 408)
        assert "did not arrive within 3 seconds" in json.loads(late.read())["error"]
        assert late.headers["connection"] == "close"
        assert service.ask("POST", "/certify", pictures[0].read_bytes())[0] == 200
        assert metrics(service)['lipcert_requests_total{path="/certify",status="408"}'] == 16


def test_a_stalled_body_does_not_delay_the_end(network_file: Path) -> None:
    with running(network_file) as service, stalled(service, 1, 1000) as (connection,):
        assert service.ask("GET", "/health")[0] == 200  # so the request before it has arrived
        began = time.monotonic()
        service.stop(signal.SIGTERM)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]) == (
            503,
            "the service is stopping; try again later",
        )
        service.process.wait(60)
        assert time.monotonic() - began < PATIENCE / 2
