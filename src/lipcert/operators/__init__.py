"""Frozen operators: the closed set that everything which speaks of a guarantee works on."""

from lipcert.operators.activations import GroupSort, Householder, HouseholderND, HouseholderOrder
from lipcert.operators.channels import ChannelAffine
from lipcert.operators.convolution import CircularConvolution, SpectralConvolution
from lipcert.operators.linear import Matrix
from lipcert.operators.operator import EXACT, Flow, Operator, RoundingError, Shape
from lipcert.operators.proved import Proved
from lipcert.operators.rearrange import ChannelPad, ChannelSlice, Mirror, Reshape, SpaceToDepth
from lipcert.operators.skew import SkewPolynomial
from lipcert.operators.tree import Concatenation, Sequence, WeightedSum

KINDS: dict[str, type[Operator]] = {
    kind.__name__: kind
    for kind in (
        ChannelAffine, ChannelPad, ChannelSlice, CircularConvolution, Concatenation, GroupSort, Householder,
        HouseholderND, HouseholderOrder, Matrix, Mirror, Proved, Reshape, Sequence, SkewPolynomial,
        SpaceToDepth, SpectralConvolution, WeightedSum,
    )
}  # fmt: skip
"""The closed set: what a proof may rest on, and what a file may hold."""

__all__ = [
    "EXACT",
    "KINDS",
    "ChannelAffine",
    "ChannelPad",
    "ChannelSlice",
    "CircularConvolution",
    "Concatenation",
    "Flow",
    "GroupSort",
    "Householder",
    "HouseholderND",
    "HouseholderOrder",
    "Matrix",
    "Mirror",
    "Operator",
    "Proved",
    "Reshape",
    "RoundingError",
    "Sequence",
    "Shape",
    "SkewPolynomial",
    "SpaceToDepth",
    "SpectralConvolution",
    "WeightedSum",
]
