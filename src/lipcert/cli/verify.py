"""lipcert verify: derive written certificates again, by a second implementation."""

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipcert import zoo
from lipcert.cli.completion import network_names
from lipcert.cli.console import print_json, progress, say, silence_pillow
from lipcert.cli.options import Json
from lipcert.errors import ArgumentError, BrokenCertificateError, CheckpointError, DataError
from lipcert.files import CERTIFICATES
from lipcert.runs.naming import find_run
from lipcert.runs.run import load_test_images

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lipcert.certify.record_lines import Row
    from lipcert.certify.records import Records
    from lipcert.certify.verify import Verification
    from lipcert.data.dataset import Dataset


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
        typer.Option(
            "--seed", help="Seed of the sample; default: random, so that no sender can foresee it.", min=0
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch CIFAR if the records are of it and it is not here.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Derive a sample of written certificates again in numpy, from the file of the proved network alone.

    A second implementation, which shares no code with the one that certifies, takes nothing that file or
    records state for granted: all Lipschitz constants are derived by other methods, and all labels are held
    against the data. Networks that ship have their certificates with them. Exits with 1 if something does
    not hold.

    Examples:

    lipcert verify runs/a

    lipcert verify lipconvnet5-cifar10

    lipcert verify runs/a/certificates.jsonl --sample 64

    lipcert verify certificates.jsonl --network net.proved.safetensors --data cifar10
    """
    from lipcert.certify.independent import read_network
    from lipcert.certify.network import numbered_classes
    from lipcert.certify.records import read_records
    from lipcert.certify.verify import verify as check

    place = _find(records)
    written = read_records(place)
    file = written.network_file if network is None else find_run(network).file
    if network is None and not file.is_file():
        raise CheckpointError(f"{file}, which {place} is about, is missing; name the network with --network")
    proved = read_network(file)
    shape = proved.input_shape
    pixels: Tensor | Callable[[int], Tensor]
    if written.has_own_pictures and data is None:
        pixels, labels, about = _pictures(written, shape), None, "pictures"
    else:
        source = data or written.data
        _fetch(source, download=download, quiet=as_json)
        if len(shape) != 3:
            raise ArgumentError(
                f"network: {file} takes inputs of shape {shape}, but images have channels, rows and columns"
            )
        images = load_test_images(source, shape[-1])
        if images.fingerprint != written.header.data_sha256:
            raise DataError(
                f"data: {source} holds other images than those that {place} was written for; "
                "name those with --data"
            )
        # A network that was proved from weights alone has numbers for names, which claim nothing.
        if written.header.classes not in (images.classes, numbered_classes(images.num_classes)):
            raise BrokenCertificateError(
                f"{place} does not hold: it names the classes otherwise than {source} does"
            )
        states_originals = any(row.radius_original is not None for row in written.rows)
        if states_originals:
            _check_originals(written, images)
        # Records without originals are about images that were rounded to 8 bits.
        pixels = images.pixels if states_originals else images.images
        labels, about = images.labels, "test images, with their true labels"
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
        say(_report(found, written, f"{written.header.images:,} {about}"))


def _find(named: Path) -> Path:
    """The file of records for an argument of the command.

    Raises:
        CheckpointError: there is none.
    """
    if named.is_dir():
        return named / CERTIFICATES
    if named.name == CERTIFICATES or (named.suffix == ".jsonl" and named.is_file()):
        return named
    if not named.exists() and (shipped := zoo.certificates().get(str(named))):
        return shipped
    find_run(named)  # raises, with a suggestion, if there is no such network
    if named.is_file() and (named.parent / CERTIFICATES).is_file():
        remedy = f"run `lipcert verify {named.parent}`"
    else:
        remedy = f"`lipcert certify {named} --out FOLDER` writes one"
    raise CheckpointError(f"{named}: expected the folder of records, with {CERTIFICATES} in it; {remedy}")


def _fetch(name: str, *, download: bool, quiet: bool) -> None:
    """Download a public dataset if `download` is set and it is not here.

    Raises:
        DataError: it is not here, and `download` is not set.
    """
    from lipcert.data import fetch
    from lipcert.data.archives import ARCHIVES, data_root

    if name not in ARCHIVES:
        return
    if download:
        with progress(f"downloading {name}, unless it is here", quiet=quiet) as advance:
            fetch.download(name, progress=advance)
    elif not (place := data_root() / ARCHIVES[name].folder).is_dir():
        raise DataError(f"{name}: {place} is missing; add --download to fetch it, or {ARCHIVES[name].remedy}")


def _pictures(written: "Records", shape: tuple[int, ...]) -> "Callable[[int], Tensor]":
    """Check every row against its picture, which is beside the records or at its original path.

    Returns:
        a reader of the picture at a position, so that those of the sample alone are in memory.

    Raises:
        ArgumentError: the network does not take pictures.
        DataError: a picture is missing or has changed.
        BrokenCertificateError: a row states a wrong size, or a radius that does not follow.
    """
    from lipcert.pictures import Picture, check_shape, read_picture

    silence_pillow()
    check_shape(shape)
    rows = {row.index: row.picture for row in written.rows if row.picture is not None}

    def read(index: int) -> Picture:
        file = Path(rows[index].file)
        place = next((p for p in (file, written.folder / file) if os.path.isfile(p)), file)
        picture = read_picture(place, shape)
        if picture.sha256 != rows[index].sha256:
            raise DataError(f"{place}: has changed since it was certified")
        return picture

    for row in written.rows:
        _check_original(written.folder, row, read(row.index).size, shape[-1])
    return lambda index: read(index).pixels


def _check_originals(written: "Records", images: "Dataset") -> None:
    """Check what every row states about its image before it was resized; raises as `_check_original`."""
    side = images.image_shape[-1]
    sizes = images.sizes or ((side, side),) * len(images)
    for row in written.rows:
        if not 0 <= row.index < len(sizes):
            raise BrokenCertificateError(
                f"{written.folder} does not hold: {images.name} has no image {row.index}"
            )
        _check_original(written.folder, row, sizes[row.index], side)


def _check_original(folder: Path, row: "Row", size: tuple[int, int], side: int) -> None:
    """Check size and radius of an original, `size` being its true width and height.

    Raises:
        BrokenCertificateError: the row states another size, or a radius that does not follow.
    """
    from lipcert.certify.independent.resized import stretch

    claims = f"{folder} does not hold: image {row.index}:"
    true = None if size == (side, side) else f"{size[0]}x{size[1]}"
    if row.resized_from != true:
        raise BrokenCertificateError(f"{claims} written resized_from {row.resized_from}, but it is {true}")
    follows = row.radius / stretch(min(size), side)
    if row.radius_original is not None and not row.radius_original <= follows * (1 + 1e-5):
        raise BrokenCertificateError(
            f"{claims} written radius in the original {row.radius_original:.9g}, but at most "
            f"{follows:.9g} follows"
        )


def _report(found: "Verification", written: "Records", images: str) -> str:
    """What was derived a second time, and what was not."""
    from lipcert.certify.curve import RADII, shown_bound

    rows, claims, compared = len(written.rows), "", "files, sizes and radii in the originals"
    if not written.has_own_pictures:
        compared = "labels, sizes and radii in the originals" if written.resized else "labels"
        accuracy = written.outcomes.accuracy()
        shares = ", ".join(f"{accuracy[radius]:.2%} at {name}" for name, radius in RADII.items())
        claims = f"; they claim {accuracy.standard:.2%} right, and right and certified {shares}"
    rest = rows - len(found.checked)
    others = f"\n- the other {rest:,} certificates: only their {compared} were compared" if rest else ""
    return (
        f"{len(found.checked)} of {rows:,} certificates derived again in numpy from the network's file: all "
        f"agree.\nThe records are of {rows:,} of the {images}{claims}.\n"
        "Derived:\n"
        f"- logits; margins differ by at most {found.margin_difference:.1e}, rounding here is below "
        f"{found.tolerance:.1e}\n"
        f"- constants of all {len(found.layers)} operators, by other methods than lipcert's: at most "
        f"{shown_bound(found.lipschitz, 5)} from pixels to features (the largest ratio of distances between "
        f"these images is {found.gain:.4f})\n"
        "- radii, from the two\n"
        f"Not derived:{others}\n"
        "- the rounding error at other points of a ball: the one in the records is subtracted\n"
        "- images and records themselves: lipcert's own code reads them"
    )
