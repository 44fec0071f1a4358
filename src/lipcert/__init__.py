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
    from lipcert.certify.certificates import Certificates
    from lipcert.certify.curve import CertifiedAccuracy, certified_accuracy, certified_curve, radius_from_l1
    from lipcert.certify.estimate import lipschitz_estimate
    from lipcert.certify.network import ProvedNetwork
    from lipcert.certify.prove import certify, prove
    from lipcert.estimator import RobustClassifier
    from lipcert.loading import load
    from lipcert.models.freezing import freeze
    from lipcert.models.lipconvnet import LipConvnet, lipconvnet
    from lipcert.models.storage import save
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
    from lipcert.nn.contract import LipschitzModule, register_activation, register_convolution
    from lipcert.nn.convolution import OrthogonalConv2d
    from lipcert.nn.heads import NormalizedLinear, OrthogonalHead
    from lipcert.nn.linear import OrthogonalLinear
    from lipcert.nn.normalize import Normalize
    from lipcert.nn.shape import Flatten
    from lipcert.nn.soc import SOC
    from lipcert.training.config import TrainConfig
    from lipcert.training.loop import train
    from lipcert.training.losses import CertificateLoss

__all__ = [
    "BCOP",
    "SOC",
    "AttackSettings",
    "Cayley",
    "CertificateLoss",
    "Certificates",
    "CertifiedAccuracy",
    "Flatten",
    "GroupSort",
    "Householder",
    "HouseholderChain",
    "HouseholderND",
    "HouseholderOrder",
    "LipConvnet",
    "LipschitzModule",
    "MaxMin",
    "Normalize",
    "NormalizedLinear",
    "OrthogonalConv2d",
    "OrthogonalHead",
    "OrthogonalLinear",
    "ProvedNetwork",
    "RobustClassifier",
    "TrainConfig",
    "__version__",
    "audit",
    "certified_accuracy",
    "certified_curve",
    "certify",
    "freeze",
    "lipconvnet",
    "lipschitz_estimate",
    "load",
    "prove",
    "radius_from_l1",
    "register_activation",
    "register_convolution",
    "save",
    "train",
]

_HOMES = {
    "AttackSettings": "attacks.settings",
    "BCOP": "nn.bcop",
    "Cayley": "nn.cayley",
    "CertificateLoss": "training.losses",
    "Certificates": "certify.certificates",
    "CertifiedAccuracy": "certify.curve",
    "Flatten": "nn.shape",
    "GroupSort": "nn.activations",
    "Householder": "nn.activations",
    "HouseholderChain": "nn.activations",
    "HouseholderND": "nn.activations",
    "HouseholderOrder": "nn.activations",
    "LipConvnet": "models.lipconvnet",
    "LipschitzModule": "nn.contract",
    "MaxMin": "nn.activations",
    "Normalize": "nn.normalize",
    "NormalizedLinear": "nn.heads",
    "OrthogonalConv2d": "nn.convolution",
    "OrthogonalHead": "nn.heads",
    "OrthogonalLinear": "nn.linear",
    "ProvedNetwork": "certify.network",
    "RobustClassifier": "estimator",
    "SOC": "nn.soc",
    "TrainConfig": "training.config",
    "audit": "attacks.audit",
    "certified_accuracy": "certify.curve",
    "certified_curve": "certify.curve",
    "freeze": "models.freezing",
    "lipconvnet": "models.lipconvnet",
    "lipschitz_estimate": "certify.estimate",
    "load": "loading",
    "prove": "certify.prove",
    "radius_from_l1": "certify.curve",
    "register_activation": "nn.contract",
    "register_convolution": "nn.contract",
    "save": "models.storage",
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
