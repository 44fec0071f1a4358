"""Certificates of a test set in parts, by the workers of a Ray cluster.

A part is a task: a worker reads its images and certifies them. Its certificates are written as the records
of a test set of their own, in the folder `parts`, as soon as they arrive: a command that was interrupted goes
on from there. Parts hold whole batches, so the sum of them is what one process computes, to the bit.

Plain tasks are used because Ray Data needs pyarrow and does not keep the order of parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lipcert.certify.certificates import Certificates, join
from lipcert.certify.network import BATCH, ProvedNetwork
from lipcert.certify.network_file import from_bytes
from lipcert.certify.records import Images, read_records, write_records
from lipcert.cluster import RETRIES, connected
from lipcert.data.dataset import Dataset, to_float
from lipcert.data.folder import find_images, read_images
from lipcert.data.sources import is_folder
from lipcert.errors import ArgumentError, CheckpointError, LipcertError
from lipcert.runs.run import Run

PARTS = "parts"
PART = 4 * BATCH
"""Images of a part: less than a minute of one core for LipConvnet-5."""

Progress = Callable[[int, int], None]
Read = Callable[[], Tensor]
"""Returns the images of a part, uint8 (N, C, H, W); called by a worker."""


@dataclass(frozen=True)
class PartedImages:
    """A test set that is not read yet.

    Attributes:
        name: of the dataset, or its folder.
        labels: (N,), the true classes.
        classes: their names.
        reads: one for each part.
        size: images of a part, a multiple of `BATCH`; the last one may have fewer.
    """

    name: str
    labels: Tensor
    classes: tuple[str, ...]
    reads: tuple[Read, ...]
    size: int = PART

    def part(self, number: int, pixels: Tensor) -> Dataset:
        """One part as a test set of its own."""
        return Dataset(self.name, pixels, self.part_labels(number), self.classes, "test")

    def part_labels(self, number: int) -> Tensor:
        """Labels of one part."""
        # A view would take the whole tensor along when it is sent.
        return self.labels[number * self.size : (number + 1) * self.size].clone()

    def whole(self, parts: Sequence[Tensor]) -> Dataset:
        """The test set, from the pixels of all parts."""
        return Dataset(self.name, torch.cat(list(parts)), self.labels, self.classes, "test")


def find_parts(run: Run, data: str | None, size: int = PART) -> PartedImages:
    """The test images of `data`, or of what the run was trained on, in parts.

    Files of a folder are read by the workers, so every machine must see it under the same path. Datasets
    with a name are read here and sent.

    Raises:
        ArgumentError: neither `data` nor the run names images, or the network does not take them.
        DataError: they are missing or damaged.
    """
    name = run.data_name(data)
    if not is_folder(name):
        images = run.test_images(name)
        starts = range(0, len(images), size)
        reads = [partial(torch.tensor, images.images[at : at + size].numpy()) for at in starts]
        return PartedImages(name, images.labels, images.classes, tuple(reads), size)
    found, side = find_images(name, split="test"), run.network.input_shape[-1]
    run.refuse_other_images(name, (3, side, side), len(found.classes))
    files = [file.resolve() for file in found.files]
    reads = [partial(read_images, files[at : at + size], side) for at in range(0, len(files), size)]
    return PartedImages(name, found.labels, found.classes, tuple(reads), size)


def certify_on_ray(
    run: Run,
    images: PartedImages,
    folder: Path,
    address: str = "ray",
    *,
    device: str = "auto",
    progress: Progress = lambda done, total: None,
) -> tuple[Dataset, Certificates]:
    """Certify a test set on a cluster, as many parts at a time as it has CPUs, or GPUs where there are any.

    A part whose worker is lost is started again elsewhere. Parts in `folder` that an earlier call left are
    reused if network and images are the same.

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
    pixels: dict[int, Tensor] = {}
    certificates: dict[int, Certificates] = {}
    with connected(address) as ray:
        waiting = _start(ray, file, images, [_known(place, run.network) for place in places], device)
        try:
            while waiting:
                (finished,), _ = ray.wait(list(waiting), num_returns=1)
                number = waiting.pop(finished)
                pixels[number], found = _result(ray, finished, f"part {number + 1} of {len(places)}")
                if found is None:
                    found = read_records(places[number]).certificates
                else:
                    part = images.part(number, pixels[number])
                    about = Images(part.name, part.fingerprint, len(part), part.labels)
                    write_records(places[number], found, about, network=run.network, file=file)
                certificates[number] = found
                progress(sum(map(len, pixels.values())), len(images.labels))
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"interrupted; {len(certificates)} of {len(places)} parts are in {folder / PARTS}, and the "
                "same command goes on from them"
            ) from error
    order = range(len(places))
    whole = images.whole([pixels[number] for number in order])
    run.refuse_other_draw(whole)
    return whole, join([certificates[number] for number in order])


def _known(place: Path, network: ProvedNetwork) -> str | None:
    """SHA-256 of the images that this network has already certified in `place`, None if there are none."""
    try:
        records = read_records(place)
    except CheckpointError:
        return None
    is_whole = len(records.rows) == records.header.images
    return records.header.data_sha256 if is_whole and records.header.network_sha256 == network.hash else None


def _start(
    ray: ModuleType, file: Path, images: PartedImages, known: Sequence[str | None], device: str
) -> dict[Any, int]:
    """All tasks, each with the number of its part."""
    gpus = 1.0 if device != "cpu" and ray.cluster_resources().get("GPU", 0) else 0.0
    # Errors of lipcert are returned; only a lost worker is worth another attempt.
    remote = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(_certify_part)
    content = ray.put(file.read_bytes())
    return {
        remote.remote(content, read, images.part_labels(number), known[number], images.classes): number
        for number, read in enumerate(images.reads)
    }


def _certify_part(
    content: bytes, read: Read, labels: Tensor, known: str | None, classes: tuple[str, ...]
) -> tuple[Tensor, Certificates | None] | LipcertError:
    """In the worker: pixels and certificates, or None for certificates that are `known` already."""
    try:
        part = Dataset("part", read(), labels, classes, "test")
        if part.fingerprint == known:
            return part.images, None
        return part.images, _network(content).certify(to_float(part.images), batch_size=BATCH)
    except LipcertError as error:
        return error


@lru_cache(maxsize=1)
def _network(content: bytes) -> ProvedNetwork:
    """Read once per worker, on its GPU if it was given one."""
    network = from_bytes(content, Path("the network of this task"))
    return network.to("cuda" if torch.cuda.is_available() else "cpu")


def _result(ray: ModuleType, finished: Any, name: str) -> tuple[Tensor, Certificates | None]:
    try:
        found = ray.get(finished)
    except ray.exceptions.RayError as error:
        raise ArgumentError(
            f"cluster: {name} broke, or lost its worker {RETRIES} times ({error}); fix that, and run the "
            "same command again to go on"
        ) from error
    if isinstance(found, LipcertError):
        raise found
    pixels, certificates = found
    return pixels, certificates
