"""Certificates for pictures without labels: finds, certifies and records them batch by batch."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from lipcert.cli.console import make_folder, progress, say, silence_pillow
from lipcert.cli.places import pick_device
from lipcert.cli.show_pictures import report_problems, show
from lipcert.errors import DataError
from lipcert.files import CERTIFICATES, PICTURES, home_path
from lipcert.runs.run import Run

if TYPE_CHECKING:
    from lipcert.certify.network import ProvedNetwork
    from lipcert.pictures import Picture

BATCH, READERS = 64, 4
PART = 4 * BATCH
"""Pictures that a worker of a cluster takes at once."""
SHOWN = 20
"""Most pictures that are shown one by one; for more, records are written by default."""

Row = dict[str, Any]


def certify_pictures(
    run: Run,
    named: Sequence[Path],
    *,
    resize: bool,
    as_json: bool,
    out: Path | None,
    device: str = "auto",
    cluster: str = "",
) -> None:
    """Certify every readable picture; rows are written batch by batch.

    Args:
        run: of the network.
        named: files, folders and patterns.
        resize: if False, pictures of another size count as unreadable.
        as_json: print one line of JSON per picture in place of a table.
        out: folder for certificates.jsonl; by default one is chosen if there are more pictures than a table
            shows.
        device: to certify on.
        cluster: distribute the pictures with Ray: "ray" or "ray://host:port".

    Raises:
        DataError: there are no pictures; or, at the end, some could not be read.
        ArgumentError: the network does not take square grey or colour images, or there is no such device or
            cluster.
    """
    from lipcert.pictures import check_shape

    silence_pillow()
    network = run.network if cluster else run.network.to(pick_device(device))
    check_shape(network.input_shape)
    files = find_pictures(named)
    if out is None and len(files) > SHOWN and not as_json:
        out = _new_folder((run.folder or Path("runs") / run.name) / "pictures")
    rows: list[Row] = []
    with (
        _records(out, run, network, files) as write,
        progress(f"certifying {len(files):,} picture{'s' * (len(files) != 1)}", quiet=as_json) as advance,
    ):
        if cluster:
            batches = certified_on_ray(run, files, cluster, resize=resize, device=device)
        else:
            batches = certified(network, files, resize=resize)
        for batch in batches:
            write([record for record, _ in batch])
            rows += [row for _, row in batch]
            if as_json:
                typer.echo("\n".join(json.dumps(row) for _, row in batch))
            advance(len(rows), len(files))
    if not as_json:
        show([row for row in rows if "error" not in row], network, run.name, many=len(files) > SHOWN)
        if out is not None:
            say(f"Records: {out / CERTIFICATES}")
    report_problems([row["error"] for row in rows if "error" in row], len(files))


def find_pictures(named: Sequence[Path]) -> list[Path]:
    """The picture files that files, folders (with all that is in them) and patterns name, each once.

    Raises:
        DataError: one of them names nothing.
    """
    from glob import glob, has_magic

    found: dict[Path, None] = {}
    for place in map(home_path, named):
        if place.is_dir():
            inside = _inside(place)
            if not inside:
                raise DataError(f"{place}: expected pictures in this folder, got no PNG, JPEG or WebP file")
            found |= dict.fromkeys(inside)
        elif place.exists():
            found[place] = None
        elif has_magic(str(place)):
            matches = sorted(map(Path, glob(str(place), recursive=True)))
            if not matches:
                raise DataError(f"{place}: expected pictures, but nothing matches this pattern")
            for match in matches:  # a folder without pictures is none of those that were meant
                found |= dict.fromkeys(_inside(match) if match.is_dir() else [match])
            if not found:
                raise DataError(f"{place}: expected pictures, but what matches this pattern has none")
        else:
            raise DataError(f"{place}: expected a picture or a folder: no such file or folder")
    return list(found)


def _inside(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if _is_picture(file, folder)]


def _is_picture(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix.lower() in PICTURES and not hidden and file.is_file()


def certified_on_ray(
    run: Run, files: Sequence[Path], address: str, *, resize: bool, device: str
) -> Iterator[list[tuple[Row, Row]]]:
    """What `certified` yields, batch by batch in order, from the workers of a cluster.

    Workers read the files, so every machine must see them under the same path.
    """
    from lipcert.runs.workers import work_on_ray

    work = partial(_certify_part, folder=Path.cwd(), resize=resize)
    with TemporaryDirectory() as folder:
        file = run.proved_file(Path(folder))
        parts = [(at, files[at : at + PART]) for at in range(0, len(files), PART)]
        early: dict[int, list[list[tuple[Row, Row]]]] = {}
        last = -1
        for number, batches in work_on_ray(work, file, parts, address, device=device):
            early[number] = batches
            while last + 1 in early:
                last += 1
                yield from early.pop(last)


def _certify_part(
    network: "ProvedNetwork", part: tuple[int, Sequence[Path]], *, folder: Path, resize: bool
) -> list[list[tuple[Row, Row]]]:
    """In a worker, which may have another working directory."""
    first, files = part
    silence_pillow()
    return list(certified(network, files, resize=resize, first=first, folder=folder))


def certified(
    network: "ProvedNetwork",
    files: Sequence[Path],
    *,
    resize: bool,
    first: int = 0,
    folder: Path | None = None,
) -> Iterator[list[tuple[Row, Row]]]:
    """For every batch of files, pairs of a line of certificates.jsonl and a row to show or print.

    Args:
        network: to certify with.
        files: the pictures.
        resize: if False, pictures of another size count as unreadable.
        first: index of the first row.
        folder: that relative names start from; by default the working directory.
    """
    import torch

    from lipcert.certify.records import Images, rows_of
    from lipcert.pictures import answers, read_picture

    def read(file: Path) -> "Picture | DataError":
        if (shown := as_text(file)) != str(file):
            return DataError(f"{shown}: expected a file name in UTF-8, which records can hold; rename it")
        try:
            place = file if folder is None else folder / file
            return read_picture(place, network.input_shape, resize=resize, name=str(file))
        except DataError as error:
            return error

    index = first
    for batch in _read_ahead(files, read):
        pictures = [picture for picture in batch if not isinstance(picture, DataError)]
        pixels = torch.stack([p.pixels for p in pictures]) if pictures else torch.empty(0)
        found = network.certify(pixels) if pictures else None
        told = iter(answers(network, pictures, found) if found else [])
        written = iter(rows_of(found, Images(None, "", 0)) if found else [])
        rows = []
        for picture in batch:
            about: Row = {"index": index, "file": as_text(files[index - first])}
            if isinstance(picture, DataError):
                row = about | {"error": str(picture)}
                rows.append((row, row))
            else:
                row = about | {"sha256": picture.sha256} | next(told)
                again = {name: row[name] for name in ("sha256", "resized_from", "radius_original")}
                rows.append((next(written) | about | again, row))
            index += 1
        yield rows


def as_text(name: str | Path) -> str:
    """The name of a file, with escapes in place of bytes that are not UTF-8."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def _read_ahead(
    files: Sequence[Path], read: "Callable[[Path], Picture | DataError]"
) -> "Iterator[list[Picture | DataError]]":
    """Pictures in batches; the next batch is read, by threads, while one is certified."""
    pool = ThreadPoolExecutor(READERS)
    try:
        ahead = [pool.submit(read, file) for file in files[:BATCH]]
        for start in range(BATCH, len(files) + BATCH, BATCH):
            now, ahead = ahead, [pool.submit(read, file) for file in files[start : start + BATCH]]
            yield [picture.result() for picture in now]
    finally:
        pool.shutdown(cancel_futures=True)


