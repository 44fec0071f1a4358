"""Layers: state and arguments; the maths is in lipcert.kernels. Importing this fills the registries."""

from lipcert.nn.activations import (
    GroupSort,
    Householder,
    HouseholderChain,
    HouseholderND,
    HouseholderOrder,
    MaxMin,
)
from lipcert.nn.aoc import AOC
from lipcert.nn.aoc_transpose import AOCTranspose2d
from lipcert.nn.aol import AOL
from lipcert.nn.bcop import BCOP
from lipcert.nn.bro import BRO
from lipcert.nn.cayley import Cayley
from lipcert.nn.composition import Center, Residual
from lipcert.nn.contract import (
    ACTIVATIONS,
    CONVOLUTIONS,
    HEADS,
    LipschitzModule,
    register_activation,
    register_convolution,
    register_head,
)
from lipcert.nn.convolution import LipschitzConv2d, OrthogonalConv2d
from lipcert.nn.heads import ConstantHead, Head, NormalizedLinear, OrthogonalHead
from lipcert.nn.linear import OrthogonalLinear
from lipcert.nn.linear_residual import LinearResidualConv2d
from lipcert.nn.lot import LOT
from lipcert.nn.normalize import Normalize
from lipcert.nn.potential import CPL, SLL
from lipcert.nn.shape import Flatten
from lipcert.nn.soc import SOC

__all__ = [
    "ACTIVATIONS",
    "AOC",
    "AOL",
    "BCOP",
    "BRO",
    "CONVOLUTIONS",
    "CPL",
    "HEADS",
    "LOT",
    "SLL",
    "SOC",
    "AOCTranspose2d",
    "Cayley",
    "Center",
    "ConstantHead",
    "Flatten",
    "GroupSort",
    "Head",
    "Householder",
    "HouseholderChain",
    "HouseholderND",
    "HouseholderOrder",
    "LinearResidualConv2d",
    "LipschitzConv2d",
    "LipschitzModule",
    "MaxMin",
    "Normalize",
    "NormalizedLinear",
    "OrthogonalConv2d",
    "OrthogonalHead",
    "OrthogonalLinear",
    "Residual",
    "register_activation",
    "register_convolution",
    "register_head",
]
