"""Image classifiers with a guarantee in l2.

The public names load on first use, so that the command line can start, and print its help, without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lipcert import data as data
    from lipcert import errors as errors
    from lipcert import export as export
    from lipcert import models as models
    from lipcert import nn as nn
    from lipcert import operators as operators
    from lipcert import optim as optim
    from lipcert import zoo as zoo
    from lipcert.attacks.audit import audit
    from lipcert.attacks.settings import AttackSettings
    from lipcert.certify.averages import average, mirrored
    from lipcert.certify.certificates import Certificates
    from lipcert.certify.curve import CertifiedAccuracy, certified_accuracy, certified_curve, radius_from_l1
    from lipcert.certify.estimate import lipschitz_estimate
    from lipcert.certify.network import ProvedNetwork
    from lipcert.certify.prove import certify, prove
    from lipcert.certify.saving import save
    from lipcert.data.picture import read_picture
    from lipcert.estimator import RobustClassifier
    from lipcert.models.freezing import freeze
    from lipcert.models.lipconvnet import LipConvnet, lipconvnet
    from lipcert.models.liresnet import LiResNet, liresnet
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
    from lipcert.nn.checks import contract
    from lipcert.nn.composition import Center, Residual
    from lipcert.nn.contract import LipschitzModule, register_activation, register_convolution, register_head
    from lipcert.nn.convolution import LipschitzConv2d, OrthogonalConv2d
    from lipcert.nn.heads import NormalizedLinear, OrthogonalHead
    from lipcert.nn.linear import OrthogonalLinear
    from lipcert.nn.linear_residual import LinearResidualConv2d
    from lipcert.nn.lot import LOT
    from lipcert.nn.normalize import Normalize
    from lipcert.nn.potential import CPL, SLL
    from lipcert.nn.shape import Flatten
    from lipcert.nn.soc import SOC
    from lipcert.runs.config import TrainConfig
    from lipcert.runs.naming import load
    from lipcert.training.loop import train
    from lipcert.training.losses import AnnealingLoss, CertificateLoss, EMMALoss
    from lipcert.training.optimizer import parameter_groups

__all__ = [
    "AOC",
    "AOL",
    "BCOP",
    "BRO",
    "CPL",
    "LOT",
    "SLL",
    "SOC",
    "AOCTranspose2d",
    "AnnealingLoss",
    "AttackSettings",
    "Cayley",
    "Center",
    "CertificateLoss",
    "Certificates",
    "CertifiedAccuracy",
    "EMMALoss",
    "Flatten",
    "GroupSort",
    "Householder",
    "HouseholderChain",
    "HouseholderND",
    "HouseholderOrder",
    "LiResNet",
    "LinearResidualConv2d",
    "LipConvnet",
    "LipschitzConv2d",
    "LipschitzModule",
    "MaxMin",
    "Normalize",
    "NormalizedLinear",
    "OrthogonalConv2d",
    "OrthogonalHead",
    "OrthogonalLinear",
    "ProvedNetwork",
    "Residual",
    "RobustClassifier",
    "TrainConfig",
    "__version__",
    "audit",
    "average",
    "certified_accuracy",
    "certified_curve",
    "certify",
    "contract",
    "freeze",
    "lipconvnet",
    "lipschitz_estimate",
    "liresnet",
    "load",
    "mirrored",
    "parameter_groups",
    "prove",
    "radius_from_l1",
    "read_picture",
    "register_activation",
    "register_convolution",
    "register_head",
    "save",
    "train",
]

_HOMES = {
    "AOC": "nn.aoc",
    "AOCTranspose2d": "nn.aoc_transpose",
    "AOL": "nn.aol",
    "AnnealingLoss": "training.losses",
    "AttackSettings": "attacks.settings",
    "BCOP": "nn.bcop",
    "BRO": "nn.bro",
    "CPL": "nn.potential",
    "Cayley": "nn.cayley",
    "Center": "nn.composition",
    "CertificateLoss": "training.losses",
    "Certificates": "certify.certificates",
    "CertifiedAccuracy": "certify.curve",
    "EMMALoss": "training.losses",
    "Flatten": "nn.shape",
    "GroupSort": "nn.activations",
    "Householder": "nn.activations",
    "HouseholderChain": "nn.activations",
    "HouseholderND": "nn.activations",
    "HouseholderOrder": "nn.activations",
    "LOT": "nn.lot",
    "LiResNet": "models.liresnet",
    "LinearResidualConv2d": "nn.linear_residual",
    "LipConvnet": "models.lipconvnet",
    "LipschitzConv2d": "nn.convolution",
    "LipschitzModule": "nn.contract",
    "MaxMin": "nn.activations",
    "Normalize": "nn.normalize",
    "NormalizedLinear": "nn.heads",
    "OrthogonalConv2d": "nn.convolution",
    "OrthogonalHead": "nn.heads",
    "OrthogonalLinear": "nn.linear",
    "ProvedNetwork": "certify.network",
    "Residual": "nn.composition",
    "RobustClassifier": "estimator",
    "SLL": "nn.potential",
    "SOC": "nn.soc",
    "TrainConfig": "runs.config",
    "audit": "attacks.audit",
    "average": "certify.averages",
    "certified_accuracy": "certify.curve",
    "certified_curve": "certify.curve",
    "contract": "nn.checks",
    "freeze": "models.freezing",
    "lipconvnet": "models.lipconvnet",
    "lipschitz_estimate": "certify.estimate",
    "liresnet": "models.liresnet",
    "load": "runs.naming",
    "mirrored": "certify.averages",
    "parameter_groups": "training.optimizer",
    "prove": "certify.prove",
    "radius_from_l1": "certify.curve",
    "read_picture": "data.picture",
    "register_activation": "nn.contract",
    "register_convolution": "nn.contract",
    "register_head": "nn.contract",
    "save": "certify.saving",
    "train": "training.loop",
}
_PACKAGES = (
    "certify",  # called, this package is the function of its name: see there
    "data",
    "errors",
    "export",
    "models",
    "nn",
    "operators",
    "optim",
    "zoo",
)


if not TYPE_CHECKING:  # checkers would believe it of every name

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        if name in _HOMES:
            value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        elif name == "__version__":
            value = import_module("importlib.metadata").version(__name__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
