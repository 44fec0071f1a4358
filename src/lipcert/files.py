"""Names of a run's files, and atomic writes: a reader sees the old content or the new, never a mixture."""

import os
import secrets
from pathlib import Path

from lipcert.errors import CheckpointError

CONFIG, ENVIRONMENT, METRICS, SUMMARY = "config.toml", "environment.json", "metrics.jsonl", "summary.json"
"""In the folder of a run: options, machine, one record per epoch, and summary."""
CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
"""The state that a resumed run continues from, and the one before it."""
LAST, BEST, PROVED = "model.safetensors", "best.safetensors", "best.proved.safetensors"
"""Weights of the last and of the best model, and the proved network of the best."""
CERTIFICATES, AUDIT, ATTACKED, REPORT = "certificates.jsonl", "audit.json", "audit.jsonl", "report.html"
"""Certificates, summary of the audit, one line per attacked image, and the report."""
COMPARISON, COMPARISON_PAGE = "comparison.json", "comparison.html"
"""Of several runs: their results, and the page."""
KEPT_CERTIFICATES, REVISED = "certificates.csv.gz", "revised.json"
"""In a folder of results: the certificates in brief, and accuracies under estimated constants."""
PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""How the names of pictures end, in small letters."""


def write_atomically(path: Path, content: bytes, *, keep: Path | None = None) -> None:
    """Write a temporary file, flush it to the disk, then rename it to `path`; the old file moves to `keep`.

    Raises:
        OSError: the disk is full, the folder is read-only, ...; `path` is then as it was.
    """
    # A unique name: two processes that write the same file must not rename each other's temporary file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_or_explain(path: Path, content: bytes) -> None:
    """`write_atomically` to a path that the user chose.

    Raises:
        CheckpointError: there is no such folder, it cannot be written to, or the disk is full.
    """
    try:
        write_atomically(path, content)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: cannot write there ({error.strerror}); create the folder first"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot write there ({error.strerror}); make room, or name another folder"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Flush the rename to the disk, on systems that can open folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def home_path(path: str | os.PathLike[str]) -> Path:
    """The path with `~` replaced by the home folder; `~name` of an unknown user is left as it is.

    >>> home_path("~nobody-of-this-name/a").as_posix()
    '~nobody-of-this-name/a'
    """
    return Path(os.path.expanduser(path))
