"""Networks built from the layers."""

from lipcert.models.freezing import freeze
from lipcert.models.lipconvnet import LipConvnet, LipConvnetConfig, lipconvnet
from lipcert.models.liresnet import LiResNet, LiResNetConfig, liresnet
from lipcert.models.network import Network, NetworkConfig
from lipcert.models.storage import load, save

__all__ = [
    "LiResNet",
    "LiResNetConfig",
    "LipConvnet",
    "LipConvnetConfig",
    "Network",
    "NetworkConfig",
    "freeze",
    "lipconvnet",
    "liresnet",
    "load",
    "save",
]
