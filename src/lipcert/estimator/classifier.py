"""A certified classifier with the API of scikit-learn, without a training loop to write."""

import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from lipcert.certify.certificates import Certificates
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.data.dataset import Dataset
from lipcert.errors import ArgumentError, check_positive, choose
from lipcert.estimator.samples import (
    Array,
    InputMap,
    as_rows,
    checked_range,
    checked_shape,
    plain,
    sample_shape,
)
from lipcert.estimator.saved import read_classifier, write_classifier
from lipcert.models.network import Network
from lipcert.models.storage import read_config
from lipcert.runs.config import TrainConfig, options
from lipcert.runs.naming import find_run
from lipcert.training.devices import make_fabric
from lipcert.training.interruption import Interruption
from lipcert.training.parts import Split
from lipcert.training.progress import PlainLines, Silent
from lipcert.training.start import network_options, weights_of
from lipcert.training.trainer import Trainer

NOT_HERE = frozenset(
    {"data", "image_size", "start_from", "held_out", "eval_every", "seed", "devices", "nodes", "minutes"}
    | {"checkpoint_every", "tensorboard", "mirrored"}
)
"""Options of runs on images that a folder or a name stands for, and that keep records."""
DEFAULTS: dict[str, Any] = {
    name: getattr(TrainConfig, name) for name in options() if name not in NOT_HERE
} | {"width": 16, "epochs": 20, "batch_size": 64, "lr": 0.5, "nesterov": True, "schedule": "onecycle",
     "augment": "none"}  # fmt: skip
"""The options of a `RobustClassifier`: small and quick in place of the paper's."""


class RobustClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network that `fit` trains and that says, by `certify`, how far each sample may change.

    A sample is a grey image (H, W), a colour image (H, W, C) with the channels last, or a flat row of
    numbers. What is no square of even side is laid into one and surrounded by grey: distances between samples
    stay what they are, and so does every certificate. All samples train, none is held out. Training sees
    pixels rounded to 8 bits; predictions and certificates take them as they are, in float64.

    Guarantee: `certify` is proved as `lipcert.certify` is, and `predict` runs the same proved network. The
    same `random_state`, data and number of threads give the same bits; the global random
    generators are left as they were.

    Args:
        image_shape: (H, W) or (H, W, C) of samples that come as flat rows. By default a row of n numbers
            fills the smallest even square that holds it, line by line.
        value_range: which numbers are black and white. By default uint8 runs from 0 to 255, all else from 0
            to 1, and what is beyond is refused. (low, high) clips what is beyond; "data" takes the smallest
            and the largest number that `fit` sees. With either, radii are in the units of X.
        image_size: side of the images that the network takes, if samples are to be resized; an even number.
            The resize is a linear map of known norm, and radii are still those of the samples.
        start_from: weights to begin with: a name of `lipcert zoo list`, the folder of a run, or a file. Its
            network decides `depth`, `width` and the like, and `image_size` unless that is given. Where it
            takes colour, grey samples are taken three times.
        random_state: an integer for the same bits every time, a `RandomState`, or None.
        verbose: print how the training goes. The accuracy in its last line is that of training samples: none
            is held out.
        options: of the network and its training, such as `width` or `epochs`: those of `TrainConfig` that are
            in `DEFAULTS`, which has their values here. Few samples are one batch.

    Attributes:
        classes_: the labels, sorted; `prediction` in a certificate is a position in it.
        model_: the trained network, for `lipcert.save`.
        proved_: the same network, proved: what predicts and certifies, and what `lipcert.audit` and
            `lipcert.export` take.
        n_features_in_: numbers in a sample.

    >>> X = np.random.default_rng(0).random((40, 4, 4))
    >>> y = np.where(X.mean((1, 2)) > 0.5, "bright", "dark")
    >>> classifier = RobustClassifier(width=2, epochs=1, random_state=0).fit(X, y)
    >>> classifier.predict(X).shape, len(classifier.certify(X))
    ((40,), 40)
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, ...] | None = None,
        value_range: tuple[float, float] | str | None = None,
        image_size: int | None = None,
        start_from: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        **options: Any,
    ) -> None:
        self.image_shape = image_shape
        self.value_range = value_range
        self.image_size = image_size
        self.start_from = start_from
        self.random_state = random_state
        self.verbose = verbose
        for name in options:
            choose("option", name, DEFAULTS)
        for name, value in (DEFAULTS | options).items():
            setattr(self, name, value)

    def fit(self, X: Any, y: Any) -> Self:
        """Train on samples and their labels.

        Args:
            X: (N, H, W), (N, H, W, C) or (N, features), uint8 or other numbers; see `value_range`.
            y: (N,), labels of any type.

        Raises:
            ArgumentError: numbers out of range, a shape that does not fit, fewer than 2 classes, or a setting
                that does not exist.
        """
        given = sample_shape(X)
        rows, labels = validate_data(self, as_rows(X), y)
        check_classification_targets(labels)
        self.classes_, positions = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ArgumentError(f"y: expected at least 2 classes, got {len(self.classes_)} class")
        self.input_map_ = self._input_map(given, rows)
        images = Dataset(
            name="X",
            images=(self.input_map_.pixels(rows) * 255).round().to(torch.uint8),
            labels=torch.from_numpy(positions.astype(np.int64)),
            classes=tuple(map(str, self.classes_)),
        )
        with _generators_as_they_were(), tempfile.TemporaryDirectory(prefix="lipcert-") as folder:
            config = self._config(len(images))
            # Nothing is selected: it is evaluated once, at the end, on a batch of the training images.
            split = Split(images, images.subset(range(config.batch_size)), images.fingerprint)
            fabric = make_fabric(config)
            progress = _FitLines(len(split.held_out)) if self.verbose else Silent()
            trainer = Trainer(config, Path(folder), fabric, progress, Interruption(), split=split)
            try:
                trainer.run()
            finally:
                progress.end()
        self.model_: Network = trainer.model.cpu().eval()
        self.proved_: ProvedNetwork = prove(self.model_, classes=images.classes)
        return self

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Logits (N, K) or, for two classes, (N,): the second minus the first."""
        logits = self._logits(X)
        return logits if len(self.classes_) > 2 else logits[:, 1] - logits[:, 0]

    def predict(self, X: Any) -> Array:
        """The label (N,) with the largest logit."""
        positions = self._logits(X).argmax(axis=1)
        return np.asarray(self.classes_[positions])

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Softmax of the logits, (N, K); it is not calibrated, and no certificate depends on it."""
        return np.asarray(softmax(self._logits(X)))

    def certify(self, X: Any) -> Certificates:
        """Predictions (as positions in `classes_`), each with the radius within which it cannot change.

        Args:
            X: samples as in `fit`.

        Returns:
            radii on the scale on which black is 0 and white is 1 or, with a `value_range`, in the units of X.
        """
        rows = self._rows(X)
        return self.input_map_.certificates(self.proved_.certify(self.input_map_.pixels(rows)), rows.dtype)

    def certified_score(self, X: Any, y: Any, radius: float = 36 / 255) -> float:
        """Share of samples that are right and certified beyond `radius`, in the units of `certify`."""
        y = column_or_1d(y)
        check_consistent_length(X, y)
        found = self.certify(X)
        right = self.classes_[found.prediction.numpy()] == y
        return float(np.mean(right & (found.radius.numpy() > radius)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted classifier to a folder, without pickle; `load` reads it back.

        Commands that take the folder of a run take this one too: `lipcert serve`, `certify`, `export`.

        Raises:
            ArgumentError: its labels are neither strings nor numbers.
            CheckpointError: the folder cannot be written to.
        """
        check_is_fitted(self)
        write_classifier(self, Path(folder))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a classifier that `save` wrote; it predicts and certifies as before, to the bit.

        Raises:
            CheckpointError: no such folder, or a damaged one.
        """
        found: Self = read_classifier(cls, Path(folder))
        return found

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn may pass: also arrays of more than two axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _input_map(self, given: tuple[int, ...] | None, rows: Array) -> InputMap:
        shape = checked_shape(given, self.image_shape, rows.shape[1])
        size, channels = plain(self.image_size), None
        if self.start_from is not None:
            start = read_config(weights_of(find_run(self.start_from)))
            size, channels = size or start.image_size, start.in_channels
        if size is not None:
            check_positive(image_size=size)
        return InputMap(shape, checked_range(rows, self.value_range), size, channels)

    def _config(self, count: int) -> TrainConfig:
        options = {name: plain(getattr(self, name)) for name in DEFAULTS}
        if self.start_from is not None:
            options |= _options_of_start(self.start_from, options)
        return TrainConfig(
            **options | {"batch_size": min(options["batch_size"], count), "eval_every": options["epochs"]},
            data="X",
            start_from=self.start_from,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _rows(self, X: Any) -> Array:
        """Samples of the shape that `fit` saw, one in each row."""
        check_is_fitted(self)
        given = sample_shape(X)
        if given is not None and given != self.input_map_.shape:
            raise ArgumentError(
                f"X: expected samples of shape {self.input_map_.shape}, as in fit, got shape {given}"
            )
        rows = validate_data(self, as_rows(X), reset=False)
        return np.asarray(rows)

    def _logits(self, X: Any) -> npt.NDArray[np.float64]:
        rows = self._rows(X)
        return np.asarray(self.proved_.logits(self.input_map_.pixels(rows)).numpy())


class _FitLines(PlainLines):
    """What `verbose=True` prints: nothing is held out, so the accuracies are of training samples."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def evaluated(self, *, epoch: float, loss: float, standard: float, certified: float) -> None:
        """Print a line."""
        self.say(
            f"epoch {epoch:g}  loss {loss:.4f}  on {self.count} of the training samples: {standard:.2%} "
            f"right, {certified:.2%} certified at 36/255 (estimate)"
        )


def _with_options(plain: Signature) -> Signature:
    """The signature with a keyword for each option: scikit-learn and editors read it."""
    own = [entry for entry in plain.parameters.values() if entry.kind is not Parameter.VAR_KEYWORD]
    made = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in DEFAULTS.items()]
    return plain.replace(parameters=[*own, *made])


RobustClassifier.__init__.__signature__ = _with_options(  # type: ignore[attr-defined]
    signature(RobustClassifier.__init__)
)


@contextmanager
def _generators_as_they_were() -> Iterator[None]:
    """Training seeds the global generators; a library should not be noticed by its caller's draws."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)


def _options_of_start(source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the first weights decide.

    Raises:
        ArgumentError: another value was chosen for one of them.
    """
    decided = {name: value for name, value in network_options(source).items() if name in DEFAULTS}
    for name, value in decided.items():
        if given[name] not in (DEFAULTS[name], value):
            raise ArgumentError(f"{name}: {source} has {value!r}, got {given[name]!r}; leave {name} out")
    return decided
