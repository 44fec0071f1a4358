"""A classifier with a guarantee in the manner of scikit-learn, for people who do not write training loops."""

import math
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from lipcert.certify.certificates import Certificates
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.data.dataset import Dataset, to_float
from lipcert.errors import ArgumentError
from lipcert.models.lipconvnet import LipConvnet
from lipcert.training.config import TrainConfig
from lipcert.training.devices import make_fabric
from lipcert.training.interruption import Interruption
from lipcert.training.loop import Trainer
from lipcert.training.parts import Split
from lipcert.training.progress import Silent

Array = npt.NDArray[Any]
GREY = 0.5
"""Pixels around samples that are no even square: the middle of the range."""


class RobustClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A LipConvnet that `fit` trains and that says, by `certify`, how far each sample may change.

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
        depth, conv, activation, head, width, series: the network, as in `lipcert.lipconvnet`.
        gamma: weight of the certificate in the loss.
        epochs, batch_size, lr, weight_decay: of the training; few samples are one batch.
        augment: "none", or "crop-flip" for photographs.
        precision: "fp32" or "bf16-mixed", in training only.
        random_state: an integer for the same bits every time, a `RandomState`, or None.

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
        depth: int = 5,
        conv: str = "soc",
        activation: str = "hh1",
        head: str = "lln",
        width: int = 16,
        series: str = "isometric",
        gamma: float = 0.5,
        epochs: int = 20,
        batch_size: int = 64,
        lr: float = 0.5,
        weight_decay: float | None = None,
        augment: str = "none",
        precision: str = "fp32",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.image_shape = image_shape
        self.value_range = value_range
        self.depth = depth
        self.conv = conv
        self.activation = activation
        self.head = head
        self.width = width
        self.series = series
        self.gamma = gamma
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.augment = augment
        self.precision = precision
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train on samples and their labels.

        Args:
            X: (N, H, W), (N, H, W, C) or (N, features), uint8 or other numbers; see `value_range`.
            y: (N,), labels of any type.

        Raises:
            ArgumentError: numbers out of range, a shape that does not fit, fewer than 2 classes, or a setting
                that does not exist.
        """
        given = _sample_shape(X)
        rows, labels = validate_data(self, _as_rows(X), y)
        check_classification_targets(labels)
        self.classes_, positions = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ArgumentError(f"y: expected at least 2 classes, got {len(self.classes_)} class")
        self.sample_shape_ = _checked_shape(given, self.image_shape, rows.shape[1])
        self.range_ = _range(rows, self.value_range)
        images = Dataset(
            name="X",
            images=(self._pixels(rows) * 255).round().to(torch.uint8),
            labels=torch.from_numpy(positions.astype(np.int64)),
            classes=tuple(map(str, self.classes_)),
        )
        with _generators_as_they_were(), tempfile.TemporaryDirectory(prefix="lipcert-") as folder:
            config = self._config(len(images))
            # Nothing is selected: it is evaluated once, at the end, on a batch of the training images.
            split = Split(images, images.subset(range(config.batch_size)), images.fingerprint)
            fabric = make_fabric(config)
            trainer = Trainer(config, Path(folder), fabric, Silent(), Interruption(), split=split)
            trainer.run()
        self.model_: LipConvnet = trainer.model.cpu().eval()
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
        """Softmax of the logits, (N, K); nobody has calibrated it, and no certificate rests on it."""
        logits = self._logits(X)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def certify(self, X: Any) -> Certificates:
        """Predictions (as positions in `classes_`), each with the radius within which it cannot change.

        Args:
            X: samples as in `fit`.

        Returns:
            radii on the scale on which black is 0 and white is 1 or, with a `value_range`, in the units of X.
        """
        rows = self._rows(X)
        found = self.proved_.certify(self._pixels(rows))
        if self.range_ is None and rows.dtype in (np.float16, np.float32, np.float64):
            return found
        eps = torch.finfo(torch.float64).eps
        low, high = self.range_ or (0.0, 1.0)
        scale = high - low
        if self.range_ is None and rows.dtype == np.uint8:
            rounded = 2.0**-25  # to_float, on numbers of at most 1
        else:
            # As float64, and by scaling: what is not clipped lies between the ends.
            rounded = eps * (2 + max(abs(low), abs(high)) / scale)
        # Each number is rounded here and anywhere in the ball; clipping brings no two samples farther apart.
        # The factor outweighs the roundings of these lines.
        lost = 2 * rounded * math.sqrt(self.n_features_in_)
        radius = ((found.radius - lost).clamp(min=0) * scale) * (1 - 8 * eps)
        return replace(found, radius=radius, lipschitz=found.lipschitz / scale * (1 + 4 * eps))

    def certified_score(self, X: Any, y: Any, radius: float = 36 / 255) -> float:
        """Share of samples that are right and certified beyond `radius`, in the units of `certify`."""
        y = column_or_1d(y)
        check_consistent_length(X, y)
        found = self.certify(X)
        right = self.classes_[found.prediction.numpy()] == y
        return float(np.mean(right & (found.radius.numpy() > radius)))

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn may pass: also arrays of more than two axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _config(self, count: int) -> TrainConfig:
        return TrainConfig(
            data="X",
            depth=_plain(self.depth),
            conv=self.conv,
            activation=self.activation,
            head=self.head,
            width=_plain(self.width),
            series=self.series,
            gamma=_plain(self.gamma),
            epochs=_plain(self.epochs),
            batch_size=min(_plain(self.batch_size), count),
            lr=_plain(self.lr),
            nesterov=True,
            weight_decay=_plain(self.weight_decay),
            schedule="onecycle",
            augment=self.augment,
            eval_every=_plain(self.epochs),
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            precision=self.precision,
        )

    def _rows(self, X: Any) -> Array:
        """Samples of the shape that `fit` saw, one in each row."""
        check_is_fitted(self)
        given = _sample_shape(X)
        if given is not None and given != self.sample_shape_:
            raise ArgumentError(
                f"X: expected samples of shape {self.sample_shape_}, as in fit, got shape {given}"
            )
        rows = validate_data(self, _as_rows(X), reset=False)
        return np.asarray(rows)

    def _logits(self, X: Any) -> npt.NDArray[np.float64]:
        pixels = self._pixels(self._rows(X))
        return np.asarray(self.proved_.logits(pixels).numpy())

    def _pixels(self, rows: Array) -> Tensor:
        """Samples in rows as float64 images (N, C, S, S) in [0, 1], S even."""
        if self.range_ is None and rows.dtype == np.uint8:
            values = to_float(torch.from_numpy(np.array(rows))).double()
        else:
            values = torch.from_numpy(np.array(rows, dtype=np.float64))
        if self.range_ is not None:
            low, high = self.range_
            values = ((values - low) / (high - low)).clamp(0, 1)
        elif values.numel() and not 0 <= float(values.min()) <= float(values.max()) <= 1:
            low, high = float(values.min()), float(values.max())
            raise ArgumentError(
                f"X: expected uint8, or numbers from 0 to 1, got {rows.dtype} from {low:g} to {high:g}; say "
                f'what black and white are, such as value_range=({low:g}, {high:g}) or value_range="data"'
            )
        return _even_square(values, self.sample_shape_)


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


def _plain(value: Any) -> Any:
    """A number of Python's own: searches over parameters hand out numpy's."""
    return value.item() if isinstance(value, np.generic) else value


def _sample_shape(X: Any) -> tuple[int, ...] | None:
    """Shape of one sample of an array or list of images; None for rows of numbers."""
    shape = tuple(getattr(X, "shape", ()))
    if isinstance(X, list | tuple) and len(X) and np.ndim(X[0]) > 1:
        shape = (len(X), *np.shape(X[0]))
    return tuple(map(int, shape[1:])) if len(shape) > 2 else None


def _as_rows(X: Any) -> Any:
    """Images laid out as rows; what has two axes is scikit-learn's to judge."""
    shape = _sample_shape(X)
    return X if shape is None else np.asarray(X).reshape(len(X), math.prod(shape))


