"""The estimate that selects the best model, against margins by hand."""

import math

import pytest
import torch

import lipcert as lc
from lipcert.data import load, to_float
from lipcert.errors import ArgumentError
from lipcert.runs.config import TrainConfig
from lipcert.training.devices import make_fabric
from lipcert.training.evaluation import held_out_accuracy, selection_key


def test_held_out_accuracy_counts_margins_over_distances():
    digits = load("digits", split="test")
    torch.manual_seed(0)
    model = lc.lipconvnet(depth=5, head="lln", num_classes=10, width=2, image_size=8, in_channels=1).eval()
    with torch.no_grad():
        model.head.bias.add_(0.5 * torch.randn(10))  # so that some digits are certified beyond each radius
        logits = model(to_float(digits.images))
        rows = torch.nn.functional.normalize(model.head.weight, dim=1)
    distances = torch.cdist(rows, rows)
    radii = []
    for scores, label in zip(logits, digits.labels.tolist(), strict=True):
        others = [i for i in range(10) if i != label]
        radii.append(min(float((scores[label] - scores[i]) / distances[label, i]) for i in others))
    radius = torch.tensor(radii) * float(model.normalize.std.min())
    found = held_out_accuracy(model, digits, 64, make_fabric(TrainConfig(data="digits", threads=1)))
    assert math.isclose(found["standard"], float((radius > 0).double().mean()))
    for name, value in (("36/255", 36 / 255), ("72/255", 72 / 255), ("108/255", 108 / 255)):
        assert math.isclose(found["certified"][name], float((radius > value).double().mean())), name
    # Wrong digits count as 0; each radius is rounded to a millionth, and torch's float32 to its own eps.
    assert abs(found["mean_radius"] - float(radius.double().clamp(min=0).mean())) < 2e-6
    shares = [found["standard"], *found["certified"].values()]
    assert len(set(shares)) == 4, "the test sees no difference between the radii"
    assert found["images"] == len(digits)


def test_numbers_that_are_not_finite_count_as_no_radius(monkeypatch):
    digits = load("digits", split="test").subset(range(4))
    torch.manual_seed(0)
    model = lc.lipconvnet(depth=5, head="lln", num_classes=10, width=2, image_size=8, in_channels=1).eval()
    fabric = make_fabric(TrainConfig(data="digits", threads=1))
    scale = float(model.normalize.std.min())
    radii = torch.tensor([math.nan, -math.inf, -1.0, 4.0 / scale])
    monkeypatch.setattr(type(model.head), "certificate", lambda *_: radii)
    assert math.isclose(held_out_accuracy(model, digits, 4, fabric)["mean_radius"], 1, rel_tol=1e-6)


def accuracies(standard: float, certified: float, **more: object) -> dict[str, object]:
    return {"standard": standard, "certified": {"36/255": certified}} | more


def test_the_score_comes_before_the_radius():
    assert selection_key(accuracies(0.9, 0.5, mean_radius=0.1)) > selection_key(
        accuracies(0.8, 0.5, mean_radius=9.0)
    )
    # The same mean, but not the same float.
    one, other = accuracies(0.8, 0.1, mean_radius=1.0), accuracies(0.6, 0.3, mean_radius=2.0)
    assert 0.8 + 0.1 > 0.6 + 0.3
    assert selection_key(one) < selection_key(other)


def test_a_radius_that_is_no_number_is_refused():
    with pytest.raises(ArgumentError, match="mean_radius: expected a number, got 'wide'"):
        selection_key(accuracies(1.0, 1.0, mean_radius="wide"))
