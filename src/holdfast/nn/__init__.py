"""Layers: state and arguments; the maths is in holdfast.functional. Importing this fills the registries."""

from holdfast.nn.activations import (
    GroupSort,
    Householder,
    HouseholderChain,
    HouseholderND,
    HouseholderOrder,
    MaxMin,
)
from holdfast.nn.bcop import BCOP
from holdfast.nn.cayley import Cayley
from holdfast.nn.heads import ConstantHead, Head, NormalizedLinear, OrthogonalHead
from holdfast.nn.linear import OrthogonalLinear
from holdfast.nn.lipschitz import (
    ACTIVATIONS,
    CONVOLUTIONS,
    LipschitzModule,
    OrthogonalConv2d,
    register_activation,
    register_convolution,
)
from holdfast.nn.normalize import Normalize
from holdfast.nn.shape import Flatten
from holdfast.nn.soc import SOC

__all__ = [
    "ACTIVATIONS",
    "BCOP",
    "CONVOLUTIONS",
    "SOC",
    "Cayley",
    "ConstantHead",
    "Flatten",
    "GroupSort",
    "Head",
    "Householder",
    "HouseholderChain",
    "HouseholderND",
    "HouseholderOrder",
    "LipschitzModule",
    "MaxMin",
    "Normalize",
    "NormalizedLinear",
    "OrthogonalConv2d",
    "OrthogonalHead",
    "OrthogonalLinear",
    "register_activation",
    "register_convolution",
]
