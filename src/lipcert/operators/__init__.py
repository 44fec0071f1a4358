"""Frozen operators: the closed set that everything which speaks of a guarantee works on."""

from lipcert.operators.activations import GroupSort, Householder, HouseholderND, HouseholderOrder
from lipcert.operators.channels import ChannelAffine
from lipcert.operators.convolution import (
    CircularConvolution,
    Convolution,
    SpectralConvolution,
    TransposedConvolution,
)
from lipcert.operators.elementwise import Elementwise
from lipcert.operators.linear import Matrix
from lipcert.operators.operator import EXACT, Flow, Operator, RoundingError, Shape
from lipcert.operators.pooling import Pool, Repeat
from lipcert.operators.potential import GradientStep
from lipcert.operators.proved import Proved
from lipcert.operators.rearrange import (
    ChannelPad,
    ChannelSlice,
    Frame,
    Mirror,
    Reshape,
    SpaceToDepth,
    Transpose,
)
from lipcert.operators.skew import SkewPolynomial
from lipcert.operators.tree import Concatenation, Sequence, WeightedSum

KINDS: dict[str, type[Operator]] = {
    kind.__name__: kind
    for kind in (
        ChannelAffine, ChannelPad, ChannelSlice, CircularConvolution, Concatenation, Convolution, Elementwise,
        Frame, GradientStep, GroupSort, Householder, HouseholderND, HouseholderOrder, Matrix, Mirror, Pool,
        Proved, Repeat, Reshape, Sequence, SkewPolynomial, SpaceToDepth, SpectralConvolution, Transpose,
        TransposedConvolution, WeightedSum,
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
    "Convolution",
    "Elementwise",
    "Flow",
    "Frame",
    "GradientStep",
    "GroupSort",
    "Householder",
    "HouseholderND",
    "HouseholderOrder",
    "Matrix",
    "Mirror",
    "Operator",
    "Pool",
    "Proved",
    "Repeat",
    "Reshape",
    "RoundingError",
    "Sequence",
    "Shape",
    "SkewPolynomial",
    "SpaceToDepth",
    "SpectralConvolution",
    "Transpose",
    "TransposedConvolution",
    "WeightedSum",
]
