"""The estimate that selects the best model, against margins by hand."""

import math

import torch

import lipcert as lc
from lipcert.data import load, to_float
from lipcert.runs.config import TrainConfig
from lipcert.training.devices import make_fabric
from lipcert.training.evaluation import held_out_accuracy


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
    shares = [found["standard"], *found["certified"].values()]
    assert len(set(shares)) == 4, "the test sees no difference between the radii"
    assert found["images"] == len(digits)
