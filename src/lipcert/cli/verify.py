"""lipcert verify: derive written certificates again, by a second implementation."""

from pathlib import Path
from typing import Annotated

import typer

from lipcert.cli.console import print_json, say
from lipcert.errors import BrokenCertificateError, CheckpointError, DataError

EXAMPLES = """
Examples:

lipcert verify runs/a

lipcert verify runs/a/certificates.jsonl --sample 64

lipcert verify certificates.jsonl --model model.safetensors --data cifar10
"""


def verify(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="certificates.jsonl, or its folder.")],
    model: Annotated[
        Path | None, typer.Option("--model", help="The saved network; else the one the records name.")
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
    """Derive a sample of written certificates again in numpy, by code that shares no layer with lipcert's.

    The Lipschitz constant that they rest on is proved again, and all labels are held against the data. Exits
    with 1 if something does not agree.
    """
    from lipcert.certify.curve import shown_bound
    from lipcert.certify.records import FILE, read_records
    from lipcert.certify.verify import verify as check
    from lipcert.data import load

    folder = records if records.is_dir() else records.parent
    if not records.is_dir() and records.name != FILE:
        raise CheckpointError(f"{records}: expected a file called {FILE}, or its folder")
    written = read_records(folder)
    source = data or written.data
    size = None if source in ("cifar10", "cifar100") else written.model["image_size"]
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
    found = check(
        folder, model or written.weights_file, images.images, images.labels, sample=sample, seed=seed
    )
    if as_json:
        print_json(
            {
                "checked": list(found.checked),
                "problems": list(found.problems),
                "margin_difference": found.margin_difference,
                "radius_excess": found.radius_excess,
                "gain": found.gain,
                "lipschitz": found.lipschitz,
            }
        )
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise BrokenCertificateError(f"{folder / FILE} does not hold: {found.problems[0]}{more}")
    if not as_json:
        say(
            f"{len(found.checked)} of {len(written.outcomes):,} certificates derived again in numpy: all "
            f"agree. Margins differ by at most {found.margin_difference:.1e}. Between these images distances "
            f"grow at most {found.gain:.4f}-fold; {shown_bound(found.lipschitz, 5)} is proved, once more. "
            f"The records speak of {len(written.outcomes):,} of the {len(images):,} test images, with their "
            "true labels."
        )


verify.__doc__ = f"{verify.__doc__}\n{EXAMPLES}"
