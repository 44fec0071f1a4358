"""The paper's claims as pairs of networks, and whether pairs that were trained alike show them."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import t as student
from torch import Tensor

from lipcert.certify.curve import RADII
from lipcert.paper.budget import budget_label, network_of
from lipcert.paper.measure import on_test_images
from lipcert.paper.render import Sheet
from lipcert.paper.tables import Network, tables
from lipcert.runs.run import Run
from tools.keep import read_certificates
from tools.results import at_one_budget

CONFIDENCE = 0.95
TOLERANCE = 1.0
"""Percentage points that a method may lose and still be called no worse."""
Pair = tuple[Run, Run]


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
    *(
        Claim(
            f"SOC beats {name}",
            "108/255",
            _is(conv="soc", activation="maxmin", gamma=0.0),
            lambda network, conv=conv: replace(network, conv=conv),  # type: ignore[misc]
        )
        for name, conv in (("BCOP", "bcop"), ("Cayley", "cayley"))
    ),
)


def claims_sheet(runs: Sequence[Run]) -> Sheet:
    """Every claim and network with a pair of runs of equal budget, start and seed."""
    lines = []
    for claim, network, pairs in claim_pairs(runs):
        gain, verdict = judge(claim, pairs)
        spread = [_gain(claim, pair) for pair in pairs]
        deviation = f" ± {statistics.stdev(spread):.2f}" if len(pairs) > 1 else ""
        reported = _reported_gain(network, claim.worse(network), claim.column)
        lines.append(
            (
                claim.text,
                network.key,
                claim.column,
                "" if reported is None else f"{reported:+.2f}",
                f"{gain:+.2f}{deviation}",
                str(len(pairs)),
                verdict,
                budget_label(pairs[0][0].config),
            )
        )
    return Sheet(
        name="claims",
        title="The paper's claims",
        columns=("Claim", "Network", "Column", "Paper", "Measured", "Seeds", "Verdict", "Budget"),
        lines=tuple(lines),
        notes=(
            "Gains in percentage points, with the standard deviation over seeds. Both networks of a pair "
            f"certify the same test images: a gain shows, or does not, when its {CONFIDENCE:.0%} interval, "
            "from the differences image by image and from those between seeds, leaves 0 out. That a method "
            f"is no worse shows when the interval leaves out a loss of {TOLERANCE:g} point. One seed says "
            "nothing of the noise between trainings.",
        ),
        labels=1,
        folded=("Budget",),
    )


def claim_pairs(runs: Sequence[Run]) -> Iterator[tuple[Claim, Network, list[Pair]]]:
    """For every claim and network the pairs, one for each seed, all of a dataset at one budget."""
    for claim in CLAIMS:
        for dataset in sorted({run.config.data for run in runs}):
            here = [run for run in runs if run.config.data == dataset]
            chosen = at_one_budget(here, lambda group, claim=claim: len(_pairs(claim, group)))  # type: ignore[misc]
            for network, pairs in sorted(_pairs(claim, chosen).items()):
                yield claim, network, pairs


def _pairs(claim: Claim, runs: Sequence[Run]) -> dict[Network, list[Pair]]:
    """Runs of one budget in pairs of equal seeds, by the better network."""
    known = {(network_of(run.config), run.config.seed): run for run in runs}
    found: dict[Network, list[Pair]] = {}
    for (network, seed), run in sorted(known.items(), key=lambda item: item[0]):
        worse = known.get((claim.worse(network), seed))
        if claim.applies(network) and worse is not None:
            found.setdefault(network, []).append((run, worse))
    return found


def judge(claim: Claim, pairs: Sequence[Pair]) -> tuple[float, str]:
    """The mean gain in percentage points, and "shows", "does not" or "undecided".

    The gain varies with the test images, by the spread of the differences image by image, and with the seed,
    by the spread of the gains over seeds; the two parts of the interval add in squares.
    """
    gains = [_gain(claim, pair) for pair in pairs]
    gain = statistics.fmean(gains)
    differences = torch.stack([_hits(better, claim) - _hits(worse, claim) for better, worse in pairs]).mean(0)
    normal = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    width = 100 * normal * float(differences.std()) / math.sqrt(len(differences))
    if len(gains) > 1:
        quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(gains) - 1))
        width = math.hypot(width, quantile * statistics.stdev(gains) / math.sqrt(len(gains)))
    if gain + width < 0:
        return gain, "does not"
    least = -TOLERANCE if claim.no_worse else 0.0
    return gain, "shows" if gain - width > least else "undecided"


def _gain(claim: Claim, pair: Pair) -> float:
    better, worse = (on_test_images(run)[claim.column] for run in pair)
    return better - worse


def _hits(run: Run, claim: Claim) -> Tensor:
    """1 for every test image that counts in the claim's column, else 0."""
    outcomes = read_certificates(run.root)
    counts = outcomes.right
    if claim.column in RADII:
        counts = counts & (outcomes.radius > RADII[claim.column])
    return counts.double()


def _reported_gain(better: Network, worse: Network, column: str) -> float | None:
    """The paper's gain between two networks on the test set, from the first table that has both."""
    for table in tables().values():
        if table.kind == "accuracy" and table.split == "test":
            found = {row.network: float(row.reported[column]) for row in table.rows}
            if better in found and worse in found:
                return found[better] - found[worse]
    return None