def _checked_shape(
    given: tuple[int, ...] | None, wanted: tuple[int, ...] | None, features: int
) -> tuple[int, ...]:
    """Shape of a sample: (H, W), (H, W, C), or (features,) of a row that is no picture."""
    shape = (features,) if given is None else given
    if wanted is not None:
        wanted = tuple(int(_plain(side)) for side in wanted)
        if len(wanted) not in (2, 3) or math.prod(wanted) != features or given not in (None, wanted):
            raise ArgumentError(
                f"image_shape: expected (H, W) or (H, W, C) of the samples, which have shape {shape}, got "
                f"{wanted}"
            )
        return wanted
    if len(shape) > 3 or (len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)):
        raise ArgumentError(
            f"X: expected samples (H, W) or (H, W, C), channels last, got {shape}; use np.moveaxis(X, 1, -1)"
        )
    return shape


def _range(rows: Array, wanted: tuple[float, float] | str | None) -> tuple[float, float] | None:
    """The numbers that become 0 and 1, or None where they are 0 and 1 already (uint8: 0 and 255)."""
    if wanted is None:
        return None
    if isinstance(wanted, str) and wanted == "data":
        low, high = float(rows.min()), float(rows.max())
        wanted = (low, high) if high > low else (low, max(low + 1, math.nextafter(low, math.inf)))
    try:
        low, high = (float(end) for end in wanted)
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf or high - low == math.inf:
        raise ArgumentError(f'value_range: expected (low, high), "data" or None, got {wanted!r}')
    return low, high


def _even_square(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows as images (N, C, S, S), S the smallest even side that holds a sample; grey around it."""
    count = len(values)
    if len(shape) == 1:
        side = math.isqrt(shape[0] - 1) + 1
        side += side % 2
        square = values.new_full((count, side * side), GREY)
        square[:, : shape[0]] = values
        return square.view(count, 1, side, side)
    height, width, channels = (*shape, 1)[:3]
    side = max(height, width)
    side += side % 2
    square = values.new_full((count, channels, side, side), GREY)
    square[:, :, :height, :width] = values.view(count, height, width, channels).permute(0, 3, 1, 2)
    return square
