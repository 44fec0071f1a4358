"""Output of certify for pictures without labels: a table, and the unreadable files."""

import math
from collections.abc import Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Any

from lipcert.cli.console import complain, print_table, say
from lipcert.errors import DataError

if TYPE_CHECKING:
    from lipcert.certify.network import ProvedNetwork

PROBLEMS = 10
"""Most problems that are printed; all of them are in the records."""

Row = dict[str, Any]


def report_problems(problems: Sequence[str], count: int) -> None:
    """Raise a DataError if there are any, so that the exit code is not 0."""
    if not problems:
        return
    if len(problems) == 1:
        others = f"; the other {count - 1:,} pictures are certified" if count > 2 else ""
        others = "; the other picture is certified" if count == 2 else others
        raise DataError(problems[0] + others)
    for problem in problems[:PROBLEMS]:
        complain(problem, 2)
    more = f", {len(problems) - PROBLEMS:,} more than shown here" if len(problems) > PROBLEMS else ""
    raise DataError(f"images: {len(problems):,} of {count:,} pictures were left out{more}")


def show(rows: Sequence[Row], network: "ProvedNetwork", name: str, *, many: bool) -> None:
    """Print a table of pictures, or of classes where there are many pictures.

    Args:
        rows: of the pictures that were read.
        network: that certified them.
        name: of the network.
        many: too many to show each.
    """
    from lipcert.report.words import PROOF

    if not rows:
        return
    resized = [row for row in rows if row["resized_from"] is not None]
    columns = ["Radius", *(["In the original"] if resized else [])]
    if many:
        title = f"{name}: {len(rows):,} pictures, with median radii (l2, pixel units)"
        names, table, texts = ["Prediction", "Pictures", "Certified", *columns], _by_class(rows, network), 1
    else:
        title = f"{name}: how far each picture may change (l2, pixel units)"
        names, table, texts = ["Picture", "Prediction", "Runner-up", *columns], _one_by_one(rows), 3
    print_table(title, names, [row[: len(names)] for row in table], numbers=len(names) - texts)
    if resized:
        size = network.input_shape[1]
        say(
            f"{len(resized):,} of {len(rows):,} pictures were cut to their centre square and resized to "
            f"{size}x{size}. 'Radius' is about the resized picture, 'In the original' about the decoded "
            "8-bit RGB picture."
        )
    say(
        f"No picture within the radius is classified differently ({PROOF}); at a radius of 0 nothing is "
        "certified."
    )


def _one_by_one(rows: Sequence[Row]) -> list[list[str]]:
    return [
        [row["file"], row["prediction"], row["runner_up"] or "-", *map(_radius_text, _radii(row))]
        for row in rows
    ]


def _by_class(rows: Sequence[Row], network: "ProvedNetwork") -> list[list[str]]:
    """Many pictures in a few lines: one for each class that was predicted, with median radii."""
    table = []
    for name in network.classes:
        found = [_radii(row) for row in rows if row["prediction"] == name]
        if found:
            certified = sum(radius > 0 for radius, _ in found)
            medians = [_radius_text(median_low(column)) for column in zip(*found, strict=True)]
            table.append([name, f"{len(found):,}", f"{certified:,}", *medians])
    return table


def _radii(row: Row) -> list[float]:
    """Radius, and radius in the original: the same where the picture was not resized."""
    original = row["radius"] if row["resized_from"] is None else row["radius_original"]
    return [math.inf if radius is None else radius for radius in (row["radius"], original)]


def _radius_text(radius: float) -> str:
    from lipcert.certify.curve import shown

    return "unlimited" if radius == math.inf else shown(radius) if radius else "0 (none)"
