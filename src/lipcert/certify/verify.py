r"""Check written certificates against a second implementation (`lipcert.certify.independent`).

Records and network may come from the same untrusted source, so nothing that they state is trusted. From
the numbers in the network's file alone, numpy derives the constants D of all differences of two logits, the
logits of a sampled image, and a bound t on the rounding of such a difference in that computation. A row with
radius r > 0 is confirmed if its prediction l is the largest logit found here, and for every other class i

.. math:: r\,D_{li} \le (1 + a)\,(f_l - f_i - \max(t, e - 4 t)) , \qquad e = \text{written rounding}.

The bracket is a lower bound on the exact margin, so no confirmed radius exceeds what is derived here by more
than a, whatever file and records state; a is what rounding may add to D here (`ALLOWED`). Large numbers in a
network make t larger and the bracket smaller: where rounding hides a margin, nothing is confirmed. What a row
states about its rounding can only make the check stricter. An honest row passes: written and found margins
differ by less than 4 t, and the package takes off e, which bounds the error in a whole ball and is the larger
one, for t is of one point.
"""

import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipcert.certify.independent import (
    Constants,
    Evaluation,
    Network,
    derive_constants,
    evaluate,
    read_network,
)
from lipcert.certify.independent.tree import Array
from lipcert.certify.record_lines import Row
from lipcert.certify.records import Records, read_records
from lipcert.errors import ArgumentError, CheckpointError

ALLOWED = 4e-9
"""What the rounding of the second method may add to the constant of one operator, relatively. The largest
eigenvalue of a Gram matrix of n columns is enlarged by 64 n u ||G||_F and 3 (n + 4) u n ||G||, the norm by
half of that: 3.7e-9 for n = 4096. The grid of a polynomial adds less than 1e-12."""
MOST_ALLOWED = 1e-6
"""For any number of operators."""
CONSTANT_GAP = 1e-3
"""By how much a stated constant may be below the derived bound, relatively. Radii are not affected."""
LARGEST_RADIUS = 1e6


@dataclass(frozen=True)
class Layer:
    """One operator: the constant that the file states, the one derived here, and the largest gain seen."""

    path: str
    operator: str
    stated: float
    derived: float
    gain: float


@dataclass(frozen=True)
class Verification:
    """What the second implementation found.

    Attributes:
        checked: positions of the images that were looked at.
        problems: one sentence per disagreement; none if all is well.
        margin_difference: largest difference between a written margin and the one found here.
        radius_excess: largest amount by which a written radius exceeds the one derived here.
        gain: largest distance between two feature vectors per distance of the images; at most the constant.
        lipschitz: constant from pixels to features, derived here.
        tolerance: largest bound on the rounding of a difference of two logits, derived here.
        layers: every operator with its stated and its derived constant.
    """

    checked: tuple[int, ...]
    problems: tuple[str, ...]
    margin_difference: float
    radius_excess: float
    gain: float
    lipschitz: float
    tolerance: float
    layers: tuple[Layer, ...]


