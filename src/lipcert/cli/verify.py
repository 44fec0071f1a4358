"""lipcert verify: derive written certificates again, by a second implementation."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipcert.cli.console import print_json, say
from lipcert.cli.network import FIXED_SIZE
from lipcert.errors import BrokenCertificateError, CheckpointError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from lipcert.certify.records import Records
    from lipcert.certify.verify import Verification

EXAMPLES = """
Examples:

lipcert verify runs/a

lipcert verify runs/a/certificates.jsonl --sample 64

lipcert verify certificates.jsonl --network net.proved.safetensors --data cifar10
"""


def verify(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="certificates.jsonl, or its folder.")],
    network: Annotated[
        Path | None, typer.Option("--network", help="The proved network; else the one the records name.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="The images; else those the records name.")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", help="How many certificates to derive again.", min=1)
    ] = 16,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Which ones; else others every time, which no sender foresees."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Derive a sample of written certificates again in numpy, from the file of the proved network alone.

    The code shares nothing with lipcert's own, and takes nothing that file or records state for granted: all
    Lipschitz constants are derived by other methods, and all labels are held against the data. Exits with 1
    if something does not hold.
    """
    from lipcert.certify.independent import read_network
    from lipcert.certify.records import FILE, read_records
    from lipcert.certify.verify import verify as check
    from lipcert.data import load

    folder = records if records.is_dir() else records.parent
    if not records.is_dir() and records.name != FILE:
        raise CheckpointError(f"{records}: expected a file called {FILE}, or its folder")
    written = read_records(folder)
    file = network or written.network_file
    if written.header["data"] is None and data is None:
        pixels, labels, about = _pictures(written, read_network(file).input_shape), None, "pictures"
    else:
        source = data or written.data
        size = None if source in FIXED_SIZE else read_network(file).input_shape[-1]
        images = load(source, split="test", image_size=size)
        if images.fingerprint != written.data_hash:
            raise DataError(
                f"data: {source} holds other images than those that {folder / FILE} was written for; name "
                "those with --data"
            )
        if images.classes != written.classes:
            raise BrokenCertificateError(
                f"{folder / FILE} does not hold: it names the classes otherwise than {source} does"
            )
        pixels, labels, about = images.images, images.labels, "test images, with their true labels"
    found = check(folder, file, pixels, labels, sample=sample, seed=seed)
    if as_json:
        content = asdict(found)
        # JSON has no infinity, which is what an infinite radius exceeds all others by.
        finite = math.isfinite(found.radius_excess)
        print_json(content | {"radius_excess": found.radius_excess if finite else None})
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise BrokenCertificateError(f"{folder / FILE} does not hold: {found.problems[0]}{more}")
    if not as_json:
        say(_report(found, len(written.outcomes), f"{len(pixels):,} {about}"))


def _pictures(written: "Records", shape: tuple[int, ...]) -> "Tensor":
    """The pictures that records name, beside the records or where they were named from."""
    import torch

    from lipcert.cli.own_images import pictures_hash, read_picture

    places = [next((p for p in (Path(f), written.folder / f) if p.is_file()), Path(f)) for f in written.files]
    pictures = [read_picture(place, shape, resize=True)[0] for place in places]
    pixels = torch.stack(pictures) if pictures else torch.empty(0)
    if pictures_hash(pixels) != written.data_hash:
        raise DataError(f"{written.folder}: its pictures have changed since they were certified")
    return pixels


def _report(found: "Verification", rows: int, images: str) -> str:
    """What was derived a second time, and what was not."""
    from lipcert.certify.curve import shown_bound

    return (
        f"{len(found.checked)} of {rows:,} certificates derived again in numpy from the network's file: all "
        f"agree. Derived: logits (margins differ by at most {found.margin_difference:.1e}, rounding here is "
        f"below {found.tolerance:.1e}), radii, and the constants of all {len(found.layers)} operators by "
        f"other methods than lipcert's ({shown_bound(found.lipschitz, 5)} from pixels to features; between "
        f"these images distances grow at most {found.gain:.4f}-fold). The records are of {rows:,} of the "
        f"{images}. Not derived: how much rounding adds elsewhere in a "
        "ball, which the records take off each margin."
    )


verify.__doc__ = f"{verify.__doc__}\n{EXAMPLES}"
