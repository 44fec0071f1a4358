"""A trained network and its files; each file is read on first use and then cached."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcert.errors import ArgumentError, CheckpointError, DataError, LipcertError
from lipcert.files import BEST, CERTIFICATES, CONFIG, LAST, PROVED, SUMMARY, home_path
from lipcert.runs.config import TrainConfig
from lipcert.schema import read_toml

if TYPE_CHECKING:
    from torch import Tensor

    from lipcert.certify.network import ProvedNetwork
    from lipcert.certify.records import Records
    from lipcert.data.dataset import Dataset
    from lipcert.runs.audit import Audit
    from lipcert.runs.summary import RunSummary

WEIGHTS = {"last": LAST, "best": BEST}


class State(StrEnum):
    """Whether a run is new, begun or done."""

    NEW = "new"
    BEGUN = "begun"
    DONE = "done"


@dataclass(frozen=True)
class Run:
    """The folder of a run, a file of a network, or a network that ships; made by `find_run`.

    Attributes:
        name: to display.
        folder: of its files; None for a file and for a network that ships.
        weights: file of its trainable weights, if there is one.
        proved: file of the proved network, if there is one.
        card: what is known about a network that ships.
    """

    name: str
    folder: Path | None = None
    weights: Path | None = None
    proved: Path | None = None
    card: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def at(cls, folder: Path, name: str | None = None, *, weights: str = "best") -> "Run":
        """The run in a folder, which may be unfinished or empty."""
        saved, proved = folder / WEIGHTS[weights], folder / PROVED
        return cls(
            folder.resolve().name if name is None else name,
            folder,
            saved if saved.is_file() else None,
            proved if weights == "best" and proved.is_file() else None,
        )

    def knowing(self, **content: Any) -> "Run":
        """The same run with some properties already known, so that their files are not read."""
        same = replace(self)
        vars(same).update(content)
        return same

    @property
    def state(self) -> State:
        """Its state, from the files that exist."""
        folder = self.root
        if not (folder / CONFIG).exists():
            return State.NEW
        return State.DONE if (folder / SUMMARY).exists() else State.BEGUN

    @property
    def file(self) -> Path:
        """The proved network if there is one, else the weights.

        Raises:
            CheckpointError: there is neither.
        """
        file = self.proved or self.weights
        if file is None:
            raise CheckpointError(f"{self.folder}: holds no network yet")
        return file

    @cached_property
    def home(self) -> Path | None:
        """The folder with the options of its training: its own folder, or the parent."""
        places = () if self.folder is None else (self.folder, self.folder.resolve().parent)
        return next((place for place in places if (place / CONFIG).is_file()), None)

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """Options of the training as they are written, also those of another version; {} if unknown."""
        if self.card:
            known = {name: self.environment.get(name) for name in ("seed", "held_out")}
            return {"data": self.card["data"]} | {n: value for n, value in known.items() if value is not None}
        return {} if self.home is None else read_toml(self.home / CONFIG)

    @cached_property
    def config(self) -> TrainConfig:
        """The same, checked.

        Raises:
            ArgumentError: they are not those of this version.
        """
        try:
            return TrainConfig.from_dict(self.options)
        except ArgumentError as error:
            raise ArgumentError(f"{self.folder or self.name}: {error}") from error

    @property
    def data(self) -> str | None:
        """Dataset or folder it was trained on, None if unknown."""
        data = self.options.get("data")
        return None if data is None else str(data)

    @cached_property
    def summary(self) -> "RunSummary":
        """The summary of a finished run.

        Raises:
            CheckpointError: the run has not finished, or the file is damaged.
        """
        from lipcert.runs.summary import RunSummary

        return RunSummary.read(self.root)

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions and machine of the training, and what it started from; {} if unknown."""
        from lipcert.runs.metrics import read_environment

        if self.card:
            return dict(self.card.get("training", {}))
        return {} if self.home is None else read_environment(self.home)

    @cached_property
    def metrics(self) -> Sequence[Mapping[str, Any]]:
        """The evaluations on held-out images, in order."""
        from lipcert.runs.metrics import read_metrics

        records = [] if self.home is None else read_metrics(self.home)
        return [record for record in records if record["kind"] == "epoch"]

    @cached_property
    def records(self) -> "Records":
        """Its certificates.

        Raises:
            CheckpointError: there are none, or they are damaged.
        """
        from lipcert.certify.records import read_records

        return read_records(self.root)

    @cached_property
    def audit(self) -> "Audit | None":
        """The audit of its certificates; None if this network was not audited."""
        from lipcert.runs.audit import read_audit

        found = read_audit(self.root)
        # Results are kept without their records, but never together with the audit of another network.
        is_other = (self.root / CERTIFICATES).is_file() and not (
            found is None or found.is_of(self.records.header.network_sha256)
        )
        return None if is_other else found

    @cached_property
    def network(self) -> "ProvedNetwork":
        """The proved network; weights alone are proved here, which takes seconds.

        Raises:
            CheckpointError: its file is missing or damaged.
        """
        from lipcert.certify.network_file import is_proved_file, read_network
        from lipcert.certify.prove import prove
        from lipcert.models.storage import load
        from lipcert.runs.class_names import class_names

        if is_proved_file(self.file):
            return read_network(self.file)
        model = load(self.file)
        return prove(model, classes=class_names(self, model.config.num_classes))

    def proved_file(self, folder: Path) -> Path:
        """The file of the proved network; written to `folder` if there is none yet."""
        if self.proved is not None:
            return self.proved
        file = folder / f"{self.file.stem}.proved.safetensors"
        self.network.save(file)
        return file

    def test_images(self, data: str | None = None) -> "Dataset":
        """The test images of `data`, or of what it was trained on, at the size that the network takes.

        Raises:
            ArgumentError: neither `data` nor the run names images, or the network does not take them.
            DataError: they are missing or damaged.
        """
        name = self.data_name(data)
        images = load_test_images(name, self.network.input_shape[-1])
        self.refuse_other_draw(images)
        self.refuse_other_images(name, images.image_shape, images.num_classes)
        return images

    def data_name(self, data: str | None) -> str:
        """`data`, or by default what it was trained on.

        Raises:
            ArgumentError: neither is known.
        """
        name = data or self.data
        if name is None:
            raise ArgumentError(
                f"data: {self.file} does not say which images it is for; pass --data digits, cifar10, "
                "cifar100 or a folder"
            )
        return name

    def refuse_other_images(self, name: str, image_shape: tuple[int, ...], num_classes: int) -> None:
        """Raise an ArgumentError if the network takes another image shape or number of classes."""
        shape, classes = self.network.input_shape, self.network.classes
        if image_shape != shape:
            raise ArgumentError(
                f"data: {name} has images of shape {image_shape}, but {self.name} takes {shape}; name "
                "the images it was made for"
            )
        if num_classes != len(classes):
            raise ArgumentError(
                f"data: {name} has {num_classes} classes, but {self.name} tells {len(classes)} apart; "
                "name the images it was made for"
            )

    @cached_property
    def certified_network(self) -> "ProvedNetwork | None":
        """The proved network that the records are of; None if its file is not here.

        Raises:
            CheckpointError: the file that they name holds another network, or is damaged.
        """
        from lipcert.certify.network_file import read_network

        file = self.records.network_file
        if not file.is_file():
            return None
        network = read_network(file)
        if network.hash != self.records.header.network_sha256:
            raise CheckpointError(
                f"{self.folder}: {file.name} is another network than the certified one; run `lipcert certify "
                f"{self.folder}` again"
            )
        return network

    @cached_property
    def certified_images(self) -> "Tensor | None":
        """The images of the records, uint8 (M, C, H, W); None if they are not on this machine.

        Raises:
            CheckpointError: the records point beyond the images.
        """
        try:
            found = load_test_images(self.records.data, self.records.header.input_shape[-1])
        except LipcertError:
            return None
        if found.fingerprint != self.records.header.data_sha256:
            return None
        if (last := int(self.records.outcomes.index.max())) >= len(found):
            raise CheckpointError(
                f"{self.root / CERTIFICATES} is damaged ({found.name} has no image {last}); run `lipcert "
                "certify` again"
            )
        return found.images

    @property
    def epochs_before(self) -> float | None:
        """Epochs of the network that it started from: 0 if its weights were random, None if unknown."""
        start = self.environment.get("started_from")
        if start is None:
            return 0.0 if self.options.get("start_from") is None else None
        return None if start["epochs"] is None else float(start["epochs"])

    @property
    def all_epochs(self) -> float | None:
        """Its own epochs and those of the network it started from; None if they are not recorded."""
        before = self.epochs_before
        if self.card:
            own = float(self.environment["epochs"])
        elif self.folder is not None and (self.folder / SUMMARY).is_file():
            own = self.summary.epochs
        else:
            return None
        return None if before is None else own + before

    @property
    def hours(self) -> float:
        """Hours of training and evaluation: its epochs at the pace of the median one.

        On a shared machine a run may pause for a while, which should not count.
        """
        marks = [(0.0, 0.0), *((record["epoch"], record["elapsed"]) for record in self.metrics)]
        parts = [(end - start, after - before) for (start, before), (end, after) in pairwise(marks)]
        longest = max((epochs for epochs, _ in parts), default=0.0)
        # A run may end soon after an evaluation; the rest is then an evaluation above all.
        paces = [seconds / epochs for epochs, seconds in parts if epochs > longest / 2]
        seconds = self.summary.epochs * statistics.median(paces) if paces else 0.0
        return (seconds if seconds > 0 else self.summary.elapsed) / 3600

    @property
    def root(self) -> Path:
        """Its folder.

        Raises:
            CheckpointError: it has none: it is a file, or a network that ships.
        """
        if self.folder is None:
            raise CheckpointError(f"{self.name}: is no folder of a run")
        return self.folder

    def refuse_other_draw(self, images: "Dataset") -> None:
        """Raise a DataError if training images may be among these.

        Test images of a plain folder are drawn from its files: if the files change, so does the draw.
        """
        from lipcert.data.folder import has_splits

        place = home_path(images.name)
        if self.folder is None or not place.is_dir() or has_splits(place):
            return
        if not (self.folder / CERTIFICATES).is_file():
            return
        same = home_path(self.records.data).resolve() == place.resolve()
        if same and self.records.header.data_sha256 != images.fingerprint:
            raise DataError(
                f"data: {images.name} holds other files than when {self.name} was trained, so that some of "
                "its training images would be tested; put the files back, or make train and test subfolders"
            )


def load_test_images(name: str, side: int) -> "Dataset":
    """The test images of a dataset or folder, resized to `side` where they have no size of their own."""
    from lipcert.data.archives import ARCHIVES
    from lipcert.data.sources import load

    return load(name, split="test", image_size=None if name in ARCHIVES else side)