def verify(
    records: Records | str | os.PathLike[str],
    network: Network | str | os.PathLike[str],
    images: Tensor | Callable[[int], Tensor],
    labels: Tensor | None = None,
    *,
    sample: int = 16,
    seed: int | None = None,
) -> Verification:
    """Derive a sample of written certificates again, in numpy and from the file of the proved network alone.

    Of the sampled rows, prediction, runner-up, margin and radius are checked. Of all rows, sampled or not, no
    two may be of one image, and the labels that accuracies are counted with must be the true ones. Of every
    operator, the stated constant must not be below the derived one.

    Args:
        records: certificates.jsonl, or its folder, or what `read_records` made of it.
        network: the proved network that the records were written for: its file, or what was read from it.
        images: all images that the records point into, (M, C, H, W); uint8, or floating point in [0, 1]. Or a
            function that returns the one at a position, (C, H, W): it is called for the sample alone.
        labels: (M,), the true classes; None leaves the labels of the records unchecked.
        sample: how many records to check; all if there are fewer.
        seed: which ones; None draws others every time, so that the author of the records cannot foresee them.

    Raises:
        CheckpointError: records or network are missing or damaged, or the network is not that of the records.
        ArgumentError: images of another shape, or fewer than the records refer to.
    """
    if sample < 1:
        raise ArgumentError(f"sample: expected at least 1, got {sample}")
    written = records if isinstance(records, Records) else read_records(Path(records))
    named, network = network, network if isinstance(network, Network) else read_network(network)
    if network.sha256 != written.header.network_sha256:
        place = "network" if named is network else named
        raise CheckpointError(f"{place}: is another network than the one that the records were written for")
    count = len(images) if isinstance(images, Tensor) else written.header.images
    problems = _wrong_header(written, network, count) + _wrong_labels(written.rows, labels)
    chosen = sorted(np.random.default_rng(seed).permutation(len(written.rows))[:sample].tolist())
    rows = [written.rows[i] for i in chosen]
    allowed = min(ALLOWED * len(network.leaves), MOST_ALLOWED)
    pixels = _pixels(images, [row.index for row in rows], network.input_shape)
    constants = derive_constants(network)
    found = evaluate(network, constants, pixels)
    layers = tuple(
        Layer(leaf.path, leaf.kind, leaf.stated, constants.leaves[leaf.number], found.gains[leaf.number])
        for leaf in network.leaves
    )
    problems += _wrong_constants(layers, constants, network, written)
    # Two logits of a vector that is off by e are off by at most sqrt(2) e together.
    tolerances = found.error * (math.sqrt(2) * (1 + 2.0**-20))
    differences, excesses = [0.0], []
    for row, logits, tolerance in zip(rows, found.logits, tolerances.tolist(), strict=True):
        checked = _check_row(row, logits, tolerance, constants.pairs, allowed)
        problems += [f"image {row.index}: {problem}" for problem in checked.problems]
        differences.append(checked.margin_difference)
        excesses.append(checked.radius_excess)
    return Verification(
        tuple(row.index for row in rows), tuple(problems), max(differences), max(excesses),
        _largest_gain(pixels, found), constants.lipschitz, float(tolerances.max()), layers,
    )  # fmt: skip


def _wrong_header(written: Records, network: Network, images: int) -> list[str]:
    """Problems of the header: what it states wrongly about the network and the images."""
    problems = []
    if written.header.classes != network.classes:
        problems.append("the records name the classes otherwise than the network does")
    if written.header.name != network.name:
        problems.append(f"the records call the network {written.header.name!r}, its file {network.name!r}")
    if written.header.input_shape != network.input_shape:
        problems.append(
            f"the records speak of inputs of shape {written.header.input_shape}, but the network takes "
            f"{network.input_shape}"
        )
    stated = tuple(
        (layer.path, layer.layer, layer.operator, layer.input_shape, layer.lipschitz)
        for layer in written.header.layers
    )
    if stated != tuple((e.path, e.layer, e.kind, e.input_shape, e.stated) for e in network.leaves):
        problems.append("the records list other operators or constants than the network's file")
    if written.header.images != images:
        problems.append(f"the records speak of a set of {written.header.images} images, but it has {images}")
    return problems


def _wrong_labels(rows: tuple[Row, ...], labels: Tensor | None) -> list[str]:
    """Images that are counted twice, or with another label than their own."""
    counts = Counter(row.index for row in rows)
    problems = [f"image {place}: written {n} times" for place, n in counts.items() if n > 1]
    if labels is None:
        return problems
    if not all(0 <= place < len(labels) for place in counts):
        raise ArgumentError(f"labels: the records point beyond the {len(labels)} images")
    true = labels.tolist()
    return problems + [
        f"image {row.index}: written label {row.label}, but it is {true[row.index]}"
        for row in rows
        if row.label != true[row.index]
    ]


def _wrong_constants(
    layers: tuple[Layer, ...], constants: Constants, network: Network, written: Records
) -> list[str]:
    """Constants that are stated and disproved, or stated and not confirmed."""
    problems = []
    for layer in layers:
        name = f"{layer.path} ({layer.operator}): stated constant {layer.stated:.9g}"
        if not layer.stated >= layer.gain * (1 - 1e-9):
            problems.append(f"{name}, but it pulls two sampled inputs apart {layer.gain:.9g}-fold")
        elif not layer.stated >= layer.derived * (1 - CONSTANT_GAP):
            problems.append(f"{name}, but {layer.derived:.9g} is what can be derived")
    for owner, stated in (("network", network.lipschitz), ("records", written.header.lipschitz)):
        derived = constants.lipschitz
        if not derived * (1 - CONSTANT_GAP) <= stated < math.inf:
            problems.append(
                f"{owner}: stated constant {stated:.9g}, but {derived:.9g} is what can be derived"
            )
    return problems


