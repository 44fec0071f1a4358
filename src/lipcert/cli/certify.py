"""lipcert certify: certified radii of a test set, or of pictures without labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipcert.cli.completion import network_names
from lipcert.cli.console import make_folder, print_json, print_table, progress, say
from lipcert.cli.options import Count, Data, Device, Weights
from lipcert.cli.places import default_folder, pick_device
from lipcert.errors import ArgumentError, choose
from lipcert.files import CERTIFICATES, REPORT
from lipcert.runs.naming import find_run
from lipcert.runs.run import Run
from lipcert.zoo import proved_networks

if TYPE_CHECKING:
    from lipcert.certify.certificates import Certificates
    from lipcert.data.dataset import Dataset


def certify(
    named: Annotated[
        list[Path],
        typer.Argument(
            metavar="NETWORK",
            help="Folder of a run, a .safetensors file, or a name of `lipcert zoo list`; more images if "
            "--images is given.",
            autocompletion=network_names,
        ),
    ],
    data: Data = None,
    images: Annotated[
        list[Path] | None,
        typer.Option("--images", help="Pictures of your own instead: files, folders or patterns."),
    ] = None,
    weights: Weights = "best",
    count: Count = None,
    resize: Annotated[
        bool,
        typer.Option(
            "--resize/--no-resize", help="Cut pictures to a square and resize them to what the network takes."
        ),
    ] = True,
    device: Device = "auto",
    cluster: Annotated[
        str, typer.Option("--cluster", help="Distribute the images with Ray: ray, or ray://host:port.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for records and report.html; default: the folder of the run."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts instead of tables; one line per picture.")
    ] = False,
) -> None:
    """Certify predictions: a table, one record per image, and report.html.

    Examples:

    lipcert certify runs/a

    lipcert certify runs/a --images cat.png dog.jpg

    lipcert certify runs/a --data photos/ --count 500 --out photos-report

    lipcert certify lipconvnet5-cifar10 --images my.png

    lipcert certify runs/a --images photos/ --out photos-certified

    lipcert certify runs/a --json > accuracy.json

    lipcert certify runs/a --data photos/ --cluster ray://head:10001
    """
    # Pictures may follow --images before the network does.
    first, *places = sorted(named, key=lambda place: not _may_be_network(place))
    if places and not images:
        raise ArgumentError(
            f"NETWORK: expected one network, got {len(named)}; to compare runs use lipcert report"
        )
    if images and (data is not None or count is not None):
        raise ArgumentError(
            "images: --data and --count choose test images; leave them out, or leave out --images"
        )
    if not images and not resize:
        raise ArgumentError("no-resize: applies only to pictures of your own; name them with --images")
    if cluster and count is not None:
        raise ArgumentError("cluster: certifies a whole test set; leave out --count, or --cluster")
    if cluster:
        choose("device (on a cluster)", device, ("auto", "cpu"))
    run = find_run(first, weights)
    if images:
        from lipcert.cli.own_images import certify_pictures

        named = [*images, *places]
        certify_pictures(run, named, resize=resize, as_json=as_json, out=out, device=device, cluster=cluster)
        return
    if cluster:
        certify_on_cluster(run, data, cluster, device=device, weights=weights, out=out, as_json=as_json)
        return

    network = run.network.to(pick_device(device))
    whole = run.test_images(data)
    count = len(whole) if count is None else min(count, len(whole))
    kept = None if count == len(whole) else count
    folder = out or default_folder(run, "certify", data=whole.name, count=kept, weights=weights)
    make_folder(folder)
    with progress(f"certifying {count:,} images of {whole.name}", quiet=as_json) as advance:
        certificates = network.certify(whole.pixels[:count], progress=advance)
    tell(write_everything(folder, run, whole, certificates), folder, as_json=as_json)


def certify_on_cluster(
    run: Run, data: str | None, address: str, *, device: str, weights: str, out: Path | None, as_json: bool
) -> None:
    """The same on a Ray cluster: images go to its workers in parts."""
    from shutil import rmtree

    from lipcert.runs.parts import PARTS, certify_on_ray, find_parts

    images = find_parts(run, data)
    folder = out or default_folder(run, "certify", data=images.name, count=None, weights=weights)
    make_folder(folder)
    count = len(images.reads)
    title = f"certifying {images.count:,} images of {images.name} in {count:,} part{'s' * (count != 1)}"
    with progress(title, quiet=as_json) as advance:
        found = certify_on_ray(run, images, folder, address, device=device, progress=advance)
    certified = write_everything(folder, run, *found)
    rmtree(folder / PARTS)
    tell(certified, folder, as_json=as_json)


def write_everything(folder: Path, run: Run, images: "Dataset", certificates: "Certificates") -> Run:
    """Write records and report.html; returns the run of the folder."""
    from lipcert.certify.records import write_records
    from lipcert.cli.report import write_page
    from lipcert.pictures import about

    write_records(folder, certificates, about(images), network=run.network, file=run.proved_file(folder))
    certified = Run.at(folder, run.name)
    certified = certified.knowing(certified_images=images.images, certified_network=run.network)
    write_page([certified], folder / REPORT)
    return certified


def tell(run: Run, folder: Path, *, as_json: bool) -> None:
    """Print the result, as tables or as JSON."""
    if as_json:
        print_json(as_dict(run, folder))
    else:
        show(run, folder)


def show(run: Run, folder: Path) -> None:
    """Print the result as a table."""
    from lipcert.certify.curve import RADII, shown, shown_bound
    from lipcert.report.words import PROOF, resized

    outcomes = run.records.outcomes
    accuracy = outcomes.accuracy()
    shares = [accuracy.standard, *(accuracy[radius] for radius in RADII.values())]
    print_table(
        f"{run.records.header.name} on {run.records.data}",
        ["Run", "Images", "Standard", *(f"At {name}" for name in RADII), "Median radius"],
        [
            [
                run.name,
                f"{accuracy.count:,}",
                *(f"{share:.2%}" for share in shares),
                shown(outcomes.median_radius()),
            ]
        ],
        numbers=6,
    )
    say(
        "Right and certified beyond each radius; for the median a wrong prediction counts as 0; "
        f"{PROOF}; Lipschitz bound {shown_bound(run.records.header.lipschitz)}"
    )
    if about_originals := resized(run):
        say(about_originals)
    say(f"Records: {folder / CERTIFICATES}")
    say(f"Report:  {folder / REPORT}")


def as_dict(run: Run, folder: Path) -> dict[str, Any]:
    """The result for JSON."""
    from lipcert.certify.curve import RADII

    outcomes = run.records.outcomes
    accuracy = outcomes.accuracy()
    return {
        "run": run.name,
        "data": run.records.data,
        "images": accuracy.count,
        "standard": accuracy.standard,
        "certified": {name: accuracy[radius] for name, radius in RADII.items()},
        "median_radius": outcomes.median_radius(),
        "lipschitz": run.records.header.lipschitz,
        "network_sha256": run.records.header.network_sha256,
        "records": str(folder / CERTIFICATES),
        "report": str(folder / REPORT),
    }


def _may_be_network(place: Path) -> bool:
    """Whether it is a network rather than pictures: a name, a .safetensors file, or a folder with one."""
    holds_one = place.is_dir() and any(place.glob("*.safetensors"))
    return holds_one or place.suffix == ".safetensors" or str(place) in proved_networks()
