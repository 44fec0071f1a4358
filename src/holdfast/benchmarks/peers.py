"""The same LipConvnet-5 shape built from the layers of other packages, where they are installed."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

from torch import nn
from torch.nn.utils import parametrize

from holdfast.benchmarks.literal import LiteralHead, LiteralMaxMin
from holdfast.benchmarks.work import CLASSES


def available() -> dict[str, Callable[[], nn.Module]]:
    """Builders of the peers that can be imported here, by name."""
    peers: dict[str, Callable[[], nn.Module]] = {}
    if find_spec("orthogonium"):
        peers["orthogonium AOC"] = _orthogonium
        peers["orthogonium AOC, exported"] = lambda: exported(_orthogonium())
    if find_spec("deel") and find_spec("deel.torchlip"):
        peers["torchlip spectral"] = _torchlip
    return peers


def exported(model: nn.Module) -> nn.Module:
    """Parametrised weights replaced by their values, as the peers advise for inference."""
    model.eval()
    for module in model.modules():
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return model


def _lipconvnet5(convolution: Callable[[int, int, int], nn.Module], width: int = 32) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(5):
        out = width * 2 ** (stage + 1)
        layers += [convolution(channels, out, 3 if stage < 4 else 2), LiteralMaxMin()]
        channels = out
    return nn.Sequential(*layers, LiteralHead(channels, CLASSES))


def _orthogonium() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

        return _lipconvnet5(
            lambda i, o, k: AdaptiveOrthoConv2d(i, o, k, stride=2, padding=1 if k == 3 else 0)
        )


def _torchlip() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deel.torchlip import SpectralConv2d

        return _lipconvnet5(lambda i, o, k: SpectralConv2d(i, o, k, stride=2, padding=1 if k == 3 else 0))
