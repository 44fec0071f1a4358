"""Finished runs taken over into a folder of results: small records that a repository can hold."""

import csv
import gzip
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lipcert.certify.curve import shown
from lipcert.certify.outcomes import Outcomes
from lipcert.certify.records import FILE, read_records
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.files import write_atomically
from lipcert.paper.measure import AUDIT, REVISED, finished_runs
from lipcert.paper.times import TIMES
from lipcert.training.config import TrainConfig
from lipcert.training.metrics import ENVIRONMENT, METRICS
from lipcert.training.run_folder import CONFIG
from lipcert.training.summary import SUMMARY

CERTIFICATES = "certificates.csv.gz"
DECIMALS = 6
"""Of the radii that are kept."""


def keep_runs(runs: Path, results: Path) -> tuple[Path, ...]:
    """Take every finished run in the folders of `runs` over into `results`; returns the kept folders.

    What a run leaves is kept as it is (config, metrics, summary, environment), but for two things: absolute
    paths shrink to their last name, for they say nothing on another machine, and the certificates become a
    compressed table of label, prediction, runner-up and radius, the radius rounded down. Weights stay where
    they are. Timings and the verdict of an audit come along.
    """
    if runs.resolve() == results.resolve():
        raise ArgumentError(f"results: expected another folder than that of the runs, got {results} for both")
    timings = [path for path in (runs / TIMES).glob("*.json") if path.is_file()]
    for path in timings:
        (results / TIMES).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, results / TIMES / path.name)
    return tuple(_keep(run.folder, results / run.folder.name) for run in finished_runs(runs))


def read_certificates(kept: Path) -> Outcomes:
    """The certificates of a kept run, its radii rounded down."""
    with gzip.open(kept / CERTIFICATES, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> torch.Tensor:
        return torch.tensor([int(row[name]) for row in rows])

    return Outcomes(
        index=torch.arange(len(rows)),
        label=column("label"),
        prediction=column("prediction"),
        runner_up=column("runner_up"),
        radius=torch.tensor([float(row["radius"]) for row in rows], dtype=torch.float64),
    )


def _refuse_mixture(source: Path, destination: Path) -> None:
    """Raise if the kept record is of another run, or the audit of other weights."""
    if (destination / CONFIG).exists():
        changes = TrainConfig.read(destination / CONFIG).changes(_kept_config(source))
        if changes:
            raise ArgumentError(
                f"results: {destination} keeps another run than {source} ({'; '.join(changes)}); rename "
                "one of the two folders"
            )
    if (source / AUDIT).exists() and (source / FILE).exists():
        attacked = json.loads((source / AUDIT).read_text(encoding="utf-8"))["network_sha256"]
        if attacked != read_records(source).network_hash:
            raise CheckpointError(
                f"{source / AUDIT}: audits another network than that of {source / FILE}; run `lipcert audit "
                f"{source}` again"
            )


def _keep(source: Path, destination: Path) -> Path:
    _refuse_mixture(source, destination)
    destination.mkdir(parents=True, exist_ok=True)
    if (source / FILE).exists():
        certificates, kept = _compact(source), destination / CERTIFICATES
        if kept.exists() and kept.read_bytes() != certificates:
            for name in (REVISED, AUDIT):  # they speak of other weights
                (destination / name).unlink(missing_ok=True)
        write_atomically(kept, certificates)
    write_atomically(destination / CONFIG, _kept_config(source).to_toml().encode())
    for name in (METRICS, REVISED, AUDIT):
        if (source / name).exists():
            shutil.copyfile(source / name, destination / name)
    for name in (SUMMARY, ENVIRONMENT):
        if (source / name).exists():
            content = json.loads((source / name).read_text(encoding="utf-8"))
            write_atomically(destination / name, (json.dumps(_portable(content), indent=2) + "\n").encode())
    return destination


def _kept_config(source: Path) -> TrainConfig:
    config = TrainConfig.read(source / CONFIG)
    return config if config.start_from is None else replace(config, start_from=_last_name(config.start_from))


def _last_name(path: str) -> str:
    return Path(path).name if path.startswith("/") else path


def _portable(content: dict[str, Any]) -> dict[str, Any]:
    changed = dict(content)
    if "out" in content:
        changed["out"] = Path(content["out"]).name
    for name in ("command", "resumed_by"):
        if name in content:
            words = shlex.split(content[name])
            changed[name] = shlex.join(
                re.sub(r"^(--[a-z-]+=)?(/.*)", lambda found: (found[1] or "") + Path(found[2]).name, word)
                for word in words
            )
    if "started_from" in content:
        start = content["started_from"]
        changed["started_from"] = start | {"network": _last_name(start["network"])}
    return changed


def _compact(folder: Path) -> bytes:
    from lipcert.files import PROVED

    records = read_records(folder)
    outcomes = records.outcomes
    if records.network_file.name != PROVED:
        raise CheckpointError(
            f"{folder / FILE}: expected the certificates of {PROVED}, got those of "
            f"{records.network_file.name}; run `lipcert certify {folder}` again"
        )
    if outcomes.index.tolist() != list(range(len(outcomes))):
        raise CheckpointError(f"{folder / FILE}: expected the first images of the test set in their order")
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("label", "prediction", "runner_up", "radius"))
    columns = (outcomes.label, outcomes.prediction, outcomes.runner_up, outcomes.radius)
    for label, prediction, runner_up, radius in zip(*(c.tolist() for c in columns), strict=True):
        rows.writerow((label, prediction, runner_up, shown(radius, DECIMALS)))
    # No time stamp: equal certificates are equal files.
    return gzip.compress(text.getvalue().encode(), mtime=0)
