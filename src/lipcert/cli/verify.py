"""lipcert verify: derive written certificates again, by a second implementation."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipcert import zoo
from lipcert.cli.completion import network_names
from lipcert.cli.console import print_json, progress, say
from lipcert.errors import BrokenCertificateError, CheckpointError, DataError
from lipcert.files import CERTIFICATES
from lipcert.runs.naming import find_run
from lipcert.runs.run import load_test_images

if TYPE_CHECKING:
    from torch import Tensor

    from lipcert.certify.records import Records
    from lipcert.certify.verify import Verification

MOST = 10**7
"""Pictures of one's own in one set of records."""
EXAMPLES = """
Examples:

lipcert verify runs/a

lipcert verify lipconvnet5-cifar10

lipcert verify runs/a/certificates.jsonl --sample 64

lipcert verify certificates.jsonl --network net.proved.safetensors --data cifar10
"""


def verify(
    records: Annotated[
        Path,
        typer.Argument(
            metavar="RECORDS",
            help="certificates.jsonl, its folder, or a name of `lipcert zoo list`.",
            autocompletion=network_names,
        ),
    ],
    network: Annotated[
        Path | None,
        typer.Option(
            "--network",
            help="The proved network, named as for certify; default: the one in the records.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="The images; default: those in the records.")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", help="How many certificates to derive again.", min=1)
    ] = 16,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Seed of the sample; default: random, so that no sender can foresee it."),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch CIFAR if the records are of it and it is not here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Derive a sample of written certificates again in numpy, from the file of the proved network alone.

    A second implementation, which shares no code with the one that certifies, takes nothing that file or
    records state for granted: all Lipschitz constants are derived by other methods, and all labels are held
    against the data. Networks that ship have their certificates with them. Exits with 1 if something does
    not hold.
    """
    from lipcert.certify.independent import read_network
    from lipcert.certify.records import read_records
    from lipcert.certify.verify import verify as check

    place = _find(records)
    written = read_records(place)
    file = written.network_file if network is None else find_run(network).file
    proved = read_network(file)
    shape = proved.input_shape
    if written.header.data is None and data is None:
        pixels, labels, about = _pictures(written, shape), None, "pictures"
    else:
        source = data or written.data
        if download:
            _download(source, quiet=as_json)
        images = load_test_images(source, shape[-1])
        if images.fingerprint != written.data_hash:
            raise DataError(
                f"data: {source} holds other images than those that {place} was written for; "
                "name those with --data"
            )
        if images.classes != written.classes:
            raise BrokenCertificateError(
                f"{place} does not hold: it names the classes otherwise than {source} does"
            )
        pixels, labels, about = images.images, images.labels, "test images, with their true labels"
    found = check(written, proved, pixels, labels, sample=sample, seed=seed)
    if as_json:
        content = asdict(found)
        # JSON has no infinity, which is what an infinite radius exceeds all others by.
        finite = math.isfinite(found.radius_excess)
        print_json(content | {"radius_excess": found.radius_excess if finite else None})
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise BrokenCertificateError(f"{place} does not hold: {found.problems[0]}{more}")
    if not as_json:
        say(_report(found, written, f"{len(pixels):,} {about}"))


def _find(named: Path) -> Path:
    """The file of records that is meant.

    Raises:
        CheckpointError: there is none.
    """
    if named.is_dir():
        return named / CERTIFICATES
    if named.name == CERTIFICATES:
        return named
    if not named.exists() and (shipped := zoo.certificates().get(str(named))):
        return shipped
    run = find_run(named)  # or what is near to a name that does not exist
    raise CheckpointError(
        f"{named}: expected a file called {CERTIFICATES}, its folder, or a network that ships with "
        f"certificates, got {run.file.name}; to check records with it use --network"
    )


def _download(name: str, *, quiet: bool) -> None:
    """Fetch a public dataset, unless it is here."""
    from lipcert.data.archives import ARCHIVES
    from lipcert.data.fetch import download

    if name in ARCHIVES:
        with progress(f"downloading {name}, unless it is here", quiet=quiet) as advance:
            download(name, progress=advance)


def _pictures(written: "Records", shape: tuple[int, ...]) -> "Tensor":
    """The pictures that records name, beside the records or where they were named from; zeros elsewhere."""
    import torch

    from lipcert.certify.independent.resized import stretch
    from lipcert.pictures import read_picture

    count, outcomes = written.header.images, written.outcomes
    places = outcomes.index.tolist()
    if count > MOST or not all(0 <= place < count for place in places):
        raise DataError(f"{written.folder}: its records point beyond the {count} pictures that they are of")
    if len(written.pictures) < len(outcomes):
        raise DataError(f"{written.folder}: its records do not name all of their pictures")
    pixels = torch.zeros(count, *shape, dtype=torch.float64)
    rows = zip(places, outcomes.radius.tolist(), written.pictures, strict=True)
    for index, radius, row in rows:
        file = Path(row.file)
        place = next((p for p in (file, written.folder / file) if p.is_file()), file)
        picture = read_picture(place, shape)
        if picture.sha256 != row.sha256:
            raise DataError(f"{place}: has changed since it was certified")
        pixels[index] = picture.pixels
        follows = radius / stretch(min(picture.size), shape[-1])
        if not row.radius_original <= follows * (1 + 1e-5):
            raise BrokenCertificateError(
                f"{written.folder} does not hold: image {index}: written radius in the original "
                f"{row.radius_original:.9g}, but at most {follows:.9g} follows"
            )
    return pixels


def _report(found: "Verification", written: "Records", images: str) -> str:
    """What was derived a second time, and what was not."""
    from lipcert.certify.curve import RADII, shown_bound

    rows, claims = len(written.rows), ""
    if written.header.data is not None:
        accuracy = written.outcomes.accuracy()
        shares = ", ".join(f"{accuracy[radius]:.2%} at {name}" for name, radius in RADII.items())
        claims = f"; they claim {accuracy.standard:.2%} right, and right and certified {shares}"
    rest = rows - len(found.checked)
    others = f"the other {rest:,} certificates, of which labels alone were compared; " if rest else ""
    return (
        f"{len(found.checked)} of {rows:,} certificates derived again in numpy from the network's file: all "
        f"agree. Derived: logits (margins differ by at most {found.margin_difference:.1e}, rounding here is "
        f"below {found.tolerance:.1e}), radii, and the constants of all {len(found.layers)} operators by "
        f"other methods than lipcert's ({shown_bound(found.lipschitz, 5)} from pixels to features; between "
        f"these images distances grow at most {found.gain:.4f}-fold). The records are of {rows:,} of the "
        f"{images}{claims}. Not derived: {others}how much rounding adds elsewhere in a ball, which the "
        "records take off each margin. Images and records were read by lipcert's own code."
    )


verify.__doc__ = f"{verify.__doc__}\n{EXAMPLES}"
