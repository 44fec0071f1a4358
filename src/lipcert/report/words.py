"""Sentences of a report, from the files of a run; no network is run."""

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from lipcert.certify.curve import RADII, shown
from lipcert.report.own_pictures import summarise
from lipcert.runs.run import Run

PROOF = "proved, rounding included"
"""What radii are based on."""


def sentence(run: Run) -> str:
    """The whole result in one sentence, or in two where pictures were resized."""
    records = run.records
    if records.has_own_pictures:
        found = summarise(records)
        text = (
            f"{records.header.name} classified {found.count:,} picture{'s' * (found.count != 1)} without "
            "labels. Each prediction is proved to stay the same within the picture's l2 radius: "
            f"median radius {shown(found.median)}, largest {shown(found.largest)}."
        )
        if found.resized:
            text += (
                f" In the originals (decoded 8-bit RGB): median {shown(found.median_original)}, "
                f"largest {shown(found.largest_original)}."
            )
        return text
    accuracy = records.outcomes.accuracy()
    first = next(iter(RADII))
    images = f"{accuracy.count:,} {records.data} test images"
    return (
        f"{records.header.name} classifies {accuracy.standard:.1%} of {images} correctly; for "
        f"{accuracy[RADII[first]]:.1%} it is proved that no change of l2 norm up to {first} can alter that."
    )


def resized(run: Run) -> str:
    """What radii say about pictures that may have had other sizes; nothing if there are none."""
    records = run.records
    side = records.header.input_shape[-1]
    if records.has_own_pictures:
        found = summarise(records)
        if not found.resized:
            return ""
        return (
            f"{found.resized:,} of {found.count:,} pictures were cut to their centre square and resized to "
            f"{side}x{side} pixels. 'Radius' is about the resized picture, 'In the original' about the "
            "decoded 8-bit RGB picture."
        )
    if not records.resized:
        return ""
    originals = median_low(
        original if right else 0.0
        for original, right in zip(records.radii_original, records.outcomes.right.tolist(), strict=True)
    )
    return (
        f"{records.resized:,} of {len(records.rows):,} pictures were cut to their centre square and resized "
        f"to {side}x{side} pixels; radii are about the resized pictures. A resize shrinks changes or lets "
        "them grow by a known factor, which proves a radius for each original (decoded 8-bit RGB) as well: "
        f"their median is {shown(originals)}, and the records have them (radius_original)."
    )


def command(run: Run) -> str:
    """The commands that reproduce it: the training, then the certificates."""
    # A single command may have done both.
    commands = dict.fromkeys([str(run.environment.get("command", "")), run.records.header.command])
    return "\n".join(command for command in commands if command)


def facts(run: Run) -> list[tuple[str, str]]:
    """Where every number comes from, as names and values."""
    records, machine = run.records, run.environment
    made = records.header
    rows = [
        ("Network", made.name),
        ("Proved file", f"{records.network_file.name}, SHA-256 {made.network_sha256}"),
        _images(run),
        ("Proof", PROOF),
        ("Certified with", f"lipcert {made.lipcert}, torch {made.torch}, python {made.python}"),
        ("Certified on", made.machine),
        (
            "Trained with",
            ", ".join(f"{k} {machine[k]}" for k in ("lipcert", "torch", "python") if k in machine),
        ),
        ("Trained on", ", ".join(str(machine[k]) for k in ("cpu", "system") if k in machine)),
        ("Threads", str(machine.get("threads", ""))),
        ("Training time", _duration(run.metrics)),
        ("Started from", _start(machine.get("started_from"))),
    ]
    return [(name, value) for name, value in rows if value]


def _images(run: Run) -> tuple[str, str]:
    records = run.records
    if not records.has_own_pictures:
        count = len(records.outcomes)
        return "Images", f"{records.data}, {count:,} test images, SHA-256 {records.header.data_sha256}"
    unread = f", {len(records.unread):,} left out" if records.unread else ""
    return (
        "Pictures",
        f"{len(records.rows):,} certified{unread}; SHA-256 of their names {records.header.data_sha256}",
    )


def _start(start: Mapping[str, Any] | None) -> str:
    if start is None:
        return ""
    known = "" if start["epochs"] is None else f", trained for {round(start['epochs'], 1):g} epochs"
    return f"{start['network']}{known}, SHA-256 {start['weights_sha256']}"


def _duration(epochs: Sequence[Mapping[str, Any]]) -> str:
    if not epochs:
        return ""
    seconds, speed = float(epochs[-1]["elapsed"]), float(epochs[-1]["images_per_second"])
    return f"{seconds:,.0f} s for {epochs[-1]['epoch']:g} epochs, {speed:,.0f} images per second"
