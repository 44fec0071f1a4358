"""From a network to an ONNX file, measured against the network before it is written."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from lipcert.certify.exact import ExactNetwork, exact_network
from lipcert.certify.radii import MEASURED_FACTOR, MEASURED_IMAGES, full_precision
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.export import activations, linear  # noqa: F401 (each registers its layers with emit)
from lipcert.export.classifier import run, session
from lipcert.export.graph import INPUT, Graph, need_runtime
from lipcert.export.layers import emit
from lipcert.export.metadata import Metadata
from lipcert.files import write_or_explain
from lipcert.nn.frozen_skew import FrozenMatrix, FrozenSeries, matrix_is_cheaper
from lipcert.nn.heads import ConstantHead
from lipcert.nn.lipschitz import LipschitzModule, Shape
from lipcert.nn.walk import input_shape_of, unwrap_unchanged

LARGEST_FILE = 2**31 - 1
TOLERANCE = 1e-4
"""Largest difference to the float64 logits, relative to the largest of them (or to 1), that is let pass."""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: the file.
        size: its length in bytes.
        lipschitz: proved bound of the network, from pixels to features.
        difference: largest difference between float32 logits of the file and float64 logits of the network.
    """

    path: Path
    size: int
    lipschitz: float
    difference: float


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None = None,
    input_shape: Shape | None = None,
) -> Exported:
    """Write a network as ONNX: plain operators, any batch length, and what certifies its predictions again.

    What is written is the float64 network that `certify` speaks of, in the form that `freeze` finds fastest
    and rounded to float32. Before that, onnx checks the file and onnxruntime runs it on 64 images (noise,
    half of it black and white); 40 times the largest difference to float64 makes the rounding term that the
    file carries, as in ``certify(precision="float32")``.

    Guarantee: the stored bound and distances are proved for the network in float64. Certificates from the
    file's float32 logits are measured, not proved.

    Args:
        model: an `nn.Sequential` of lipcert's layers that ends in a head.
        path: the file; an existing one is replaced.
        classes: names of the classes; by default "class 0", "class 1", ...
        input_shape: shape of one image; by default the one the model was built for.

    Raises:
        ArgumentError: the extra `export` is not installed, a layer has no ONNX form, the number of names is
            not that of the logits, or the file would be larger than 2 GB.
        NotProvedError: a layer without a proved bound, or a file that computes something else.
        CheckpointError: the folder does not exist or cannot be written to.
    """
    need_runtime()
    graph = Graph()
    inner = copy.deepcopy(unwrap_unchanged(model)).cpu()
    shape = input_shape_of(inner, input_shape)
    network = exact_network(inner, shape)
    if network.head is None:
        raise NotProvedError("model: expected a network that ends in a head, so that its margins are known")
    count = network.head.num_classes
    names = (
        tuple(f"class {number}" for number in range(count)) if classes is None else tuple(map(str, classes))
    )
    if len(names) != count:
        raise ArgumentError(f"classes: expected {count} names, one for each logit, got {len(names)}")
    onnx_model = graph.finish(_emit_all(network, network.head, graph), shape, count)
    if onnx_model.ByteSize() > LARGEST_FILE:
        raise ArgumentError(
            f"model: its ONNX form has {onnx_model.ByteSize() / 1e9:.1f} GB and a file holds 2; use a "
            "smaller width"
        )
    graph.onnx.checker.check_model(onnx_model, full_check=True)
    difference = _difference(network, onnx_model.SerializeToString(), shape)
    metadata = Metadata(
        version=version("lipcert"),
        classes=names,
        input_shape=shape,
        lipschitz=network.lipschitz,
        distances=network.head.pair_distance_bounds().cpu().numpy(),
        # A margin is a difference of two logits, taken at the image and at a point of the ball.
        rounding=2 * 2 * MEASURED_FACTOR * difference,
    )
    graph.onnx.helper.set_model_props(onnx_model, metadata.to_properties())
    content = onnx_model.SerializeToString()
    write_or_explain(Path(path), content)
    return Exported(Path(path), len(content), network.lipschitz, difference)


def _emit_all(network: ExactNetwork, head: ConstantHead, graph: Graph) -> str:
    value = INPUT
    for proved in network.layers:
        value = emit(_fastest(proved.layer, proved.input_shape), graph, value, proved.input_shape)
    return emit(head, graph, value, (head.in_features,))


def _fastest(layer: LipschitzModule, shape: Shape) -> LipschitzModule:
    """A matrix where that is less work, as `SOC.freeze` has it; it is made in float32, which is quick."""
    if type(layer) is FrozenSeries and matrix_is_cheaper(layer, shape):
        return FrozenMatrix.of(copy.deepcopy(layer).float(), shape)
    return layer


def _difference(network: ExactNetwork, content: bytes, shape: Shape) -> float:
    """Largest difference of a logit on images that were drawn once and for all."""
    images = _trial_images(shape)
    with torch.no_grad(), full_precision(torch.device("cpu")):
        expected = network.classifier()(images.double())
    found = torch.from_numpy(run(session(content), images.numpy()))
    difference = float((found.double() - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise NotProvedError(
            f"model: its ONNX form differs by {difference:.2g} from the network in float64; its weights are "
            "too large for float32, or the ONNX form of a layer is wrong"
        )
    return difference


def _trial_images(shape: Shape) -> Tensor:
    """Noise, half of it black and white: no image in [0, 1] is farther from the middle."""
    noise = torch.rand(MEASURED_IMAGES, *shape, generator=torch.Generator().manual_seed(0), device="cpu")
    noise[::2] = noise[::2].round()
    return noise
