"""From a proved network to an ONNX file, measured against the network before it is written."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.errors import ArgumentError, NotProvedError, import_extra
from lipcert.export import activations, linear  # noqa: F401 (each registers its operators with emit)
from lipcert.export.classifier import run, session
from lipcert.export.emit import emit
from lipcert.export.graph import INPUT, Graph
from lipcert.export.metadata import Metadata, seal
from lipcert.files import write_or_explain
from lipcert.operators.operator import Shape

LARGEST_FILE = 2**31 - 1
TRIAL_IMAGES = 64
TOLERANCE = 1e-4
"""Largest difference to the float64 logits, relative to the largest of them (or to 1), that is let pass."""
SAFETY = 2 * 2 * 10
"""From the error of a logit to what is subtracted from a margin, which is a difference of two logits, taken
at the image and at a point of the ball; and ten times that, since other images may round worse."""
UNIT, SMALLEST = 2.0**-24, 2.0**-126
"""Of float32: the largest relative rounding error, and the smallest number that no processor takes for 0."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: the file.
        size: its length in bytes.
        lipschitz: proved bound of the network, from pixels to features.
        difference: largest difference between float32 logits of the file and float64 logits of the network.
        rounding: what the file subtracts from every margin for such differences.
        network_sha256: hash of the proved network.
    """

    path: Path
    size: int
    lipschitz: float
    difference: float
    rounding: float
    network_sha256: str


def export_onnx(
    network: ProvedNetwork | nn.Module,
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None = None,
    input_shape: Shape | None = None,
) -> Exported:
    """Write a network as ONNX: plain operators, any batch length, and what certifies its predictions again.

    What is written is the proved float64 network, each operator in the form that is fastest and rounded to
    float32. Before that, onnx checks the file and onnxruntime runs it on 64 images of noise, half of them
    black and white; 40 times the largest difference to float64, and no less than a floor, makes the rounding
    term that the file carries. A hash binds that and all else that the file states to its graph.

    Guarantee: the stored pair bounds are proved for the network in float64. Certificates from the file's
    float32 logits are measured, not proved.

    Args:
        network: a proved network, or a model as `lipcert.prove` takes it.
        path: the file; an existing one is replaced.
        classes: names of the classes; by default those of the proved network.
        input_shape: shape of one image, for a model that does not say which it was built for.

    Raises:
        ArgumentError: the extra `export` is not installed, an operator has no ONNX form, the number of names
            is not that of the logits, the shape is not the proved one, or the file would be larger than 2 GB.
        NotProvedError: a layer without a proved bound, or a file that computes something else.
        CheckpointError: the folder does not exist or cannot be written to.
    """
    import_extra("onnxruntime", "onnx", "export")
    graph = Graph()
    proved = network if isinstance(network, ProvedNetwork) else prove(network, input_shape, classes)
    digest, shape = proved.hash, proved.input_shape
    proved = proved.to("cpu")
    if input_shape is not None and tuple(input_shape) != shape:
        raise ArgumentError(
            f"input_shape: the network was proved for images of shape {shape}, got {tuple(input_shape)}; "
            "leave it out"
        )
    names = proved.classes if classes is None else tuple(map(str, classes))
    if len(names) != len(proved.classes):
        raise ArgumentError(
            f"classes: expected {len(proved.classes)} names, one for each logit, got {len(names)}"
        )
    with torch.no_grad():
        model = graph.finish(emit(proved.operator, graph, INPUT, shape), shape, len(names))
    if model.ByteSize() > LARGEST_FILE:
        raise ArgumentError(
            f"network: its ONNX form has {model.ByteSize() / 1e9:.1f} GB and a file holds 2; use a smaller "
            "width"
        )
    graph.onnx.checker.check_model(model, full_check=True)
    difference, largest = _measure(proved, model.SerializeToString())
    rounding = max(SAFETY * difference, _smallest_rounding(proved, largest))
    metadata = Metadata(
        version=version("lipcert"),
        network_sha256=digest,
        classes=names,
        input_shape=shape,
        lipschitz=proved.lipschitz,
        pair_bounds=proved.pair_bounds.numpy(),
        rounding=rounding,
    )
    graph.onnx.helper.set_model_props(model, metadata.to_properties())
    content = seal(model.SerializeToString())
    write_or_explain(Path(path), content)
    return Exported(Path(path), len(content), proved.lipschitz, difference, rounding, digest)


def _measure(network: ProvedNetwork, content: bytes) -> tuple[float, float]:
    """Largest difference of a logit, and largest logit, on images that were drawn once and for all."""
    images = trial_images(network.input_shape)
    expected = network.logits(images)
    found = torch.from_numpy(run(session(content), images.numpy()))
    difference, largest = float((found.double() - expected).abs().max()), float(expected.abs().max())
    if not difference <= TOLERANCE * max(1.0, largest):
        raise NotProvedError(
            f"network: its ONNX form differs by {difference:.2g} from the network in float64; its weights "
            "are too large for float32, or the ONNX form of an operator is wrong"
        )
    return difference, largest


def _smallest_rounding(network: ProvedNetwork, largest: float) -> float:
    r"""What is subtracted from margins even if no difference was seen: trial images may round well by chance.

    With u = 2^-24, n numbers in an image and D the largest pair bound:

    - the last operation rounds a logit f by up to u |f|;
    - a point of the ball is rounded to float32 before it enters, pixel by pixel, by up to u ||x|| <=
      u sqrt(n) in all, and the normalisation rounds as much again; that moves a margin by up to D u sqrt(n),
      which is as if each of its two logits had moved by D u sqrt(n) / 2;
    - numbers below 2^-126 may be taken for zero.

    These are errors that any network makes, taken as the error of a logit. Layers in between add theirs,
    which is what is measured.
    """
    steepest = float(network.pair_bounds.max()) * math.sqrt(math.prod(network.input_shape))
    return SAFETY * (UNIT * (largest + steepest / 2) + SMALLEST)


def trial_images(shape: Shape) -> Tensor:
    """Noise, half of it black and white: no image in [0, 1] is farther from the middle."""
    noise = torch.rand(TRIAL_IMAGES, *shape, generator=torch.Generator().manual_seed(0), device="cpu")
    noise[::2] = noise[::2].round()
    return noise
