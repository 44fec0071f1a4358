"""Layers: state and arguments; the maths is in lipcert.kernels. Importing this fills the registries."""

from lipcert.nn.activations import (
    GroupSort,
    Householder,
    HouseholderChain,
    HouseholderND,
    HouseholderOrder,
    MaxMin,
)
from lipcert.nn.bcop import BCOP
from lipcert.nn.cayley import Cayley
from lipcert.nn.contract import (
    ACTIVATIONS,
    CONVOLUTIONS,
    LipschitzModule,
    register_activation,
    register_convolution,
)
from lipcert.nn.convolution import OrthogonalConv2d
from lipcert.nn.heads import ConstantHead, Head, NormalizedLinear, OrthogonalHead
from lipcert.nn.linear import OrthogonalLinear
from lipcert.nn.normalize import Normalize
from lipcert.nn.shape import Flatten
from lipcert.nn.soc import SOC

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