def _new_folder(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3 and so on that holds no records yet."""
    number, free = 1, folder
    while (free / CERTIFICATES).exists():
        number, free = number + 1, folder.with_name(f"{folder.name}-{number + 1}")
    return free


@contextmanager
def _records(
    out: Path | None, run: Run, network: "ProvedNetwork", files: Sequence[Path]
) -> Iterator[Callable[[list[Row]], None]]:
    """Yields a function that appends rows to certificates.jsonl; does nothing if `out` is None."""
    if out is None:
        yield lambda rows: None
        return
    from lipcert.certify.records import Images, header_of

    make_folder(out)
    names = hashlib.sha256("\n".join(map(str, files)).encode(errors="surrogateescape")).hexdigest()
    header = header_of(out, Images(None, names, len(files)), network=network, file=run.proved_file(out))
    header["command"] = as_text(header["command"])
    done = 0
    try:
        with (out / CERTIFICATES).open("w", encoding="utf-8") as file:

            def write(rows: list[Row]) -> None:
                nonlocal done
                file.write("".join(f"{json.dumps(row)}\n" for row in rows))
                file.flush()
                done += len(rows)

            write([header])
            yield write
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; {done - 1:,} of {len(files):,} pictures are in {out / CERTIFICATES}"
        ) from error
