"""Certificates: proved networks, radii, records."""

# `lipcert.certify` is the public name of a function and the name of this package. Python binds a package to
# its parent whenever any part of it is imported, so the function would be gone after the first such import.
# The package is therefore callable: a call is a call of `lipcert.certify.prove.certify`, and so is its help.

import inspect
import sys
from types import ModuleType

from lipcert.certify.certificates import Certificates
from lipcert.certify.curve import CertifiedAccuracy, certified_accuracy, certified_curve, radius_from_l1
from lipcert.certify.estimate import layer_estimates, lipschitz_estimate
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import certify, prove

__all__ = [
    "Certificates",
    "CertifiedAccuracy",
    "ProvedNetwork",
    "certified_accuracy",
    "certified_curve",
    "certify",
    "layer_estimates",
    "lipschitz_estimate",
    "prove",
    "radius_from_l1",
]


class _CallablePackage(ModuleType):
    __call__ = staticmethod(certify)
    __signature__ = inspect.signature(certify)


sys.modules[__name__].__class__ = _CallablePackage
__doc__ = certify.__doc__ or ""
