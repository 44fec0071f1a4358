"""Check written certificates against a second implementation (`lipcert.certify.independent`)."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipcert.certify.exact import exact_network, network_hash
from lipcert.certify.independent import Array, NumpyNetwork, read_network
from lipcert.certify.radii import LARGEST_RADIUS, PRECISIONS
from lipcert.certify.records import FILE, FORMAT
from lipcert.errors import ArgumentError, CheckpointError
from lipcert.models.lipconvnet import LipConvnet
from lipcert.models.storage import load

NOISE = {"float64": 1e-9, "float32": 1e-4}
"""By how much the forward pass of a precision may differ from numpy's in float64, relative to the sizes of
what a logit is the sum of; 1e-14 and 1e-6 are seen."""
NUMBERS = ("margin", "rounding", "radius")
SAME_PROOF = {"float64": 1e-9, "float32": 1e-5}
"""By how much a bound that is proved on two machines may differ, relatively: in float32 the weights are
orthogonalised in float32, and 6e-7 is seen."""


@dataclass(frozen=True)
class Verification:
    """What the second implementation found.

    Attributes:
        checked: positions of the images that were looked at.
        problems: one sentence per disagreement; none if all is well.
        margin_difference: largest difference between a written margin and the one found here.
        radius_excess: largest amount by which a written radius exceeds the ideal one found here; not
            positive, or a problem.
        gain: largest distance between two feature vectors per distance of the images; at most the bound.
        lipschitz: the bound, proved anew.
    """

    checked: tuple[int, ...]
    problems: tuple[str, ...]
    margin_difference: float
    radius_excess: float
    gain: float
    lipschitz: float

    @property
    def agrees(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def verify(
    records: str | os.PathLike[str],
    model: str | os.PathLike[str],
    images: Tensor,
    labels: Tensor | None = None,
    *,
    sample: int = 16,
    seed: int | None = None,
) -> Verification:
    """Derive a sample of written certificates again, by numpy and from the saved file.

    Prediction, margin and ideal radius of each sampled image are computed anew; the written radius must not
    exceed the ideal one for the written Lipschitz constant. That constant must not be below the one that
    `lipcert.certify.exact` proves for the file, and it is held against the distances between the sampled
    images, by the second implementation. What a record claims of itself, such as its rounding, can only make
    the check stricter. Of all records, sampled or not, no two may speak of one image, and the labels that
    accuracies are counted with must be the true ones.

    Args:
        records: certificates.jsonl, or its folder.
        model: the .safetensors file that was certified.
        images: all images that the records point into, (M, C, H, W); uint8, or floating point in [0, 1].
        labels: (M,), the true classes; None leaves the labels of the records unchecked.
        sample: how many records to check; all if there are fewer.
        seed: which ones; None draws others every time, so that whoever wrote the records cannot foresee them.

    Raises:
        CheckpointError: records or model are missing or damaged, or the model is not the one of the records.
        ArgumentError: images of another shape or fewer than the records speak of.
    """
    header, rows = _read(Path(records))
    if sample < 1:
        raise ArgumentError(f"sample: expected at least 1, got {sample}")
    proved = load(model)
    if network_hash(proved) != header["weights_sha256"]:
        raise CheckpointError(f"{model}: holds other weights than those that {records} was written for")
    problems = _wrong_claims(header, rows, proved) + _wrong_labels(rows, labels)
    chosen = sorted(np.random.default_rng(seed).permutation(len(rows))[:sample].tolist())
    rows = [rows[i] for i in chosen]
    network = read_network(model)
    pixels = _pixels(images, [int(row["index"]) for row in rows], network)
    weight, bias = network.head()
    features = network.features(pixels)
    logits = features @ weight.T + bias

    written, precision = float(header["lipschitz"]), header["precision"]
    bound = exact_network(proved, tuple(pixels.shape[1:]), PRECISIONS[precision]).lipschitz
    gain = _largest_gain(pixels.reshape(len(pixels), -1), features)
    if not written >= bound * (1 - SAME_PROOF[precision]):
        problems.append(f"written Lipschitz constant {written:.9g}, but {bound:.9g} is what can be proved")
    if gain > bound * (1 + NOISE[precision]):
        problems.append(
            f"proved Lipschitz constant {bound:.9g}, but two images are pulled apart {gain:.9g}-fold"
        )
    difference, excess = 0.0, -math.inf
    rows_of_head, sizes = np.linalg.norm(weight, axis=1), np.linalg.norm(features, axis=1)
    for row, scores, size in zip(rows, logits, sizes, strict=True):
        found = _check_row(row, scores, size * rows_of_head + np.abs(bias), weight, written, NOISE[precision])
        problems += [f"image {row['index']}: {problem}" for problem in found.problems]
        difference, excess = max(difference, found.margin_difference), max(excess, found.radius_excess)
    return Verification(
        tuple(int(row["index"]) for row in rows), tuple(problems), difference, excess, gain, bound
    )


def _wrong_claims(header: Mapping[str, Any], rows: list[Mapping[str, Any]], model: LipConvnet) -> list[str]:
    """What the records say of themselves twice, or of the network, and not alike."""
    problems = [
        f"image {row['index']}: written {name} {row[name]!r}, but that of the file is {header[of_all]!r}"
        for row in rows
        for name, of_all in (("bound", "lipschitz"), ("precision", "precision"))
        if name in row and row[name] != header[of_all]
    ]
    config = json.loads(json.dumps(vars(model.config)))  # tuples are lists in JSON
    if any(config.get(name) != value for name, value in header.get("model", {}).items()):
        problems.append("the records describe another network than the one that was saved")
    return problems


def _wrong_labels(rows: list[Mapping[str, Any]], labels: Tensor | None) -> list[str]:
    """Images that are counted twice, or with another label than their own."""
    places = [row["index"] for row in rows]
    problems = [f"image {place}: written {n} times" for place, n in Counter(places).items() if n > 1]
    if labels is None:
        return problems
    if not all(isinstance(place, int) and 0 <= place < len(labels) for place in places):
        raise ArgumentError(f"labels: the records point beyond the {len(labels)} images")
    true = labels.tolist()
    return problems + [
        f"image {row['index']}: written label {row['label']}, but it is {true[row['index']]}"
        for row in rows
        if row["label"] != true[row["index"]]
    ]


@dataclass(frozen=True)
class _Row:
    """What is wrong with one record, and by how much it differs."""

    problems: tuple[str, ...] = ()
    margin_difference: float = 0.0
    radius_excess: float = -math.inf


def _check_row(
    row: Mapping[str, Any], scores: Array, sizes: Array, weight: Array, lipschitz: float, relative: float
) -> _Row:
    """Hold one record against its logits; `sizes` are those of the terms that make them, (K,)."""
    classes, label, other = len(scores), int(row["prediction"]), int(row["runner_up"])
    if not 0 <= label < classes:
        return _Row((f"written prediction {label}, but there are {classes} classes",))
    # Of each difference from the logit of the label: one huge logit says nothing about two others.
    noise = sizes[label] + sizes
    if (scores - scores[label] > relative * noise).any():
        return _Row((f"written prediction {label}, found {int(scores.argmax())}",))
    if classes == 1:
        return _Row()
    if not 0 <= other < classes or other == label:
        return _Row((f"written runner-up {other}, but that is no other class than {label} of {classes}",))
    written = {name: math.inf if row[name] is None else float(row[name]) for name in NUMBERS}
    # A rounding term may be infinite: what overflows certifies nothing, and says so.
    if wrong := [
        n for n, value in written.items() if not value >= 0 or (value == math.inf and n != "rounding")
    ]:
        return _Row(tuple(f"written {name} {written[name]}, expected a number at least 0" for name in wrong))
    problems = []
    margin = float(scores[label] - scores[other])
    difference = abs(margin - written["margin"])
    if difference > relative * noise[other]:
        problems.append(f"written margin {written['margin']:.9g}, found {margin:.9g}")
    margins = scores[label] - scores
    margins[other] -= written["rounding"]
    steepness = lipschitz * np.linalg.norm(weight - weight[label], axis=1)
    ideal = _radius(margins, steepness, label)
    # The rounding that was taken off covers the difference between precisions, so the second limit is narrow.
    allowed = _radius(margins + relative * noise, steepness, label)
    whole = _radius(scores[label] - scores + NOISE["float64"] * noise, steepness, label)
    if written["radius"] > min(allowed, whole):
        problems.append(f"written radius {written['radius']:.9g}, but at most {ideal:.9g} can be certified")
    return _Row(tuple(problems), difference, written["radius"] - ideal)


def _radius(margins: Array, steepness: Array, label: int) -> float:
    """The smallest of margin / steepness over the other classes; at most the largest that is ever claimed."""
    limits = [
        (margin / steep if steep else math.inf) if margin > 0 else 0.0
        for number, (margin, steep) in enumerate(zip(margins.tolist(), steepness.tolist(), strict=True))
        if number != label
    ]
    return min(LARGEST_RADIUS, *limits)


def _largest_gain(pixels: Array, features: Array) -> float:
    gains = [0.0]
    for i in range(len(pixels)):
        for j in range(i):
            apart = float(np.linalg.norm(pixels[i] - pixels[j]))
            if apart > 0:
                gains.append(float(np.linalg.norm(features[i] - features[j])) / apart)
    return max(gains)


def _pixels(images: Tensor, positions: list[int], network: NumpyNetwork) -> Array:
    size, channels = network.config["image_size"], network.config["in_channels"]
    if (
        images.dim() != 4
        or tuple(images.shape[1:]) != (channels, size, size)
        or not 0 <= min(positions) <= max(positions) < len(images)
    ):
        raise ArgumentError(
            f"images: expected at least {max(positions) + 1} of shape {(channels, size, size)}, "
            f"got {tuple(images.shape)}"
        )
    chosen = images[positions].cpu()
    # As the data reader does: pixels are float32 numbers, k / 255 rounded once.
    chosen = chosen.to(torch.float32) / 255 if chosen.dtype == torch.uint8 else chosen
    return np.asarray(chosen.double().numpy(), dtype=np.float64)


def _read(path: Path) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    path = path / FILE if path.is_dir() else path
    try:
        header, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        needed = {"index", "label", "prediction", "runner_up", "margin", "rounding", "radius"}
        if not rows or any(not needed <= row.keys() for row in rows):
            raise ValueError("expected one line per image with " + ", ".join(sorted(needed)))
        if not {"weights_sha256", "lipschitz", "precision"} <= header.keys():
            raise ValueError("expected a first line with weights_sha256, lipschitz and precision")
        if header.get("format", FORMAT) != FORMAT:
            raise ValueError(f"expected format {FORMAT!r}, got {header['format']!r}")
        if header["precision"] not in PRECISIONS:
            raise ValueError(
                f"expected a precision of {' or '.join(PRECISIONS)}, got {header['precision']!r}"
            )
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: no records that can be read ({error})") from error
    return header, rows
