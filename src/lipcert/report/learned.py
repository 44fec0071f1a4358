"""The learned angles of the Householder activations, from the file of the proved network."""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from lipcert.certify.network import ProvedNetwork
from lipcert.kernels.plane import PlaneMap
from lipcert.operators import Householder, HouseholderOrder, Operator, Sequence


@dataclass(frozen=True)
class LearnedAngles:
    """Angles of one activation layer.

    Args:
        path: where the layer stands in the network.
        links: its reflections, one after the other; one of higher order stands alone.
    """

    path: str
    links: tuple[Householder | HouseholderOrder, ...]

    @property
    def theta(self) -> Tensor:
        """(links, pairs), radians."""
        return torch.stack([link.theta for link in self.links])

    def function(self, pair: int) -> PlaneMap:
        """The activation as it acts on the plane of one pair of channels."""
        links: list[Operator] = [
            link.with_arrays(lambda array: array[..., pair : pair + 1]) for link in self.links
        ]
        return Sequence.of(*links).apply


def learned_angles(network: ProvedNetwork) -> tuple[LearnedAngles, ...]:
    """All layers that have angles, in their order; none for MaxMin networks."""
    turning = [
        (leaf.path, leaf.operator)
        for leaf in network.layers
        if isinstance(leaf.operator, (Householder, HouseholderOrder))
    ]
    return tuple(
        LearnedAngles(path, tuple(operator for _, operator in group))
        for path, group in groupby(turning, key=lambda pair: pair[0])
    )


def unusual_pairs(layers: tuple[LearnedAngles, ...]) -> list[tuple[LearnedAngles, int]]:
    """Three pairs of channels that show the range of what was learned: smallest, median, largest angle."""
    flat = torch.cat([layer.theta[0] for layer in layers])
    owners = [(layer, pair) for layer in layers for pair in range(layer.theta.shape[-1])]
    order = flat.argsort().tolist()
    return [owners[order[place]] for place in sorted({0, len(order) // 2, len(order) - 1})]
