"""What an exported network subtracts from margins for float32: measured on noise, and never nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.export import export_onnx, load, onnx_file
from lipcert.export.classifier import run
from lipcert.export.onnx_file import trial_images
from lipcert.models.lipconvnet import lipconvnet
from lipcert.nn.shape import Flatten

SHAPE = (3, 8, 8)


def some_network() -> ProvedNetwork:
    return prove(lipconvnet(5, "bcop", "hh1", "lln", 4, 4, 8, in_channels=3))


def test_the_difference_is_the_largest_on_noise(tmp_path: Path) -> None:
    network = some_network()
    images = trial_images(SHAPE)
    assert images.shape == (64, *SHAPE)
    assert set(images[::2].flatten().tolist()) == {0.0, 1.0}
    assert len(set(images[1::2].flatten().tolist())) > 1000
    written = export_onnx(network, tmp_path / "a.onnx")
    largest = np.abs(load(written.path).logits(images) - network.logits(images).numpy()).max()
    assert written.difference == pytest.approx(largest, rel=1e-6)


def linear(weight: Tensor, bias: Tensor, shape: tuple[int, ...]) -> ProvedNetwork:
    layer = nn.Linear(weight.shape[1], len(weight))
    layer.load_state_dict({"weight": weight, "bias": bias})
    return prove(nn.Sequential(Flatten(), layer), shape)


def test_the_rounding_term_without_a_difference(tmp_path: Path) -> None:
    """One pixel times 1 and -1 is exact in float32, but points of a ball are rounded before they enter."""
    network = linear(torch.tensor([[1.0], [-1.0]]), torch.zeros(2), (1, 1, 1))
    written = export_onnx(network, tmp_path / "a.onnx")
    assert written.difference == 0
    # The largest logit is 1; the pair bound 2, for one pixel.
    assert written.rounding == pytest.approx(40 * 2.0**-24 * (1 + 2 / 2), rel=1e-6)
    nothing = export_onnx(linear(torch.zeros(2, 1), torch.zeros(2), (1, 1, 1)), tmp_path / "a.onnx")
    assert nothing.rounding >= 40 * 2.0**-126
    assert (load(nothing.path).certify(torch.ones(1, 1, 1, 1)).radius == 0).all()


def test_the_rounding_term_of_a_large_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_measure", lambda network, content: (0.5, 1.0))
    assert export_onnx(some_network(), tmp_path / "a.onnx").rounding == 40 * 0.5


@pytest.mark.parametrize("black", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_certificates_hold_at_their_boundary_in_float32(seed: int, black: bool, tmp_path: Path) -> None:
    """Linear networks: the nearest image of another class is as near as certified, but for the rounding."""
    torch.manual_seed(seed)
    weight, bias = torch.randn(2, 48), torch.randn(2)
    exported = load(export_onnx(linear(weight, bias, (3, 4, 4)), tmp_path / "a.onnx").path)
    image = torch.zeros(1, 3, 4, 4) if black else torch.rand(1, 3, 4, 4)
    found = exported.certify(image)
    assert found.radius > 0
    way = (weight[found.runner_up] - weight[found.prediction]).double().view_as(image)
    for short in (0, 1e-8, 1e-7, 1e-6, 1e-5):  # until the nearest float32 image is inside of the ball
        moved = (image.double() + way * (found.radius * (1 - short) / way.norm())).float()
        if (moved.double() - image.double()).norm() <= found.radius:
            break
    else:
        pytest.fail("no image inside of the ball was found")
    logits = run(exported._session, moved.numpy())
    assert int(logits.argmax()) == int(found.prediction)
