"""Certificates of a test set in parts, by the workers of a Ray cluster.

A worker reads the images of a part and certifies them. Its certificates are written as the records of a test
set of their own, in the folder `parts`, as soon as they arrive: a command that was interrupted goes on from
there. Parts hold whole batches, so the sum of them is what one process computes, to the bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from lipcert.certify.certificates import Certificates, join
from lipcert.certify.network import BATCH, ProvedNetwork
from lipcert.certify.records import read_records, write_records
from lipcert.data.dataset import Dataset
from lipcert.data.folder import find_images, read_images
from lipcert.data.sources import is_folder
from lipcert.errors import CheckpointError
from lipcert.pictures import about
from lipcert.runs.run import Run
from lipcert.runs.workers import work_on_ray

PARTS = "parts"
PART = 4 * BATCH
"""Images of a part: less than a minute of one core for LipConvnet-5."""

Progress = Callable[[int, int], None]
Read = Callable[[], Dataset]
"""Returns the images of a part; called by a worker."""


@dataclass(frozen=True)
class PartedImages:
    """A test set that is not read yet.

    Attributes:
        name: of the dataset, or its folder.
        count: of its images.
        reads: one for each part. Each but the last has the same number of images, a multiple of `BATCH`.
    """

    name: str
    count: int
    reads: tuple[Read, ...]


def find_parts(run: Run, data: str | None, size: int = PART) -> PartedImages:
    """The test images of `data`, or of what the run was trained on, in parts.

    Files of a folder are read by the workers, so every machine must see it under the same path. Datasets
    with a name are read here and sent.

    Raises:
        ArgumentError: neither `data` nor the run names images, or the network does not take them.
        DataError: they are missing or damaged.
    """
    name = run.data_name(data)
    reads: list[Read]
    if not is_folder(name):
        images = run.test_images(name)
        order = range(len(images))
        reads = [partial(_itself, images.subset(order[at : at + size])) for at in order[::size]]
        return PartedImages(name, len(images), tuple(reads))
    found, side = find_images(name, split="test"), run.network.input_shape[-1]
    run.refuse_other_images(name, (3, side, side), len(found.classes))
    found = replace(found, files=tuple(file.resolve() for file in found.files))
    starts = range(0, len(found), size)
    reads = [partial(read_images, found.part(at, at + size), name, side, "test") for at in starts]
    return PartedImages(name, len(found), tuple(reads))


def certify_on_ray(
    run: Run,
    images: PartedImages,
    folder: Path,
    address: str = "ray",
    *,
    device: str = "auto",
    progress: Progress = lambda done, total: None,
) -> tuple[Dataset, Certificates]:
    """Certify a test set on a cluster; returns it as well, without its exact pixels.

    Parts in `folder` that an earlier call left are reused if network and images are the same.

    Args:
        run: of the network.
        images: that `find_parts` found.
        folder: where parts are written.
        address: "ray" starts a cluster on this machine, "ray://host:port" connects to a running one.
        device: "auto", or "cpu" to leave GPUs alone.
        progress: called with the number of images done and the total.

    Raises:
        ArgumentError: the cluster cannot be reached, or loses the worker of one part again and again.
        DataError: an image cannot be read.
    """
    file = run.proved_file(folder)
    places = [folder / PARTS / f"{number:06}" for number in range(len(images.reads))]
    tasks = [(read, _known(place, run.network)) for read, place in zip(images.reads, places, strict=True)]
    parts: dict[int, Dataset] = {}
    certificates: dict[int, Certificates] = {}
    try:
        for number, (part, found) in work_on_ray(_certify_part, file, tasks, address, device=device):
            if found is None:
                found = read_records(places[number]).certificates
            else:
                write_records(places[number], found, about(part), network=run.network, file=file)
            parts[number], certificates[number] = part, found
            progress(sum(map(len, parts.values())), images.count)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; {len(certificates)} of {len(places)} parts are in {folder / PARTS}, and the "
            "same command goes on from them"
        ) from error
    order = range(len(places))
    whole = _joined(images.name, [parts[number] for number in order])
    run.refuse_other_draw(whole)
    return whole, join([certificates[number] for number in order])


def _itself(images: Dataset) -> Dataset:
    return images


def _known(place: Path, network: ProvedNetwork) -> str | None:
    """SHA-256 of the images that this network has already certified in `place`, None if there are none."""
    try:
        records = read_records(place)
    except CheckpointError:
        return None
    is_whole = len(records.rows) == records.header.images
    return records.header.data_sha256 if is_whole and records.header.network_sha256 == network.hash else None


def _certify_part(
    network: ProvedNetwork, task: tuple[Read, str | None]
) -> tuple[Dataset, Certificates | None]:
    """In the worker: images and certificates, or None for certificates that are known already."""
    read, known = task
    part = read()
    found = None if part.fingerprint == known else network.certify(part.pixels, batch_size=BATCH)
    return replace(part, exact=None), found


def _joined(name: str, parts: Sequence[Dataset]) -> Dataset:
    """The test set of these parts. A part without sizes has images of the network's own size."""
    sizes = [part.sizes or (part.image_shape[:0:-1],) * len(part) for part in parts]
    return Dataset(
        name,
        torch.cat([part.images for part in parts]),
        torch.cat([part.labels for part in parts]),
        parts[0].classes,
        "test",
        sizes=tuple(size for of_part in sizes for size in of_part) if any(p.sizes for p in parts) else None,
    )
