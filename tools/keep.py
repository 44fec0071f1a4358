"""Takes finished runs over into results/, as small records that a repository can hold.

python -m tools.keep runs/paper runs/more    # then python -m tools.fill_docs
python -m tools.keep --weights runs/long     # with the best model, to go on by `--start-from results/NAME`
python -m tools.keep --uncited               # the records that no page shows any more
"""

import argparse
import csv
import gzip
import io
import json
import re
import shlex
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from lipcert.certify.curve import shown
from lipcert.certify.outcomes import Outcomes
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.files import (
    AUDIT,
    BEST,
    CERTIFICATES,
    CONFIG,
    ENVIRONMENT,
    KEPT_CERTIFICATES,
    METRICS,
    PROVED,
    REVISED,
    SUMMARY,
    write_atomically,
)
from lipcert.models.storage import load, save
from lipcert.paper.measure import finished_runs
from lipcert.paper.tables import tables
from lipcert.paper.times import TIMES
from lipcert.runs.config import TrainConfig
from lipcert.runs.run import Run, State
from lipcert.zoo import FOLDER as ZOO

DECIMALS = 6
"""Of the radii that are kept."""


def keep_runs(runs: Path, results: Path, *, weights: bool = False) -> tuple[Path, ...]:
    """Take every finished run in the folders of `runs` over into `results`; returns the kept folders.

    What a run leaves is kept as it is (config, metrics, summary, environment), but for two things: absolute
    paths shrink to their last name, for they say nothing on another machine, and the certificates become a
    compressed table of label, prediction, runner-up and radius, the radius rounded down. Timings and the
    verdict of an audit come along. Weights stay where they are, unless `weights` asks for those of the best
    model, rounded to bfloat16: a later run can start from the record then.
    """
    if runs.resolve() == results.resolve():
        raise ArgumentError(f"results: expected another folder than that of the runs, got {results} for both")
    timings = [path for path in (runs / TIMES).glob("*.json") if path.is_file()]
    for path in timings:
        (results / TIMES).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, results / TIMES / path.name)
    kept = [(run, _keep(run, results / run.name)) for run in finished_runs(runs)]
    for run, folder in kept if weights else ():
        save(load(run.root / BEST), folder / BEST, compact=True)
    return tuple(folder for _, folder in kept)


