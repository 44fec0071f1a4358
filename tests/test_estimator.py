"""RobustClassifier: scikit-learn's own checks, pictures and rows, units, and certificates that hold."""

import copy
import json
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import lipcert as lc
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.estimator import RobustClassifier

TINY: dict[str, Any] = {"width": 4, "epochs": 5, "batch_size": 32, "random_state": 0}


@parametrize_with_checks([RobustClassifier(value_range="data", width=4, epochs=8, batch_size=32, lr=0.5)])
def test_the_checks_of_scikit_learn(estimator: RobustClassifier, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Some handwritten digits, (N, 8, 8), 0 to 16."""
    found = load_digits()
    return found.images[:200], found.target[:200]


@pytest.fixture(scope="module")
def fitted(digits: tuple[np.ndarray, np.ndarray]) -> RobustClassifier:
    images, labels = digits
    names = np.array([f"digit {label}" for label in labels])
    return RobustClassifier(**TINY).fit(images / 16, names)


def test_it_learns(fitted: RobustClassifier, digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    names = [f"digit {label}" for label in labels]
    assert fitted.score(images / 16, names) > 0.5
    assert fitted.predict(images[:2] / 16).dtype.kind == "U"
    assert list(fitted.classes_) == [f"digit {number}" for number in range(10)]
    proba = fitted.predict_proba(images[:3] / 16)
    assert proba.shape == (3, 10)
    np.testing.assert_allclose(proba.sum(axis=1), 1)


def test_certificates_are_those_of_its_network(
    fitted: RobustClassifier, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    pixels = digits[0][:30] / 16
    found = fitted.certify(pixels)
    expected = lc.certify(fitted.model_, torch.from_numpy(pixels)[:, None])
    assert torch.equal(found.radius, expected.radius)
    assert found.proved
    positive = found.radius.numpy() > 0
    predicted = fitted.classes_[found.prediction.numpy()]
    assert positive.any()
    assert (fitted.predict(pixels) == predicted).all()


def test_no_sample_in_the_ball_is_classified_otherwise(
    fitted: RobustClassifier, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    pixels = torch.from_numpy(digits[0][:30] / 16)
    found = fitted.certify(pixels.numpy())
    # Straight down the margin to the binding class, the shortest way out for a network that is almost linear.
    x = pixels[:, None].clone().requires_grad_()
    network = lc.freeze(copy.deepcopy(fitted.model_).double())
    logits = network(x)
    margin = logits.gather(1, found.prediction[:, None]) - logits.gather(1, found.runner_up[:, None])
    (gradient,) = torch.autograd.grad(margin.sum(), x)
    step = gradient[:, 0] / gradient[:, 0].flatten(1).norm(dim=1).view(-1, 1, 1)
    pushed = pixels - 0.9999 * found.radius.view(-1, 1, 1) * step
    inside = (pushed - pixels).flatten(1).norm(dim=1) < found.radius
    assert inside.any()
    after = fitted._logits(pushed.clamp(0, 1).numpy()).argmax(1)  # clipping comes nearer to every image
    assert torch.equal(torch.from_numpy(after)[inside], found.prediction[inside])


def test_certified_score_counts_what_is_right_and_certified(
    fitted: RobustClassifier, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    images, labels = digits[0] / 16, np.array([f"digit {label}" for label in digits[1]])
    found = fitted.certify(images)
    right = torch.from_numpy(fitted.classes_[found.prediction.numpy()] == labels)
    expected = (right & (found.radius > 0.1)).double().mean()
    assert fitted.certified_score(images, labels, radius=0.1) == pytest.approx(float(expected))
    assert fitted.certified_score(images, labels, 0) >= fitted.certified_score(images, labels)
    # A column of labels must not be broadcast against the row of predictions.
    assert fitted.certified_score(images, labels[:, None], 0.1) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fitted.certified_score(images, labels[:1])


def test_uint8_and_floats_are_the_same_images(
    fitted: RobustClassifier, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    levels = (digits[0][:20] * 15).astype(np.uint8)
    floats = lc.data.to_float(torch.from_numpy(levels)).numpy()
    lost = fitted.certify(floats).radius - fitted.certify(levels).radius
    # k / 255 is no float32: the radius of levels gives way to that, at the image and in the ball.
    assert (lost <= 2.0**-24 * 8 + 1e-12).all()
    assert (lost[fitted.certify(levels).radius > 0] >= 2.0**-24 * 8 - 1e-12).all()
    flat = floats.reshape(20, -1)
    assert (fitted.decision_function(flat) == fitted.decision_function(floats)).all()


def test_radii_are_in_the_units_of_the_range(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    plain = RobustClassifier(**TINY).fit(images / 16, labels)
    scaled = RobustClassifier(value_range=(0, 16), **TINY).fit(images, labels)
    assert (scaled.decision_function(images) == plain.decision_function(images / 16)).all()
    mine, theirs = scaled.certify(images), plain.certify(images / 16)
    torch.testing.assert_close(mine.radius, 16 * theirs.radius, rtol=1e-12, atol=1e-12)
    assert (mine.radius < 16 * theirs.radius).all()
    assert mine.lipschitz == pytest.approx(theirs.lipschitz / 16)
    data = RobustClassifier(value_range="data", **TINY).fit(images, labels)
    assert data.input_map_.range == (0, 16)


def test_integers_that_float64_cannot_hold_are_not_certified() -> None:
    """Near 2^60 float64 knows every 256th integer: what is nearer together is rounded, not proved."""
    rows = np.random.default_rng(0).integers(0, 1000, (60, 4))
    target = rows[:, 0] > 500
    near = RobustClassifier(width=2, epochs=3, random_state=0, value_range="data")
    assert (near.fit(rows, target).certify(rows).radius > 1).any()
    far = near.fit(rows + 2**60, target)
    assert not (far.certify(rows + 2**60).radius > 0).any()


def test_predictions_and_certificates_are_of_the_proved_network(fitted: RobustClassifier) -> None:
    changed, samples = copy.deepcopy(fitted), np.random.default_rng(0).random((20, 8, 8))
    with torch.no_grad():
        changed.model_.head.weight.neg_()
        changed.model_.head.bias.neg_()
    certified = changed.classes_[changed.certify(samples).prediction.numpy()]
    assert (certified == changed.predict(samples)).all()
    assert (certified == fitted.predict(samples)).all()


def test_what_is_beyond_the_range_is_clipped(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits
    model = RobustClassifier(value_range=(4, 12), **TINY).fit(images, labels)
    assert (model.decision_function(images) == model.decision_function(images.clip(4, 12))).all()


@pytest.mark.parametrize(
    ("shape", "side", "channels"),
    [
        *(((7,), 4, 1), ((4,), 2, 1), ((64,), 8, 1), ((1,), 2, 1)),
        *(((5, 3), 6, 1), ((4, 4, 3), 4, 3), ((2, 6, 2), 6, 2)),
    ],
)
def test_samples_of_every_shape_keep_their_distances(
    shape: tuple[int, ...], side: int, channels: int
) -> None:
    rng = np.random.default_rng(0)
    samples = rng.random((12, *shape))
    model = RobustClassifier(**TINY | {"epochs": 1}).fit(samples, np.arange(12) % 2)
    assert model.model_.config.input_shape == (channels, side, side)
    assert model.n_features_in_ == np.prod(shape)
    pixels = model.input_map_.pixels(samples.reshape(12, -1))
    apart = torch.cdist(pixels.flatten(1), pixels.flatten(1))
    flat = torch.from_numpy(samples.reshape(12, -1))
    torch.testing.assert_close(apart, torch.cdist(flat, flat))
    assert len(model.certify(samples)) == 12
    assert (model.predict(list(samples)) == model.predict(samples)).all()


def test_flat_rows_with_an_image_shape() -> None:
    samples = np.random.default_rng(0).random((10, 4, 4, 3))
    labels = np.arange(10) % 2
    settings = TINY | {"epochs": 1}
    images = RobustClassifier(**settings).fit(samples, labels)
    rows = RobustClassifier(image_shape=(4, 4, 3), **settings).fit(samples.reshape(10, -1), labels)
    assert (images.decision_function(samples) == rows.decision_function(samples.reshape(10, -1))).all()


def test_the_same_bits_and_nobody_elses_random_numbers(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits[0][:60] / 16, digits[1][:60]
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    one = RobustClassifier(**TINY).fit(images, labels)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]
    torch.manual_seed(99)
    two, three = clone(one).fit(images, labels), clone(one).set_params(random_state=1).fit(images, labels)
    same = [torch.equal(a, b) for a, b in zip(one.model_.parameters(), two.model_.parameters(), strict=True)]
    assert all(same)
    assert not (one.decision_function(images) == three.decision_function(images)).all()


def test_it_survives_a_pickle(fitted: RobustClassifier, digits: tuple[np.ndarray, np.ndarray]) -> None:
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 (made in this line)
    images = digits[0][:10] / 16
    assert (again.decision_function(images) == fitted.decision_function(images)).all()
    assert torch.equal(again.certify(images).radius, fitted.certify(images).radius)


@pytest.mark.parametrize(
    "labels",
    [np.arange(12) % 3, np.arange(12) % 2 == 0, np.array(["Ä", "b"] * 6), np.array(["x", "y"] * 6, object)],
    ids=lambda labels: labels.dtype.str,
)
def test_it_is_saved_and_loaded_without_pickle(labels: np.ndarray, tmp_path: Path) -> None:
    samples = 9 * np.random.default_rng(0).random((12, 5, 7))
    settings = TINY | {"epochs": 1, "value_range": (0, 9), "image_size": 4}
    fitted = RobustClassifier(**settings).fit(samples, labels)
    fitted.save(tmp_path / "saved")
    again = RobustClassifier.load(tmp_path / "saved")
    assert again.get_params() == fitted.get_params()
    assert (again.predict(samples) == fitted.predict(samples)).all()
    assert again.classes_.tolist() == fitted.classes_.tolist()
    assert torch.equal(again.certify(samples).radius, fitted.certify(samples).radius)
    assert lc.load(tmp_path / "saved").hash == fitted.proved_.hash  # as every command reads it
    assert clone(again).fit(samples, labels).predict(samples).tolist() == fitted.predict(samples).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "expected the format 'lipcert classifier 1', got 'x'"),
        ({"network_sha256": "0"}, "is another network than the one that"),
        ({"sample_shape": [4, 4]}, r"is for images of shape \(1, 4, 4\)"),
        ({"sample_shape": [10**30]}, "is damaged"),
        ({"labels": [1, "a"]}, "labels: expected values of the type"),
        ({"label_type": "<i3"}, "labels: expected values of the type"),
        ({"parameters": {"widht": 3}}, "did you mean 'width'"),
    ],
)
def test_a_damaged_folder_is_refused(
    fitted: RobustClassifier, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    fitted.save(tmp_path)
    file = tmp_path / "classifier.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        RobustClassifier.load(tmp_path)


def test_a_folder_without_a_classifier_and_one_that_is_not_fitted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a folder that RobustClassifier\.save wrote"):
        RobustClassifier.load(tmp_path)
    with pytest.raises(NotFittedError):
        RobustClassifier().save(tmp_path)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of a colour network, to begin with."""
    file = tmp_path_factory.mktemp("start") / "start.safetensors"
    torch.manual_seed(0)
    lc.save(lc.lipconvnet(5, num_classes=3, width=3, image_size=12, head="orthogonal", series="wide"), file)
    return str(file)


def test_what_is_printed_speaks_of_training_samples(
    digits: tuple[np.ndarray, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    RobustClassifier(**TINY, verbose=True).fit(digits[0][:60] / 16, digits[1][:60])
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"epoch 5  loss \S+  on 32 of the training samples: \d+\.\d\d% right, \d+\.\d\d% certified at 36/255 "
        r"\(estimate\)",
        last,
    )


def test_radii_on_resized_grey_samples_are_those_of_the_samples(
    start: str, digits: tuple[np.ndarray, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    images, labels = digits[0][:60] / 16, digits[1][:60]
    model = RobustClassifier(epochs=1, random_state=0, start_from=start, verbose=True).fit(images, labels)
    assert "starts from" in capsys.readouterr().out
    assert model.model_.config.input_shape == (3, 12, 12)
    assert (model.model_.config.width, model.model_.config.series) == (3, "wide")
    # The dense matrix from samples to images, one column per pixel, and its norm by LAPACK.
    black = model.input_map_.pixels(np.zeros((1, 64)))
    middle = np.full((1, 64), 0.5)
    columns = (model.input_map_.pixels(middle + 0.25 * np.eye(64)) - model.input_map_.pixels(middle)).flatten(
        1
    ) / 0.25
    norm = float(torch.linalg.matrix_norm(columns.T, 2))
    assert black.shape == (1, 3, 12, 12)
    assert norm > 1.7  # grey three times is sqrt(3), and it becomes larger
    inside = model.proved_.certify(model.input_map_.pixels(images.reshape(60, -1))).radius
    found = model.certify(images)
    assert (found.radius <= inside / norm).all()
    torch.testing.assert_close(found.radius, inside / norm, rtol=1e-6, atol=1e-9)
    assert found.lipschitz == pytest.approx(model.proved_.lipschitz * norm)


def test_what_a_start_decides_cannot_be_chosen(start: str) -> None:
    samples, labels = np.random.default_rng(0).random((6, 12, 12, 3)), [0, 1] * 3
    with pytest.raises(ArgumentError, match=r"width: .*start\.safetensors has 3, got 4; leave width out"):
        RobustClassifier(start_from=start, width=4).fit(samples, labels)
    with pytest.raises(ArgumentError, match="start_from: its network takes images of 3 channels"):
        RobustClassifier(start_from=start).fit(samples[..., :2], labels)
    with pytest.raises(CheckpointError, match="did you mean 'lipconvnet5-cifar10'"):
        RobustClassifier(start_from="lipconvnet5-cifar").fit(samples, labels)
    with pytest.raises(ArgumentError, match="image_size: expected a positive integer, got 0"):
        RobustClassifier(image_size=0).fit(samples, labels)


def test_in_a_search_and_in_a_pipeline(digits: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = digits[0][:60].reshape(60, -1), digits[1][:60] % 2
    pipeline = make_pipeline(FunctionTransformer(lambda x: x / 16), RobustClassifier(**TINY | {"epochs": 1}))
    grid = {"robustclassifier__width": np.array([2, 4]), "robustclassifier__gamma": np.array([0.0, 0.5])}
    search = GridSearchCV(pipeline, grid, cv=2).fit(images, labels)
    assert search.best_params_["robustclassifier__width"] in (2, 4)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({}, (6, 4, 4), r"X: expected uint8, or numbers from 0 to 1, got float64 .* value_range=\("),
        ({"value_range": "dat"}, (6, 4, 4), "value_range: expected .* got 'dat'"),
        ({"value_range": (1, 0)}, (6, 4, 4), r"value_range: expected .* got \(1, 0\)"),
        ({"value_range": (-1e308, 1e308)}, (6, 4, 4), "value_range: expected .* got"),
        ({"value_range": (0, 99), "image_shape": (4, 5)}, (6, 16), r"image_shape: .* got \(4, 5\)"),
        ({"value_range": (0, 99), "image_shape": (8, 2)}, (6, 4, 4), r"shape \(4, 4\), got \(8, 2\)"),
        ({"value_range": (0, 99)}, (6, 3, 8, 8), r"channels last, got \(3, 8, 8\); use np.moveaxis"),
        ({"value_range": (0, 99)}, (6, 2, 2, 2, 2), r"channels last, got \(2, 2, 2, 2\)"),
        ({"value_range": (0, 99), "conv": "sco"}, (6, 4, 4), "conv: .* did you mean 'soc'"),
        ({"value_range": (0, 99), "lr": -1.0}, (6, 4, 4), "lr: expected a number in \\(0, inf\\), got -1.0"),
    ],
)  # fmt: skip
def test_what_fit_refuses(settings: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    samples = 50 * np.random.default_rng(0).random(shape)
    with pytest.raises(ArgumentError, match=message):
        RobustClassifier(**TINY | settings).fit(samples, [0, 1] * 3)


def test_what_predict_refuses(fitted: RobustClassifier) -> None:
    with pytest.raises(
        ArgumentError, match=r"X: expected samples of shape \(8, 8\), as in fit, got shape \(4, 16\)"
    ):
        fitted.predict(np.zeros((2, 4, 16)))
    with pytest.raises(
        ArgumentError, match=r"X: expected uint8, or numbers from 0 to 1, got float64 from 2 to 2"
    ):
        fitted.certify(np.full((2, 8, 8), 2.0))
    with pytest.raises(NotFittedError):
        RobustClassifier().certify(np.zeros((2, 8, 8)))


def test_one_class_is_refused() -> None:
    with pytest.raises(ArgumentError, match="y: expected at least 2 classes, got 1 class"):
        RobustClassifier(**TINY).fit(np.zeros((3, 4, 4)), [7, 7, 7])


def test_importing_lipcert_imports_little_more_than_torch() -> None:
    code = (
        "import sys, torch; import lipcert as lc; lc.certify, lc.lipconvnet; "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "torch" in done.stdout.split()
    slow = {
        "sklearn",
        "scipy",
        "matplotlib",
        "lightning_fabric",
        "PIL",
        "jinja2",
        "rich",
        "typer",
        "ray",
        "gradio",
    }
    assert not slow & set(done.stdout.split())
