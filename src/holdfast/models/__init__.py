"""Networks built from the layers."""

from holdfast.models.freezing import freeze
from holdfast.models.lipconvnet import LipConvnet, LipConvnetConfig, lipconvnet
from holdfast.models.storage import load, save

__all__ = ["LipConvnet", "LipConvnetConfig", "freeze", "lipconvnet", "load", "save"]
