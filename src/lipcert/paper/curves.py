"""Which runs RESULTS.md shows as a curve: the best of each dataset."""

from collections.abc import Iterable
from pathlib import Path

from lipcert.paper.keep import CERTIFICATES
from lipcert.paper.measure import Run
from lipcert.training.evaluation import selection_score


def best_runs(runs: Iterable[Run]) -> dict[str, Run]:
    """Of each dataset, by name, the run whose selected model is the best on held-out images.

    Only runs whose certificates were kept have a curve.
    """
    best: dict[str, Run] = {}
    for run in runs:
        if (run.folder / CERTIFICATES).exists():
            name = Path(run.config.data).name
            best[name] = max(best.get(name, run), run, key=_score)
    return dict(sorted(best.items()))


def curve_file(folder: Path, dataset: str) -> Path:
    """Where the picture of a dataset is."""
    return folder / f"curve-{dataset}.png"


def _score(run: Run) -> float:
    return selection_score(run.summary.best)
