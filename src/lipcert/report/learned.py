"""The learned angles of the Householder activations, read from the saved file alone."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lipcert.errors import CheckpointError
from lipcert.functional.activations import householder
from lipcert.functional.householder import householder_chain, householder_order
from lipcert.functional.plane import PlaneMap


@dataclass(frozen=True)
class LearnedAngles:
    """Angles of one activation layer.

    Args:
        path: where the layer stands in the network.
        kind: registered name of the activation.
        theta: (..., pairs), radians.
        widths: (2, order - 1, pairs) for activations of higher order, else None.
    """

    path: str
    kind: str
    theta: Tensor
    widths: Tensor | None

    def function(self, pair: int) -> PlaneMap:
        """The activation as it acts on the plane of one pair of channels."""
        theta = self.theta[..., pair : pair + 1]
        if self.widths is not None:
            widths = self.widths[..., pair : pair + 1]
            return lambda points: householder_order(points, theta, widths)
        if theta.dim() > 1:
            return lambda points: householder_chain(points, theta)
        return lambda points: householder(points, theta)


def read_angles(file: Path) -> tuple[LearnedAngles, ...]:
    """All layers of a saved network that have angles, in their order; none for MaxMin networks.

    Raises:
        CheckpointError: the file is missing, damaged or not one of lipcert's.
    """
    try:
        with safe_open(file, framework="pt") as content:
            header = json.loads((content.metadata() or {})["lipcert"])
            names = [name for name in content.keys() if name.endswith(".theta")]  # noqa: SIM118 (no mapping)
            known = set(content.keys())
            kind = str(header["config"]["activation"])
            layers = []
            for name in sorted(names, key=_in_order):
                path = name.removesuffix(".theta")
                widths = f"{path}.widths"
                layers.append(
                    LearnedAngles(
                        path,
                        kind,
                        content.get_tensor(name).double(),
                        content.get_tensor(widths).double() if widths in known else None,
                    )
                )
            return tuple(layers)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as a network of lipcert ({error})") from error


def unusual_pairs(layers: tuple[LearnedAngles, ...]) -> list[tuple[LearnedAngles, int]]:
    """Three pairs of channels that show the range of what was learned: smallest, median, largest angle."""
    flat = torch.cat([layer.theta.reshape(-1, layer.theta.shape[-1])[0] for layer in layers])
    owners = [(layer, pair) for layer in layers for pair in range(layer.theta.shape[-1])]
    order = flat.argsort().tolist()
    return [owners[order[place]] for place in sorted({0, len(order) // 2, len(order) - 1})]


def _in_order(name: str) -> list[Any]:
    """Key that sorts stage10 behind stage9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
