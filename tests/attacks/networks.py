"""Small classifiers that the attack tests share."""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lipcert as lc
from lipcert.attacks.classifier import Classifier, any_classifier
from lipcert.data import load, to_float
from lipcert.models.lipconvnet import LipConvnet
from lipcert.nn import ConstantHead, Flatten, Normalize

SHAPE = (1, 4, 4)


def linear_network(classes: int = 5) -> nn.Sequential:
    """One std, one matrix: Proposition 1 is an equality, so that the certificate is the distance itself."""
    rows = torch.randn(classes, math.prod(SHAPE))
    return nn.Sequential(Normalize(0.5, 0.25), Flatten(), ConstantHead(rows, torch.randn(classes) / 4))


def tiny_lipconvnet(conv: str = "soc", head: str = "lln") -> LipConvnet:
    return lc.lipconvnet(5, conv, head=head, num_classes=4, width=2, image_size=4, in_channels=1).eval()


def digits(split: str, count: int | None = None) -> tuple[Tensor, Tensor]:
    data = load("digits", split=split)
    return to_float(data.images[:count]), data.labels[:count]


def unconstrained_network(steps: int = 40) -> nn.Sequential:
    """A plain convolutional network without any constraint, trained for a moment on the digits."""
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 4 * 4, 10),
    )  # fmt: skip
    images, labels = digits("train")
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        rows = torch.randint(len(images), (128,))
        loss = F.cross_entropy(network(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def claims_as_if_one_lipschitz(network: nn.Module, images: Tensor, lipschitz: float = 1.0) -> SimpleNamespace:
    """What a paper would claim of a 1-Lipschitz network: margin / sqrt(2), whether or not it is one."""
    with torch.no_grad():
        top = network(images).topk(2)
    radius = (top.values[:, 0] - top.values[:, 1]).double() / (math.sqrt(2) * lipschitz)
    return SimpleNamespace(prediction=top.indices[:, 0], radius=radius)


def liar(truth: nn.Module, lie: nn.Module) -> Classifier:
    """A classifier whose surrogate is another network."""
    honest, dishonest = any_classifier(truth), any_classifier(lie)
    return Classifier(honest.exact, dishonest.surrogate, honest.device)