@dataclass(frozen=True)
class _Checked:
    """What is wrong with one row, and by how much it differs."""

    problems: tuple[str, ...] = ()
    margin_difference: float = 0.0
    radius_excess: float = 0.0


def _check_row(row: Row, logits: Array, tolerance: float, pairs: Array, allowed: float) -> _Checked:
    """Hold one row against its logits; the difference of any two is within `tolerance` of the exact one.

    Its radius may exceed the derived one by the part `allowed`.
    """
    classes, label, other = len(logits), row.prediction, row.runner_up
    if not 0 <= label < classes:
        return _Checked((f"written prediction {label}, but there are {classes} classes",))
    if not (np.isfinite(logits).all() and math.isfinite(tolerance)):
        return _Checked(("nothing can be confirmed, because numbers in the network overflow",))
    margins = logits[label] - logits
    # Of equal logits the first one is the prediction: records may not choose among tied classes.
    if label != (largest := int(logits.argmax())):
        return _Checked((f"written prediction {label}, found {largest}",))
    if classes == 1:
        whole = (other, row.margin, row.radius) == (-1, math.inf, math.inf)
        return _Checked(() if whole else ("written for several classes, but there is one",))
    if not 0 <= other < classes or other == label:
        return _Checked((f"written runner-up {other}, but that is no other class than {label} of {classes}",))
    problems = []
    difference = abs(float(margins[other]) - row.margin)
    if not difference <= 4 * tolerance:
        problems.append(f"written margin {row.margin:.9g}, found {margins[other]:.9g}")
    rivals = np.arange(classes) != label
    closest = float(margins[rivals].min())
    limits = _limits(margins - max(tolerance, row.rounding - 4 * tolerance), pairs[label])
    nearest = int(np.where(rivals, limits, math.inf).argmin())
    derived = float(limits[nearest])
    if limits[other] > derived * (1 + CONSTANT_GAP) + 4 * tolerance / max(pairs[label, other], 1e-300):
        problems.append(f"written runner-up {other}, but {nearest} is the class that limits the radius")
    if row.radius > 0 and closest <= tolerance:
        problems.append(
            f"written radius {row.radius:.9g}, but rounding of up to {tolerance:.3g} hides the margin of "
            f"{closest:.3g}, so that nothing can be confirmed"
        )
    elif not row.radius <= min(derived * (1 + allowed), LARGEST_RADIUS):
        problems.append(f"written radius {row.radius:.9g}, but at most {derived:.9g} can be certified")
    return _Checked(tuple(problems), difference, row.radius - derived)


def _limits(margins: Array, steepness: Array) -> Array:
    """Margins over steepness, at least 0 and at most the largest radius that is ever claimed."""
    with np.errstate(all="ignore"):
        return np.asarray(np.where(margins > 0, margins / steepness, 0.0).clip(max=LARGEST_RADIUS))


def _largest_gain(pixels: Array, found: Evaluation) -> float:
    before, after = pixels.reshape(len(pixels), -1), found.features
    gains = [0.0]
    for i in range(len(before)):
        for j in range(i):
            apart = float(np.linalg.norm(before[i] - before[j]))
            if apart > 0:
                gains.append(float(np.linalg.norm(after[i] - after[j])) / apart)
    return max(gains)


def _pixels(images: Tensor | Callable[[int], Tensor], positions: list[int], shape: tuple[int, ...]) -> Array:
    if not isinstance(images, Tensor):
        images, positions = torch.stack([images(place) for place in positions]), list(range(len(positions)))
    if (
        images.dim() != 4
        or tuple(images.shape[1:]) != shape
        or not 0 <= min(positions) <= max(positions) < len(images)
    ):
        raise ArgumentError(
            f"images: expected at least {max(positions) + 1} of shape {shape}, got {tuple(images.shape)}"
        )
    chosen = images[positions].cpu().numpy()
    # As the data reader does: pixels are float32 numbers, k / 255 rounded once.
    pixels = chosen.astype(np.float32) / np.float32(255) if chosen.dtype == np.uint8 else chosen
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        raise ArgumentError("images: expected pixels in [0, 1]")
    return np.asarray(pixels, dtype=np.float64)
