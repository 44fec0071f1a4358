"""The same LipConvnet-5 shape built from the layers of other packages, where they are installed."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import nn

from tools.bench.literal import WIDTH, LiteralHead, LiteralMaxMin
from tools.bench.work import CLASSES


def available() -> dict[str, Callable[[], nn.Module]]:
    """Builders of the peers that can be imported here, by name."""
    peers: dict[str, Callable[[], nn.Module]] = {}
    if find_spec("orthogonium"):
        peers["orthogonium AOC"] = _orthogonium
        peers["orthogonium AOC, exported"] = lambda: exported(_orthogonium())
    if find_spec("deel") and find_spec("deel.torchlip"):
        peers["torchlip spectral"] = _torchlip
    return peers


def exported(model: nn.Sequential) -> nn.Sequential:
    """Every parametrised convolution replaced by a plain one with the weights that it computes."""
    return nn.Sequential(
        *(_plain(layer) if isinstance(layer, nn.Conv2d) else layer for layer in model)
    ).eval()


@torch.no_grad()
def _plain(layer: nn.Conv2d) -> nn.Conv2d:
    weight = layer.eval().weight.detach()
    plain = nn.Conv2d(
        weight.shape[1],
        weight.shape[0],
        tuple(weight.shape[2:]),  # type: ignore[arg-type]
        stride=layer.stride,  # type: ignore[arg-type]
        padding=layer.padding,  # type: ignore[arg-type]
        padding_mode=layer.padding_mode,
    )
    plain.weight.copy_(weight)
    return plain


def _lipconvnet5(convolution: Callable[[int, int, int], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(5):
        out = WIDTH * 2 ** (stage + 1)
        layers += [convolution(channels, out, 3 if stage < 4 else 2), LiteralMaxMin()]
        channels = out
    return nn.Sequential(*layers, LiteralHead(channels, CLASSES))


def _orthogonium() -> nn.Sequential:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

        return _lipconvnet5(
            lambda i, o, k: AdaptiveOrthoConv2d(i, o, k, stride=2, padding=1 if k == 3 else 0)
        )


def _torchlip() -> nn.Sequential:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from deel.torchlip import SpectralConv2d

        return _lipconvnet5(lambda i, o, k: SpectralConv2d(i, o, k, stride=2, padding=1 if k == 3 else 0))
