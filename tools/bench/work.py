"""The work that is timed beside training steps: inference and certificates, by each contender."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.certify.network import ProvedNetwork
from lipcert.certify.network_file import read_network
from lipcert.certify.prove import prove
from lipcert.kernels.margins import certificate, pair_distances
from lipcert.models.freezing import FrozenNetwork, freeze
from lipcert.models.lipconvnet import lipconvnet
from lipcert.operators import Matrix, Sequence
from tools.bench.literal import WIDTH, LiteralHead, LiteralMaxMin, literal_lipconvnet

CLASSES = 10


def inference(model: nn.Module, *, batch: int = 256) -> Callable[[], Tensor]:
    """A forward pass in evaluation mode."""
    images = _images(batch)
    model.eval()

    def run() -> Tensor:
        with torch.no_grad():
            result: Tensor = model(images)
        return result

    return run


def inference_with_margins(frozen: FrozenNetwork, *, batch: int = 256) -> Callable[[], Tensor]:
    """A forward pass, and the margin of the predicted class over the distance of the rows.

    That is the radius before it is divided by the constant and rounding is taken off, as the paper has it.
    """
    images = _images(batch)
    assert isinstance(frozen.operator, Sequence)
    head = frozen.operator.parts[-1]
    assert isinstance(head, Matrix)
    distances = pair_distances(head.weight)

    def run() -> Tensor:
        with torch.no_grad():
            logits = frozen(images)
            return certificate(logits, logits.argmax(1), distances)

    return run


def proved_certificates(network: ProvedNetwork, *, batch: int = 256) -> Callable[[], Tensor]:
    """Certificates in float64, rounding included."""
    images = _images(batch)
    return lambda: network.certify(images).radius


def loaded(network: nn.Module) -> tuple[ProvedNetwork, float, float]:
    """The network proved, written to a file and read back; seconds of the proof and of the reading."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.proved.safetensors"
        start = time.perf_counter()
        proved = prove(network)
        proving = time.perf_counter() - start
        proved.save(file)
        start = time.perf_counter()
        read = read_network(file)
        return read, proving, time.perf_counter() - start


def ours(depth: int, *, conv: str = "soc", activation: str = "hh1", **options: Any) -> nn.Module:
    """LipConvnet of lipcert, the same for every run; `options` are those of its convolutions."""
    torch.manual_seed(0)
    return lipconvnet(
        depth=depth, conv=conv, activation=activation, head="lln", num_classes=CLASSES, width=WIDTH, **options
    )


def ours_frozen(depth: int, **options: Any) -> FrozenNetwork:
    """The inference form of the same network."""
    return freeze(ours(depth, **options).eval())


def unconstrained(*, behind_space_to_depth: bool) -> nn.Module:
    """LipConvnet-5 of plain convolutions with the shapes of explicit kernels.

    Args:
        behind_space_to_depth: 3 x 3 kernels on four times the channels, as BCOP and AOL have them, or strided
            3 x 3 kernels, as AOC and other packages do.
    """
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(5):
        out, last = WIDTH * 2 ** (stage + 1), stage == 4
        if behind_space_to_depth or last:
            size = 1 if last else 3
            layers += [nn.PixelUnshuffle(2), nn.Conv2d(4 * channels, out, size, padding=size // 2)]
        else:
            layers.append(nn.Conv2d(channels, out, 3, stride=2, padding=1))
        layers.append(LiteralMaxMin())
        channels = out
    return nn.Sequential(*layers, LiteralHead(channels, CLASSES))


def literal(depth: int) -> nn.Module:
    """LipConvnet of the paper's formulation, its power iterations settled as training leaves them."""
    torch.manual_seed(0)
    model = literal_lipconvnet(depth, CLASSES)
    with torch.no_grad():
        model.train()(_images(2))
    return model


def _images(count: int) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
