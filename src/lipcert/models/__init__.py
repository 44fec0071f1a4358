"""Networks built from the layers."""

from lipcert.models.freezing import freeze
from lipcert.models.lipconvnet import LipConvnet, LipConvnetConfig, lipconvnet
from lipcert.models.storage import load, save

__all__ = ["LipConvnet", "LipConvnetConfig", "freeze", "lipconvnet", "load", "save"]
