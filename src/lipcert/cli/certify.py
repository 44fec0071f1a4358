"""lipcert certify: how far each image may change, for a test set or for pictures of one's own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipcert.cli.console import make_folder, print_json, print_table, progress, say
from lipcert.cli.network import (
    Source,
    default_folder,
    find_network,
    open_network,
    proved_file,
    test_images,
)
from lipcert.cli.options import Data, Weights, Zoo
from lipcert.errors import ArgumentError

if TYPE_CHECKING:
    from lipcert.certify.certificates import Certificates
    from lipcert.certify.network import ProvedNetwork
    from lipcert.data.dataset import Dataset
    from lipcert.report.evidence import Evidence

EXAMPLES = """
Examples:

lipcert certify runs/a

lipcert certify runs/a --images cat.png dog.jpg

lipcert certify runs/a --data photos/ --count 500 --out photos-report

lipcert certify --zoo lipconvnet5-cifar10 --images my.png

lipcert certify runs/a --json > accuracy.json
"""


def certify(
    named: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN", help="Folder of a run, or a .safetensors file; more images if --images is given."
        ),
    ] = None,
    data: Data = None,
    images: Annotated[
        list[Path] | None, typer.Option("--images", help="Pictures of your own instead, one or more files.")
    ] = None,
    zoo: Zoo = None,
    weights: Weights = "best",
    count: Annotated[
        int | None, typer.Option("--count", help="Only the first so many test images.", min=1)
    ] = None,
    resize: Annotated[
        bool,
        typer.Option(
            "--resize/--no-resize", help="Cut pictures to a square and resize them to what the network takes."
        ),
    ] = True,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, ...")] = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for records and report.html; else the run's own.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of tables.")
    ] = False,
) -> None:
    """Certify predictions: a table, one record per image, and report.html."""
    places = list(named or [])
    # Pictures may follow --images before the run does: it is the one that is a folder or a file of weights.
    places.sort(key=lambda place: not (place.is_dir() or place.suffix == ".safetensors"))
    run = places.pop(0) if places and (zoo is None or not images) else None
    if places and not images:
        raise ArgumentError(
            f"RUN: expected one run, got {len(places) + 1}; to compare runs use lipcert report"
        )
    if images and (data is not None or count is not None):
        raise ArgumentError(
            "images: --data and --count choose test images; leave them out, or leave out --images"
        )
    if not images and not resize:
        raise ArgumentError("no-resize: is about pictures of your own; name them by --images")
    source = find_network(run, zoo, weights)

    network = open_network(source, device)
    if images:
        from lipcert.cli.own_images import certify_pictures

        certify_pictures(source, network, [*images, *places], resize=resize, as_json=as_json, out=out)
        return
    whole = test_images(source, data, network)
    count = len(whole) if count is None else min(count, len(whole))
    folder = out or default_folder(
        source,
        "certify",
        network,
        data=whole.name,
        count=None if count == len(whole) else count,
        weights=weights,
    )
    make_folder(folder)
    certificates = certify_with_progress(network, whole, count, quiet=as_json)
    evidence = write_everything(folder, source, network, whole, certificates)
    if as_json:
        print_json(as_dict(evidence, folder))
    else:
        show(evidence, folder)


certify.__doc__ = f"{certify.__doc__}\n{EXAMPLES}"


def certify_with_progress(
    network: "ProvedNetwork", images: "Dataset", count: int, *, quiet: bool = False
) -> "Certificates":
    """Certificates of the first `count` images."""
    from lipcert.data import to_float

    with progress(f"certifying {count:,} images of {images.name}", quiet=quiet) as advance:
        return network.certify(to_float(images.images[:count]), progress=advance)


def write_everything(
    folder: Path, source: Source, network: "ProvedNetwork", images: "Dataset", certificates: "Certificates"
) -> "Evidence":
    """Records and report.html; returns what was written, read back."""
    from lipcert.certify.records import Images, write_records
    from lipcert.cli.report import write_page
    from lipcert.report.evidence import read_evidence

    about = Images(images.name, images.fingerprint, len(images), images.labels)
    file = proved_file(source, network, folder)
    write_records(folder, certificates, about, network=network, file=file)
    evidence = read_evidence(folder, source.name)
    write_page([evidence], folder / "report.html")
    return evidence


def show(evidence: "Evidence", folder: Path) -> None:
    """The result for people."""
    from lipcert.certify.curve import RADII, shown, shown_bound
    from lipcert.report.evidence import PROOF

    accuracy = evidence.outcomes.accuracy()
    shares = [accuracy.standard, *(accuracy[radius] for radius in RADII.values())]
    print_table(
        f"{evidence.network} on {evidence.records.data}",
        ["Run", "Images", "Standard", *(f"At {name}" for name in RADII), "Median radius"],
        [
            [
                evidence.name,
                f"{accuracy.count:,}",
                *(f"{share:.2%}" for share in shares),
                shown(evidence.outcomes.median_radius()),
            ]
        ],
        numbers=6,
    )
    say(
        "Right and certified beyond each radius; for the median a wrong prediction counts as 0; "
        f"{PROOF}; Lipschitz bound {shown_bound(evidence.lipschitz)}"
    )
    say(f"Records: {folder / 'certificates.jsonl'}")
    say(f"Report:  {folder / 'report.html'}")


def as_dict(evidence: "Evidence", folder: Path) -> dict[str, Any]:
    """The result for scripts."""
    from lipcert.certify.curve import RADII

    accuracy = evidence.outcomes.accuracy()
    return {
        "run": evidence.name,
        "data": evidence.records.data,
        "images": accuracy.count,
        "standard": accuracy.standard,
        "certified": {name: accuracy[radius] for name, radius in RADII.items()},
        "median_radius": evidence.outcomes.median_radius(),
        "lipschitz": evidence.lipschitz,
        "network_sha256": evidence.records.network_hash,
        "records": str(folder / "certificates.jsonl"),
        "report": str(folder / "report.html"),
    }
