"""Verdicts on the paper's claims, from records whose intervals are worked out by hand."""

from pathlib import Path

import pytest

from lipcert.paper.budget import Budget
from lipcert.paper.measure import finished_runs
from tests.paper.conftest import SMALL, WriteRun
from tests.tools.conftest import keep_certificates
from tools.claims import claims_sheet

CR = "CR lifts the certified accuracy at 108/255"


def pair(write_run: WriteRun, better: range, worse: range, seed: int = 0) -> Path:
    """The rows + CR and + HH, of which so many of 100 images are right and certified everywhere."""
    for row, counted in (("5-cr", better), ("5-hh", worse)):
        share = float(len(counted))
        run = keep_certificates(write_run("cifar10-main", row, (share,) * 4, seed=seed), counted)
    return run.parent


def verdicts(root: Path) -> dict[str, tuple[str, ...]]:
    """Measured gain, seeds and verdict by claim."""
    return {line[0]: line[4:7] for line in claims_sheet(finished_runs(root)).lines}


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        # Ten images differ: 1.96 standard errors are 5.9 points.
        (range(60), range(50), ("+10.00", "1", "shows")),
        (range(50), range(60), ("-10.00", "1", "does not")),
        # The same shares of other images: 90 differ, and 1.96 standard errors are 18.6 points.
        (range(60), range(50, 100), ("+10.00", "1", "undecided")),
    ],
)
def test_a_verdict_pairs_the_images(
    write_run: WriteRun, better: range, worse: range, expected: tuple[str, ...]
) -> None:
    assert verdicts(pair(write_run, better, worse))[CR] == expected


def test_seeds_that_disagree_leave_a_claim_undecided(write_run: WriteRun) -> None:
    pair(write_run, range(60), range(50))
    root = pair(write_run, range(52), range(50), seed=1)
    # Over 2 seeds the interval is 12.7 * 5.66 / sqrt(2) = 50.8 points wide to either side.
    assert verdicts(root)[CR] == ("+6.00 ± 5.66", "2", "undecided")
    pair(write_run, range(60), range(50), seed=2)
    pair(write_run, range(61), range(50), seed=3)
    assert verdicts(root)[CR] == ("+8.25 ± 4.19", "4", "shows")


@pytest.mark.parametrize(("lost", "verdict"), [(0, "shows"), (1, "undecided"), (10, "does not")])
def test_no_worse_shows_when_a_loss_of_a_point_is_left_out(
    write_run: WriteRun, lost: int, verdict: str
) -> None:
    for row, share in (("5-hh", 50 - lost), ("5-soc-maxmin", 50)):
        run = keep_certificates(write_run("cifar10-main", row, (float(share),) * 4), range(share))
    assert verdicts(run.parent)["HH is no worse than MaxMin"][-1] == verdict


def test_pairs_of_different_budgets_or_seeds_prove_nothing(write_run: WriteRun) -> None:
    root = write_run("cifar10-main", "5-hh", (62.0, 42.0, 24.0, 12.0)).parent
    write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0), budget=Budget())
    write_run("cifar10-main", "5-cr", (61.0, 44.0, 29.0, 17.0), budget=SMALL, seed=1)
    assert claims_sheet(finished_runs(root)).lines == ()


def test_bcop_is_compared_with_the_papers_own_soc_where_that_was_run(write_run: WriteRun) -> None:
    shared = {"epochs": 5, "width": 16, "schedule": "onecycle", "lr": 0.3}
    for row, series, share in (
        ("5-bcop", "exponential", 50),
        ("5-soc-baseline", "isometric", 40),
        ("5-soc-baseline", "exponential", 60),
    ):
        run = write_run("cifar10-shallow", row, (float(share),) * 4, budget=Budget(series=series, **shared))
        keep_certificates(run, range(share))
    (line,) = (line for line in claims_sheet(finished_runs(run.parent)).lines if line[0] == "SOC beats BCOP")
    assert line[3:] == ("+1.88", "+10.00", "1", "shows", "5 epochs, width 16, onecycle schedule, lr 0.3")