def read_certificates(kept: Path) -> Outcomes:
    """The certificates of a kept run, its radii rounded down.

    Raises:
        CheckpointError: they are not there, or damaged.
    """
    path = kept / KEPT_CERTIFICATES
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        label, prediction, runner_up = (
            torch.tensor([int(row[name]) for row in rows]) for name in ("label", "prediction", "runner_up")
        )
        radius = torch.tensor([float(row["radius"]) for row in rows], dtype=torch.float64)
        return Outcomes(torch.arange(len(rows)), label, prediction, runner_up, radius)
    except (OSError, EOFError, zlib.error, csv.Error, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error


def _refuse_mixture(run: Run, kept: Run, config: TrainConfig) -> None:
    """Raise if the kept record is of another run, or the audit of other weights."""
    if kept.state is not State.NEW and (changes := kept.config.changes(config)):
        raise ArgumentError(
            f"results: {kept.folder} keeps another run than {run.folder} ({'; '.join(changes)}); rename one "
            "of the two folders"
        )
    if (run.root / AUDIT).exists() and run.audit is None:
        raise CheckpointError(
            f"{run.root / AUDIT}: audits another network than that of {run.root / CERTIFICATES}; run "
            f"`lipcert audit {run.folder}` again"
        )


def _keep(run: Run, destination: Path) -> Path:
    source, config = run.root, _kept_config(run)
    _refuse_mixture(run, Run.at(destination), config)
    destination.mkdir(parents=True, exist_ok=True)
    if (source / CERTIFICATES).exists():
        certificates, kept = _compact(run), destination / KEPT_CERTIFICATES
        if kept.exists() and kept.read_bytes() != certificates:
            for name in (REVISED, AUDIT):  # they speak of other weights
                (destination / name).unlink(missing_ok=True)
        write_atomically(kept, certificates)
    write_atomically(destination / CONFIG, config.to_toml().encode())
    for name in (METRICS, REVISED, AUDIT):
        if (source / name).exists():
            shutil.copyfile(source / name, destination / name)
    for name, content in ((SUMMARY, asdict(run.summary)), (ENVIRONMENT, run.environment)):
        if (source / name).exists():
            write_atomically(destination / name, (json.dumps(_portable(content), indent=2) + "\n").encode())
    return destination


def _kept_config(run: Run) -> TrainConfig:
    start = run.config.start_from
    return run.config if start is None else replace(run.config, start_from=_last_name(start))


def _last_name(path: str) -> str:
    return Path(path).name if path.startswith("/") else path


def _portable(content: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(content)
    if "out" in content:
        changed["out"] = Path(content["out"]).name
    for name in ("command", "resumed_by"):
        if name in content:
            try:
                words = shlex.split(content[name])
            except ValueError:  # no command line at all, so it is left as it is
                continue
            changed[name] = shlex.join(
                re.sub(r"^(--[a-z-]+=)?(/.*)", lambda found: (found[1] or "") + Path(found[2]).name, word)
                for word in words
            )
    if "started_from" in content:
        start = content["started_from"]
        changed["started_from"] = start | {"network": _last_name(start["network"])}
    return changed


def _compact(run: Run) -> bytes:
    folder, records, outcomes = run.root, run.records, run.records.outcomes
    if records.network_file.name != PROVED:
        raise CheckpointError(
            f"{folder / CERTIFICATES}: expected the certificates of {PROVED}, got those of "
            f"{records.network_file.name}; run `lipcert certify {folder}` again"
        )
    if outcomes.index.tolist() != list(range(len(outcomes))):
        raise CheckpointError(
            f"{folder / CERTIFICATES}: expected the first images of the test set in their order"
        )
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("label", "prediction", "runner_up", "radius"))
    columns = (outcomes.label, outcomes.prediction, outcomes.runner_up, outcomes.radius)
    for label, prediction, runner_up, radius in zip(*(c.tolist() for c in columns), strict=True):
        rows.writerow((label, prediction, runner_up, shown(radius, DECIMALS)))
    # No time stamp: equal certificates are equal files.
    return gzip.compress(text.getvalue().encode(), mtime=0)


def uncited(results: Path) -> list[str]:
    """Records that no table of RESULTS.md or docs/results.md rests on, and that no page and no card names."""
    from tools.claims import claim_pairs
    from tools.fill_docs import ROOT, flagship_runs, pages
    from tools.results import best_groups, for_table

    runs = finished_runs(results)
    cited = {run.name for run in flagship_runs(runs)}
    cited |= {run.name for group in best_groups(runs) for run in group}
    cited |= {run.name for _, _, pairs in claim_pairs(runs) for pair in pairs for run in pair}
    for table in tables().values():
        if table.kind != "times":
            cited |= {run.name for group in for_table(table, runs).values() for run in group}
    places = [path for path in (*pages(), *ZOO.glob("*.json")) if path != ROOT / "docs/results.md"]
    texts = [path.read_text("utf-8") for path in places]
    return [run.name for run in runs if run.name not in cited and not any(run.name in text for text in texts)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="*", help="folders of runs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the records")
    parser.add_argument("--weights", action="store_true", help="keep the best model too, in bfloat16")
    parser.add_argument("--uncited", action="store_true", help="list the records that no page shows")
    options = parser.parse_args()
    for folder in options.runs:
        for kept in keep_runs(folder, options.results, weights=options.weights):
            print(f"kept {kept}")
    if options.uncited:
        print("\n".join(uncited(options.results)))


if __name__ == "__main__":
    main()
