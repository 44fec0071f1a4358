"""Extract the needed files, and nothing else, from a tar archive that may be malicious."""

import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from lipcert.errors import DataError

# The public archives unpack to 186 MB and 12 entries at most.
MAX_BYTES = 1 << 30
MAX_ENTRIES = 1000


def unpack(archive: Path, folder: str, files: tuple[str, ...], root: Path) -> None:
    """Unpack `files` of the archive's one `folder` to `root / folder`.

    Every entry is checked before the first is written, and an archive with a single bad one is refused whole:
    absolute paths, `..`, links, devices, names outside `folder`, more than a gigabyte. The files are unpacked
    aside and moved into place when all are there, so a broken attempt leaves nothing behind.

    Raises:
        DataError: the archive is damaged, dangerous or incomplete, or the disk refuses.
    """
    aside = Path(tempfile.mkdtemp(prefix=f".{folder}-", dir=root))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in _checked_entries(tar, archive, folder, files):
                tar.extract(entry, aside, filter="data")
        _move_into_place(aside / folder, root / folder, files)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: cannot be unpacked to {root / folder}: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _checked_entries(
    tar: tarfile.TarFile, archive: Path, folder: str, files: tuple[str, ...]
) -> list[tarfile.TarInfo]:
    wanted: dict[str, tarfile.TarInfo] = {}
    total = 0
    for number, entry in enumerate(tar, start=1):
        name = PurePosixPath(entry.name)
        total += entry.size
        if name.is_absolute() or ".." in name.parts or "\\" in entry.name or name.parts[:1] != (folder,):
            raise DataError(f"{archive}: refused, entry '{entry.name}' lies outside the folder {folder}")
        if not (entry.isreg() or entry.isdir()):
            raise DataError(f"{archive}: refused, entry '{entry.name}' is neither a file nor a folder")
        if total > MAX_BYTES or number > MAX_ENTRIES:
            raise DataError(
                f"{archive}: refused, it unpacks to more than {MAX_BYTES} bytes or {MAX_ENTRIES} entries"
            )
        if entry.isreg() and name.relative_to(folder).as_posix() in files:
            wanted[name.name] = entry
    missing = next((file for file in files if file not in wanted), None)
    if missing is not None:
        raise DataError(f"{archive}: refused, it has no {folder}/{missing}")
    return list(wanted.values())


def _move_into_place(source: Path, target: Path, files: tuple[str, ...]) -> None:
    if target.exists():
        # An incomplete folder of the user's: fill it file by file and leave whatever else is there.
        for file in files:
            os.replace(source / file, target / file)
    else:
        os.replace(source, target)
