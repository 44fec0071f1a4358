"""Downloads from a server on this machine that cuts, ignores and refuses on command."""

import hashlib
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from small_cifar import PER_FILE, write_all

from lipcert.data import download, load
from lipcert.data.archives import ARCHIVES, Archive
from lipcert.errors import ArgumentError, DataError


@dataclass
class Server:
    """What to serve and how: each request takes the next of `plan`, and `ok` when the plan is used up."""

    content: bytes
    url: str = ""
    plan: list[str] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)


def handler_for(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            server.ranges.append(asked)
            action = server.plan.pop(0) if server.plan else "ok"
            if action.isdigit():
                self.send_error(int(action))
                return
            content = server.content
            if action == "foreign":
                content = bytes(len(content))
            if action == "longer":
                content += b"more"
            start = (
                int(asked.removeprefix("bytes=").removesuffix("-"))
                if asked and action != "ignore range"
                else 0
            )
            if start >= len(content):
                self.send_error(416)
                return
            body = content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(
                body[: len(body) // 2] if action == "cut" else b"" if action == "nothing" else body
            )

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def serve(server: Server) -> Iterator[Server]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_for(server)) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_port}/cifar.tar.gz"
        yield server
        http.shutdown()
        thread.join()


@pytest.fixture
def server(small: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serves a true archive of the small CIFAR-10, which the table knows by its hash."""
    source = tmp_path / "source"
    write_all(source / small.folder, small.meta, (*small.train, *small.test))
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as tar:
        tar.add(source / small.folder, small.folder)
    content = (tmp_path / "source.tar.gz").read_bytes()
    expect(monkeypatch, small, content)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("lipcert.data.fetch.PAUSE_SECONDS", 0.0)
    yield from serve(Server(content))


def expect(monkeypatch: pytest.MonkeyPatch, archive: Archive, content: bytes) -> None:
    known = replace(
        archive,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    monkeypatch.setitem(ARCHIVES, "cifar10", known)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "not" / "there" / "yet"


def part(root: Path) -> Path:
    return root / ".cifar-10-batches-py.tar.gz.part"


def fetch(server: Server, root: Path) -> Path:
    return download("cifar10", root, url=server.url)


def test_fetches_checks_and_unpacks(server: Server, root: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = download(
        "cifar10", root, url=server.url, progress=lambda done, total: seen.append((done, total))
    )
    assert folder == root / "cifar-10-batches-py"
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-py"]
    assert len(load("cifar10", root=root)) == 5 * PER_FILE
    assert seen[-1] == (len(server.content), len(server.content))
    assert seen == sorted(seen)


def test_what_is_there_is_not_fetched_again(server: Server, root: Path) -> None:
    assert fetch(server, root) == fetch(server, root)
    assert server.ranges == [None]


def test_an_incomplete_folder_is_completed(server: Server, root: Path) -> None:
    folder = fetch(server, root)
    (folder / "data_batch_3").unlink()
    fetch(server, root)
    assert len(load("cifar10", root=root)) == 5 * PER_FILE


def test_a_cut_transfer_goes_on_where_it_broke(server: Server, root: Path) -> None:
    server.plan = ["cut", "cut", "nothing", "cut", "ok"]
    fetch(server, root)
    assert len(load("cifar10", root=root)) == 5 * PER_FILE
    half = len(server.content) // 2
    assert server.ranges[:2] == [None, f"bytes={half}-"]
    assert len(server.ranges) == 5


def test_a_server_without_ranges_starts_over(server: Server, root: Path) -> None:
    server.plan = ["cut", "ignore range"]
    fetch(server, root)
    assert len(load("cifar10", root=root)) == 5 * PER_FILE
    assert len(server.ranges) == 2


def test_a_broken_download_goes_on_in_the_next_call(server: Server, root: Path) -> None:
    server.plan = ["cut", "nothing", "nothing", "nothing"]
    half = len(server.content) // 2
    with pytest.raises(
        DataError, match=rf"stopped at {half} of {len(server.content)} bytes.*run the same command"
    ):
        fetch(server, root)
    assert [path.name for path in root.iterdir()] == [part(root).name]
    assert part(root).read_bytes() == server.content[:half]
    fetch(server, root)
    assert server.ranges[-1] == f"bytes={half}-"
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-py"]


def test_foreign_leftovers_are_thrown_away_once(server: Server, root: Path) -> None:
    root.mkdir(parents=True)
    part(root).write_bytes(b"these bytes belong to another file")
    fetch(server, root)
    assert server.ranges == ["bytes=34-", None]
    assert len(load("cifar10", root=root)) == 5 * PER_FILE


def test_leftovers_longer_than_the_archive_are_thrown_away(server: Server, root: Path) -> None:
    root.mkdir(parents=True)
    part(root).write_bytes(server.content + b"more")
    fetch(server, root)
    assert server.ranges == [None]


def test_a_server_with_a_shorter_file_is_told_apart(server: Server, root: Path) -> None:
    root.mkdir(parents=True)
    part(root).write_bytes(server.content[:-1])
    server.content = server.content[:100]
    with pytest.raises(DataError, match="stopped at 100 of"):
        fetch(server, root)
    assert None in server.ranges


def test_a_wrong_hash_is_refused_and_removed(server: Server, root: Path) -> None:
    server.plan = ["foreign"]
    with pytest.raises(DataError, match=r"the archive's hash is not that of cifar10.*deleted; try again"):
        fetch(server, root)
    assert list(root.iterdir()) == []


def test_the_hash_counts(server: Server, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHIVES, "cifar10", replace(ARCHIVES["cifar10"], sha256="0" * 64))
    with pytest.raises(DataError, match="the archive's hash is not that of cifar10"):
        fetch(server, root)
    assert list(root.iterdir()) == []


def test_no_more_than_the_archive_is_taken(server: Server, root: Path) -> None:
    server.plan = ["longer"]
    with pytest.raises(DataError, match=f"sends more than the {len(server.content)} bytes of cifar10"):
        fetch(server, root)
    assert list(root.iterdir()) == []


def test_a_hostile_archive_is_refused(
    server: Server, small: Archive, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "source" / small.folder, small.folder)
        tar.add(tmp_path / "source.tar.gz", f"{small.folder}/../../escaped")
    server.content = (tmp_path / "evil.tar.gz").read_bytes()
    expect(monkeypatch, small, server.content)
    with pytest.raises(DataError, match="lies outside the folder cifar-10-batches-py"):
        fetch(server, root)
    assert list(root.iterdir()) == []
    assert not list(tmp_path.rglob("escaped"))


def test_a_full_disk_while_unpacking_keeps_the_download(
    server: Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tarfile.TarFile.extract", full)
        with pytest.raises(DataError, match=r"No space left on device.*the download is kept"):
            fetch(server, root)
    assert fetch(server, root).is_dir()
    assert server.ranges == [None]


@pytest.mark.parametrize("code", [403, 404, 500])
def test_an_answer_that_is_no_file_is_named(server: Server, root: Path, code: int) -> None:
    server.plan = [str(code)]
    with pytest.raises(DataError, match=f"cifar.tar.gz: the server answers {code}"):
        fetch(server, root)
    assert list(root.iterdir()) == []


def test_a_closed_port_is_named(server: Server, root: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server.url = f"http://127.0.0.1:{closed.getsockname()[1]}/x"
        with pytest.raises(DataError, match=r"stopped at 0 of .*refused"):
            fetch(server, root)


def test_a_server_that_speaks_nonsense_is_named(server: Server, root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            for _ in range(3):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"hello?\r\n\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        with pytest.raises(DataError, match=r"stopped at 0 of .*BadStatusLine"):
            fetch(server, root)
        thread.join()


def test_an_unknown_host_is_named(server: Server, root: Path) -> None:
    server.url = "http://host.invalid/x"
    with pytest.raises(DataError, match=r"http://host\.invalid/x: cannot be reached"):
        fetch(server, root)


def test_a_root_that_cannot_be_made_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written: "):
        fetch(server, tmp_path / "file" / "root")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org/x", "cifar.tar.gz", "", "http://[x", "http://a b/c"]
)
def test_other_addresses_are_refused(small: Archive, root: Path, url: str) -> None:
    with pytest.raises(ArgumentError, match="url: expected an http or https address, got"):
        download("cifar10", root, url=url)


def test_unknown_names_are_refused(root: Path) -> None:
    with pytest.raises(
        ArgumentError, match="data: expected one of cifar10, cifar100, got 'cifar20'; did you mean"
    ):
        download("cifar20", root)


def test_an_interrupt_keeps_what_arrived(server: Server, root: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download("cifar10", root, url=server.url, progress=interrupt)
    assert part(root).exists()
    fetch(server, root)
    assert len(load("cifar10", root=root)) == 5 * PER_FILE
