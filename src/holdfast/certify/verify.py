"""Check written certificates against a second implementation (`holdfast.certify.independent`)."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.certify.exact import fingerprint
from holdfast.certify.independent import Array, NumpyNetwork, read_network
from holdfast.errors import ArgumentError, CheckpointError
from holdfast.models.storage import load

FILE = "certificates.jsonl"
NOISE = 1e-9
"""By how much two float64 implementations may differ, relative to the largest logit; 1e-14 is seen."""


@dataclass(frozen=True)
class Verification:
    """What the second implementation found.

    Attributes: checked: positions of the images that were looked at. problems: one sentence per
        disagreement; none if all is well. margin_difference: largest difference between a written margin and
        the one found here. radius_excess: largest amount by which a written radius exceeds the ideal one
        found here; not positive, or
            a problem.
        gain: largest distance between two feature vectors per distance of the images; at most the bound.
    """

    checked: tuple[int, ...]
    problems: tuple[str, ...]
    margin_difference: float
    radius_excess: float
    gain: float

    @property
    def agrees(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def verify(
    records: str | os.PathLike[str],
    model: str | os.PathLike[str],
    images: Tensor,
    *,
    sample: int = 16,
    seed: int = 0,
) -> Verification:
    """Derive a sample of written certificates again, by numpy and from the saved file.

    Prediction, margin and ideal radius of each sampled image are computed anew; the written radius must not
    exceed the ideal one for the written Lipschitz constant. That constant is held against distances between
    images: a check, not a proof.

    Args:
        records: certificates.jsonl, or its folder.
        model: the .safetensors file that was certified.
        images: all images that the records point into, (M, C, H, W); uint8, or floating point in [0, 1].
        sample: how many records to check; all if there are fewer.
        seed: which ones.

    Raises:
        CheckpointError: records or model are missing or damaged, or the model is not the one of the records.
        ArgumentError: images of another shape or fewer than the records speak of.
    """
    header, rows = _read(Path(records))
    if sample < 1:
        raise ArgumentError(f"sample: expected at least 1, got {sample}")
    if fingerprint(load(model)) != header["weights_sha256"]:
        raise CheckpointError(f"{model}: holds other weights than those that {records} was written for")
    chosen = sorted(np.random.default_rng(seed).permutation(len(rows))[:sample].tolist())
    rows = [rows[i] for i in chosen]
    network = read_network(model)
    pixels = _pixels(images, [int(row["index"]) for row in rows], network)
    weight, bias = network.head()
    features = network.features(pixels)
    return _compare(rows, float(header["lipschitz"]), pixels, features, weight, features @ weight.T + bias)


def _compare(
    rows: Sequence[Mapping[str, Any]],
    lipschitz: float,
    pixels: Array,
    features: Array,
    weight: Array,
    logits: Array,
) -> Verification:
    problems, difference, excess = [], 0.0, -math.inf
    for row, scores in zip(rows, logits, strict=True):
        where, label, other = f"image {row['index']}", int(row["prediction"]), int(row["runner_up"])
        noise = NOISE * float(np.abs(scores).max()) + float(row["rounding"])
        if scores.max() - scores[label] > noise:
            problems.append(f"{where}: written prediction {label}, found {int(scores.argmax())}")
            continue
        if other < 0:
            continue
        found = float(scores[label] - scores[other])
        written, radius = float(row["margin"]), math.inf if row["radius"] is None else float(row["radius"])
        difference = max(difference, abs(found - written))
        if abs(found - written) > noise:
            problems.append(f"{where}: written margin {written:.9g}, found {found:.9g}")
        distances = np.linalg.norm(weight - weight[label], axis=1)
        others = np.arange(len(scores)) != label
        ideal = float(((scores[label] - scores[others]) / (lipschitz * distances[others])).min())
        excess = max(excess, radius - max(ideal, 0.0))
        if radius > max(ideal, 0.0) + noise / (lipschitz * float(distances[others].min())):
            problems.append(f"{where}: written radius {radius:.9g}, but at most {ideal:.9g} can be certified")
    gain = _largest_gain(pixels.reshape(len(pixels), -1), features)
    if gain > lipschitz * (1 + NOISE):
        problems.append(
            f"written Lipschitz constant {lipschitz:.9g}, but two images are pulled apart {gain:.9g}-fold"
        )
    return Verification(tuple(int(row["index"]) for row in rows), tuple(problems), difference, excess, gain)


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
        or max(positions) >= len(images)
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
        needed = {"index", "prediction", "runner_up", "margin", "rounding", "radius"}
        if not rows or any(not needed <= row.keys() for row in rows):
            raise ValueError("expected one line per image with " + ", ".join(sorted(needed)))
        if not {"weights_sha256", "lipschitz"} <= header.keys():
            raise ValueError("expected a first line with weights_sha256 and lipschitz")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: no records that can be read ({error})") from error
    return header, rows
