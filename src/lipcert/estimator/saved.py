"""A fitted `RobustClassifier` as a folder: the files of a run, and what else it needs in JSON. No pickle."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lipcert.certify.network_file import read_network
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.estimator.samples import InputMap, plain
from lipcert.files import BEST, PROVED, write_or_explain
from lipcert.models.storage import load, save
from lipcert.schema import read_json

if TYPE_CHECKING:
    from lipcert.estimator.classifier import RobustClassifier

CLASSIFIER = "classifier.json"
FORMAT = "lipcert classifier 1"
KINDS = {"b": bool, "i": int, "u": int, "f": float, "U": str}
"""Kinds of labels that JSON holds exactly, by numpy's letter."""


@dataclass(frozen=True)
class Saved:
    """The content of classifier.json; labels have the numpy type `label_type`."""

    format: str
    network_sha256: str
    parameters: dict[str, Any]
    labels: tuple[Any, ...]
    label_type: str
    sample_shape: tuple[int, ...]
    value_range: tuple[float, float] | None = None
    image_size: int | None = None
    channels: int | None = None
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}, got {self.format!r}")
        if (
            not 1 <= len(self.sample_shape) <= 3
            or not 1 <= min(self.sample_shape) <= max(self.sample_shape) <= 1e6
        ):
            raise ValueError(f"sample_shape: expected one to three positive sides, got {self.sample_shape}")
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError(f"value_range: expected (low, high), got {self.value_range}")
        kind = KINDS.get(self.label_type[1:2])
        try:
            fits = (
                kind is not None and all(type(label) is kind for label in self.labels) and len(self.classes)
            )
        except (TypeError, ValueError, OverflowError, MemoryError):
            fits = False
        if not fits:
            raise ValueError(f"labels: expected values of the type {self.label_type!r}")

    @property
    def classes(self) -> npt.NDArray[Any]:
        """The labels as scikit-learn has them."""
        return np.array(self.labels, dtype=np.dtype(self.label_type))


def write_classifier(classifier: "RobustClassifier", folder: Path) -> None:
    """Write a fitted classifier.

    Raises:
        ArgumentError: its labels are none that JSON can hold.
        CheckpointError: the folder cannot be written to.
    """
    labels = classifier.classes_
    if labels.dtype == object and all(isinstance(label, str) for label in labels):
        labels = labels.astype(str)
    if labels.dtype.kind not in KINDS:
        raise ArgumentError(
            f"classes_: labels of the type {labels.dtype} cannot be saved; use strings or numbers, or pickle"
        )
    given = {name: plain(value) for name, value in classifier.get_params().items()}
    if isinstance(given["random_state"], np.random.RandomState):
        given["random_state"] = None  # its state has moved on since
    inputs, names = classifier.input_map_, getattr(classifier, "feature_names_in_", None)
    content = Saved(
        FORMAT, classifier.proved_.hash, given, tuple(labels.tolist()), labels.dtype.str, inputs.shape,
        inputs.range, inputs.image_size, inputs.channels, None if names is None else tuple(map(str, names)),
    )  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made ({error.strerror or error})") from error
    save(classifier.model_, folder / BEST)
    classifier.proved_.save(folder / PROVED)
    write_or_explain(folder / CLASSIFIER, json.dumps(asdict(content), indent=2).encode())


def read_classifier(kind: "type[RobustClassifier]", folder: Path) -> "RobustClassifier":
    """Read what `write_classifier` wrote.

    Raises:
        CheckpointError: no such folder, or a damaged one.
    """
    path = folder / CLASSIFIER
    if not path.is_file():
        raise CheckpointError(f"{folder}: expected a folder that RobustClassifier.save wrote")
    saved = read_json(path, Saved)
    network = read_network(folder / PROVED)
    if network.hash != saved.network_sha256 or len(network.classes) != len(saved.labels):
        raise CheckpointError(f"{folder}: {PROVED} is another network than the one that {CLASSIFIER} is of")
    try:
        sides = {name: _tuple(value) for name, value in saved.parameters.items()}
        made = kind(**sides)
        made.input_map_ = InputMap(saved.sample_shape, saved.value_range, saved.image_size, saved.channels)
        features = math.prod(saved.sample_shape)
        shape = tuple(made.input_map_.pixels(np.zeros((1, features), np.uint8)).shape[1:])
    except (ValueError, TypeError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); save the classifier again") from error
    if shape != network.input_shape:
        raise CheckpointError(f"{folder}: {CLASSIFIER} is for images of shape {shape}, but {PROVED} is not")
    made.classes_, made.n_features_in_ = saved.classes, features
    if saved.feature_names is not None:
        made.feature_names_in_ = np.array(saved.feature_names, dtype=object)
    made.model_, made.proved_ = load(folder / BEST).eval(), network
    return made


def _tuple(value: Any) -> Any:
    """JSON has lists alone."""
    return tuple(value) if isinstance(value, list) else value
