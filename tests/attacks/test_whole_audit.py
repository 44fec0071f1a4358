"""Real images under the whole audit: all digits, and CIFAR-10 where data and a network are at hand."""

import os
import re
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.attacks.audit import audit
from lipcert.data import load, to_float
from lipcert.zoo import proved_networks
from tests.attacks.networks import digits


def trained_on_digits(steps: int) -> torch.nn.Module:
    model = lc.lipconvnet(5, num_classes=10, width=8, image_size=8, in_channels=1)
    images, labels = digits("train")
    loss_function = lc.CertificateLoss(gamma=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps, cycle_momentum=False)
    for _ in range(steps):
        rows = torch.randint(len(images), (128,))
        loss = loss_function(model, model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.mark.slow
def test_all_digits(tmp_path: Path) -> None:
    model = trained_on_digits(150)
    images, labels = digits("test")
    cert = lc.certify(model, images)
    assert (cert.prediction == labels).double().mean() > 0.9, "the network has learnt nothing"
    summary = audit(model, images, cert, out=tmp_path).summary()
    assert summary["images"] == 360
    assert summary["broken"] == 0
    assert summary["found"] == 360
    # The attacks would have come within a break: their best points are about as far as the certificates.
    assert 1 <= summary["ratio"]["smallest"] < 1.2
    assert summary["ratio"]["median"] < 2
    assert summary["points_inside"] > 10 * 360


def cifar_network() -> str | None:
    """$LIPCERT_AUDIT_MODEL, or the first CIFAR-10 network of the zoo."""
    return os.environ.get("LIPCERT_AUDIT_MODEL") or next(
        (name for name in proved_networks() if re.search("cifar10(?!0)", name)), None
    )


@pytest.mark.slow
@pytest.mark.cifar
@pytest.mark.timeout(14400)
@pytest.mark.skipif(
    not os.environ.get("LIPCERT_DATA"), reason="LIPCERT_DATA does not name a folder with CIFAR-10"
)
@pytest.mark.skipif(
    cifar_network() is None, reason="no CIFAR-10 network: set LIPCERT_AUDIT_MODEL to a saved one"
)
def test_a_thousand_cifar_images(tmp_path: Path) -> None:
    name = cifar_network()
    assert name is not None
    images = to_float(load("cifar10", split="test").images[:1000])
    summary = audit(lc.load(name), images, out=tmp_path).summary()
    assert summary["images"] == 1000
    assert summary["broken"] == 0
    assert summary["found"] > 990
    assert summary["points_inside"] > 10 * 1000
