"""Where a command writes, and the device that it runs on."""

from pathlib import Path
from typing import TYPE_CHECKING

from lipcert.errors import ArgumentError, CheckpointError
from lipcert.files import AUDIT, CERTIFICATES, CONFIG
from lipcert.runs.run import Run

if TYPE_CHECKING:
    import torch


def home_folder(run: Run, data: str) -> Path:
    """Folder for the results of a network; with `data` in its name if the network's own data is unknown."""
    if run.folder is not None:
        return run.folder
    return Path("runs") / run.name / ("" if run.data is not None else Path(data).resolve().name)


def default_folder(run: Run, made_by: str, *, data: str, count: int | None, weights: str) -> Path:
    """Folder for the records of a command: the run's own folder, or a subfolder.

    The run's folder is for the whole test set of its own data and its best weights; all else has a subfolder.

    Raises:
        ArgumentError: the folder for a file, or for a network that ships, is inside the folder of a run, or
            holds results of another network.
    """
    base = home_folder(run, data)
    if run.folder is None and any((place / CONFIG).exists() for place in (base, base.parent)):
        raise ArgumentError(f"out: {base} is in the folder of a run; name another one with --out")
    parts = [] if run.data in (None, data) else [Path(data).resolve().name]
    parts += [] if count is None else [f"first{count}"]
    parts += [] if weights == "best" else [weights]
    folder = base / "-".join([made_by, *parts]) if parts else base
    if run.folder is None:
        _refuse_others(folder, run.network.hash)
    return folder


def _refuse_others(folder: Path, network_hash: str) -> None:
    """Raise if the folder holds results of another network: two files may have the same name."""
    from lipcert.runs.audit import read_audit

    known = Run.at(folder)
    try:
        certified = known.records.header.network_sha256 if (folder / CERTIFICATES).is_file() else network_hash
        found = read_audit(folder) if (folder / AUDIT).is_file() else None
    except CheckpointError:  # damaged: may be replaced
        return
    if certified != network_hash or not (found is None or found.is_of(network_hash)):
        raise ArgumentError(f"out: {folder} is about another network; name another folder with --out")


def pick_device(name: str) -> "torch.device":
    """The device of this name; "auto" is a GPU if there is one.

    Raises:
        ArgumentError: there is no such device here.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(
            f"device: expected auto, cpu, cuda or another device of this machine, got {name!r}"
        ) from error
    return device
