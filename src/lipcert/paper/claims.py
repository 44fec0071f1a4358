"""The paper's claims as pairs of networks, and whether a pair that was trained alike shows them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lipcert.paper.budget import budget_label, budget_without_series
from lipcert.paper.compare import by_network
from lipcert.paper.measure import Run
from lipcert.paper.render import Sheet
from lipcert.paper.tables import Network, tables

BEYOND_CHANCE = 2.0
"""A gain counts when it exceeds this many standard errors of the difference of two shares."""


@dataclass(frozen=True)
class Claim:
    """`better` is said to gain on `worse` at `column`; `worse` is a change of the better network.

    Args:
        text: the claim.
        column: where the gain is looked for.
        applies: which networks are the better one of a pair.
        worse: the network it is compared to.
        no_worse: the claim is only that nothing is lost.
    """

    text: str
    column: str
    applies: Callable[[Network], bool]
    worse: Callable[[Network], Network]
    no_worse: bool = False


def _is(**wanted: object) -> Callable[[Network], bool]:
    return lambda network: all(getattr(network, name) == value for name, value in wanted.items())


CLAIMS = (
    Claim(
        "LLN helps on CIFAR-100",
        "standard",
        _is(dataset="cifar100", conv="soc", activation="maxmin", head="lln", gamma=0.0),
        lambda network: replace(network, head="orthogonal"),
    ),
    Claim(
        "CR lifts the certified accuracy at 108/255",
        "108/255",
        lambda network: network.gamma == 0.5,
        lambda network: replace(network, gamma=0.0),
    ),
    Claim(
        "HH is no worse than MaxMin",
        "standard",
        _is(conv="soc", activation="hh1", gamma=0.0),
        lambda network: replace(network, activation="maxmin"),
        no_worse=True,
    ),
    Claim(
        "SOC beats BCOP",
        "108/255",
        _is(conv="soc", activation="maxmin", gamma=0.0),
        lambda network: replace(network, conv="bcop"),
    ),
    Claim(
        "SOC beats Cayley",
        "108/255",
        _is(conv="soc", activation="maxmin", gamma=0.0),
        lambda network: replace(network, conv="cayley"),
    ),
)


def claims_sheet(runs: Sequence[Run]) -> Sheet:
    """Every pair of runs with equal budget and seed that bears on a claim, with the paper's own gain."""
    return Sheet(
        name="claims",
        title="The paper's claims at the budgets that were run",
        columns=("Claim", "Network", "Column", "Paper", "Measured", "Shows", "Seed", "Budget"),
        lines=tuple(line for claim in CLAIMS for line in _lines(claim, runs)),
        notes=(
            "Gains in percentage points. A gain shows when it exceeds two standard errors of the difference "
            "between two shares of the test images; that a method is no worse shows unless a loss exceeds "
            "them. Training noise between seeds comes on top.",
        ),
        labels=1,
        folded=("Seed", "Budget"),
    )


def _lines(claim: Claim, runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    known = by_network(runs)
    for network in sorted(known):
        if not claim.applies(network):
            continue
        for better in sorted(known[network], key=_order):
            for worse in sorted(known.get(claim.worse(network), ()), key=_order):
                if _alike(better, worse):
                    gain, verdict = judge(claim, better, worse)
                    reported = _reported_gain(network, claim.worse(network), claim.column)
                    paper = "" if reported is None else f"{reported:+.2f}"
                    budget = budget_label(better.config)
                    seed = str(better.config.seed)
                    yield claim.text, network.key, claim.column, paper, f"{gain:+.2f}", verdict, seed, budget


def judge(claim: Claim, better: Run, worse: Run) -> tuple[float, str]:
    """The measured gain in percentage points, and "yes", "no" or "within chance"."""
    high, low = (run.test("best")[claim.column] / 100 for run in (better, worse))
    images = better.summary.test["best"]["images"]
    error = math.sqrt((high * (1 - high) + low * (1 - low)) / images)
    gain = high - low
    if abs(gain) <= BEYOND_CHANCE * error:
        verdict = "yes" if claim.no_worse else "within chance"
    else:
        verdict = "yes" if gain > 0 else "no"
    return 100 * gain, verdict


def _order(run: Run) -> tuple[str, int, str]:
    return budget_label(run.config), run.config.seed, run.start


def _alike(run: Run, other: Run) -> bool:
    """Whether two runs agree in budget, seed and start; only two with SOC layers can agree in series."""
    if run.config.conv == other.config.conv:
        return _order(run) == _order(other)
    same = budget_without_series(run.config) == budget_without_series(other.config)
    return same and (run.config.seed, run.start) == (other.config.seed, other.start)


def _reported_gain(better: Network, worse: Network, column: str) -> float | None:
    """The paper's gain between two networks on the test set, from the first table that has both."""
    for table in tables().values():
        if table.kind == "accuracy" and table.split == "test":
            found = {row.network: float(row.reported[column]) for row in table.rows}
            if better in found and worse in found:
                return found[better] - found[worse]
    return None
