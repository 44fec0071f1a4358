"""Download a public archive, resume broken transfers, and check its hash."""

import gzip
import hashlib
import http
import http.client
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from lipcert.data.archives import ARCHIVES, Archive, data_root
from lipcert.data.unpack import unpack
from lipcert.errors import ArgumentError, DataError, choose

Progress = Callable[[int, int], None]

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30.0
# Attempts in a row that bring no new byte.
MAX_IDLE_ATTEMPTS = 3
PAUSE_SECONDS = 1.0


def download(
    name: str,
    root: str | Path | None = None,
    *,
    url: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch, check and unpack `cifar10` or `cifar100`; return at once if the files are there.

    What arrived of a broken transfer stays in a hidden `.part` file and the next attempt, now or in a later
    call, asks for the rest only. An archive with another hash is deleted. The data appear in `root` when
    complete.

    Args:
        name: which dataset.
        root: where to; by default $LIPCERT_DATA, else ~/.cache/lipcert.
        url: a mirror of the same archive, http or https.
        progress: called as `progress(bytes_done, bytes_total)` while bytes arrive.

    Returns:
        The folder with the files.

    Raises:
        ArgumentError: the name is unknown, or the URL is not http or https.
        DataError: the archive cannot be downloaded, has another hash, or cannot be unpacked.
    """
    archive = ARCHIVES[choose("data", name, ARCHIVES)]
    source = archive.url if url is None else url
    if not _is_address(source):
        raise ArgumentError(f"url: expected an http or https address, got {source!r}")
    home = data_root(root)
    folder = home / archive.folder
    if all((folder / file).is_file() for file in archive.files):
        return folder
    part = home / f".{archive.folder}.tar.gz.part"
    try:
        home.mkdir(parents=True, exist_ok=True)
        _fetch_checked(archive, source, part, progress)
    except OSError as error:
        raise DataError(f"{part}: cannot be written: {error.strerror or error}") from error
    try:
        unpack(part, archive.folder, archive.files, home)
    except DataError as error:
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, gzip.BadGzipFile):
            raise DataError(f"{error}; the download is kept, so the same command goes on from it") from error
        part.unlink()
        raise
    part.unlink()
    return folder


def _is_address(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and not any(c <= " " for c in url)
    except ValueError:
        return False


def _fetch_checked(archive: Archive, url: str, part: Path, progress: Progress | None) -> None:
    """Bring `part` to the archive's size and hash, or delete it and raise."""
    resumed = part.exists()
    _fetch(archive, url, part, progress)
    if resumed and not _is_genuine(archive, part):
        # The bytes of an earlier call may be the bad ones, so start over once before giving up.
        part.unlink()
        _fetch(archive, url, part, progress)
    if not _is_genuine(archive, part):
        part.unlink()
        raise DataError(
            f"{url}: the archive's hash is not that of {archive.name} (SHA-256 {archive.sha256}), so it was "
            "deleted; try again, or use another mirror"
        )


def _fetch(archive: Archive, url: str, part: Path, progress: Progress | None) -> None:
    """Append to `part` until it has the archive's size, with a new request wherever the last one broke."""
    if _size(part) > archive.size:
        part.unlink()
    most, idle = _size(part), 0
    while _size(part) < archive.size:
        reason = "the connection was closed early"
        try:
            _transfer(archive, url, part, progress)
        except _BrokenTransferError as error:
            reason = str(error)
        most, idle = (_size(part), 0) if _size(part) > most else (most, idle + 1)
        if idle == MAX_IDLE_ATTEMPTS:
            raise DataError(
                f"{url}: the download stopped at {_size(part)} of {archive.size} bytes ({reason}); run the "
                "same command again to go on from there"
            )
        time.sleep(idle * PAUSE_SECONDS)


def _transfer(archive: Archive, url: str, part: Path, progress: Progress | None) -> None:
    """Append to `part` what one request brings, never more than belongs there."""
    have = _size(part)
    with _open(url, have) as response:
        if have and not _continues_at(response, have):
            have = 0  # the server sends the whole file
        with part.open("ab" if have else "wb") as file:
            while chunk := _read(response):
                have += len(chunk)
                if have > archive.size:
                    part.unlink()
                    raise DataError(f"{url}: sends more than the {archive.size} bytes of {archive.name}")
                file.write(chunk)
                if progress is not None:
                    progress(have, archive.size)


def _open(url: str, offset: int) -> http.client.HTTPResponse:
    request = Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})
    try:
        response: http.client.HTTPResponse = urlopen(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if offset and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url, 0)
        raise DataError(
            f"{url}: the server answers {error.code} {error.reason}; use another mirror"
        ) from error
    except http.client.HTTPException as error:
        raise _BrokenTransferError(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        # URLError wraps what the socket says. A broken connection may work next time, no other fault will.
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionError | TimeoutError):
            raise _BrokenTransferError(str(reason)) from error
        raise DataError(
            f"{url}: cannot be reached: {reason}; check the network, or use another mirror"
        ) from error
    return response


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenTransferError(str(error) or type(error).__name__) from error


class _BrokenTransferError(Exception):
    """The network failed in the middle; another request may succeed."""


def _continues_at(response: http.client.HTTPResponse, offset: int) -> bool:
    return response.status == 206 and (response.headers.get("Content-Range") or "").startswith(
        f"bytes {offset}-"
    )


def _is_genuine(archive: Archive, part: Path) -> bool:
    with part.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == archive.sha256


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
