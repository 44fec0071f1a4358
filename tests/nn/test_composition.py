"""Center, Residual, mirrored and average: they train, are saved, and keep their constants."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.certify.network_file import to_bytes
from lipcert.errors import ArgumentError
from lipcert.nn.heads import find_head


def small() -> nn.Sequential:
    body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), lc.Center(4), nn.ReLU())
    return nn.Sequential(
        lc.Normalize(0.5, 0.25), nn.Conv2d(1, 4, 3, padding=1), lc.Residual(body, weight=0.25), nn.Flatten(),
        lc.NormalizedLinear(64, 3),
    )  # fmt: skip


def test_center_takes_the_mean_of_the_batch_and_remembers_it() -> None:
    layer, x = lc.Center(3, momentum=0.5), torch.randn(8, 3, 2, 2) + 5
    means = x.mean(dim=(0, 2, 3))
    made = layer(x)
    torch.testing.assert_close(made, x - means.view(1, 3, 1, 1))
    torch.testing.assert_close(layer.mean, means / 2)
    layer(x)
    torch.testing.assert_close(layer.mean, 0.75 * means)
    assert layer.lipschitz_bound((3, 2, 2)) == 1
    assert not layer.mean.requires_grad


def test_center_in_evaluation_depends_on_no_other_image() -> None:
    layer, x = lc.Center(3), torch.randn(8, 3, 2, 2) + 5
    layer(x)
    layer.eval()
    kept = layer.mean.clone()
    assert torch.equal(layer(x)[:1], layer(x[:1]))
    assert torch.equal(layer.mean, kept)
    twin = lc.Center(3)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin.eval()(x), layer(x))
    assert torch.equal(layer.double().freeze((3, 2, 2)).apply(x.double()), layer(x.double()))


@pytest.mark.parametrize("kind", ["plain", "mirrored", "average"])
def test_networks_train_are_copied_and_proved(kind: str) -> None:
    torch.manual_seed(0)
    made: dict[str, nn.Module] = {
        "plain": small(), "mirrored": lc.mirrored(small()),
        "average": lc.average([small(), small()], [0.75, 0.25]),
    }  # fmt: skip
    model, images, labels = made[kind], torch.rand(32, 1, 4, 4), torch.randint(3, (32,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    proved, again = lc.prove(model, (1, 4, 4)), lc.prove(twin, (1, 4, 4))
    assert proved.operator == again.operator
    with torch.no_grad():
        expected = model.double().eval()(images.double())
    torch.testing.assert_close(proved.logits(images), expected, rtol=0, atol=1e-12)


def test_a_mirrored_network_is_symmetric_and_keeps_all_constants() -> None:
    model = small()
    plain, both = lc.prove(model, (1, 4, 4)), lc.prove(lc.mirrored(model), (1, 4, 4))
    images = torch.rand(5, 1, 4, 4)
    torch.testing.assert_close(both.logits(images), both.logits(images.flip(-1)), rtol=0, atol=1e-13)
    assert both.lipschitz == plain.lipschitz
    torch.testing.assert_close(both.pair_bounds, plain.pair_bounds, rtol=1e-12, atol=0)
    assert find_head(lc.mirrored(model)) is model[-1]
    assert lc.CertificateLoss(0.5)(lc.mirrored(model), model(images), torch.zeros(5).long()).isfinite()


def test_an_average_has_the_mean_of_the_constants() -> None:
    first, second = small(), small()
    with torch.no_grad():
        second[1].weight *= 3  # type: ignore[operator]
    alone = [lc.prove(model, (1, 4, 4)) for model in (first, second)]
    both = lc.prove(lc.average([first, second], [0.75, 0.25]), (1, 4, 4))
    expected = 0.75 * alone[0].pair_bounds + 0.25 * alone[1].pair_bounds
    torch.testing.assert_close(both.pair_bounds, expected, rtol=1e-12, atol=0)
    equal = lc.prove(lc.average([first, first, first]), (1, 4, 4))
    torch.testing.assert_close(equal.pair_bounds, alone[0].pair_bounds, rtol=1e-12, atol=0)


def test_branches_of_isometries_keep_the_constant_one() -> None:
    block = lc.Residual(nn.Sequential(lc.OrthogonalLinear(8, 8), lc.MaxMin()), weight=0.3)
    proved = lc.prove(nn.Sequential(nn.Flatten(), *[copy.deepcopy(block) for _ in range(5)]), (8, 1, 1))
    assert proved.operator.lipschitz_bound((8, 1, 1)) <= 1 + 1e-6


@pytest.mark.parametrize("reach", ["before", "after", "both"])
def test_batch_normalisation_is_a_part_of_the_convolution_beside_it(reach: str) -> None:
    norm = nn.BatchNorm2d(4)
    norm.running_mean, norm.running_var = torch.randn(4), torch.tensor([1e-4, 1.0, 4.0, 1e4])
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    convolution = nn.Conv2d(4, 4, 3, padding=1, groups=2)
    layers = [norm] * (reach != "after") + [convolution] + [copy.deepcopy(norm)] * (reach != "before")
    model = nn.Sequential(*layers, nn.Flatten()).double().eval()
    proved = lc.prove(model, (4, 4, 4))
    images = torch.rand(3, 4, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(proved.logits(images), model(images), rtol=1e-10, atol=1e-10)
    shifted = ["ChannelAffine"] * (reach != "after")
    assert [type(layer.operator).__name__ for layer in proved.layers] == [*shifted, "Convolution", "Reshape"]
    apart = 1.0
    for layer in layers:
        alone = lc.prove(nn.Sequential(layer, nn.Flatten()), (4, 4, 4))
        apart *= alone.layers[0].lipschitz
    assert proved.operator.lipschitz_bound((4, 4, 4)) <= apart * (1 + 1e-3)


@pytest.mark.parametrize("weight", [0.0, 1e-310, -1e-120, 1e-30])
def test_a_channel_that_batch_normalisation_drops_is_not_folded_into_what_follows(weight: float) -> None:
    norm = nn.BatchNorm2d(2, dtype=torch.float64)
    with torch.no_grad():
        norm.weight[0] = weight
        norm.bias[:] = 3
    model = nn.Sequential(norm, nn.Conv2d(2, 2, 3, padding=1), nn.Flatten()).double().eval()
    images = torch.rand(3, 2, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        proved = lc.prove(model, (2, 4, 4))
        torch.testing.assert_close(proved.logits(images), model(images), rtol=0, atol=1e-12)
    assert (proved.certify(images).rounding < 1e-10).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lc.Center(0), "channels: expected a positive integer"),
        (lambda: lc.Center(2, momentum=2.0), "momentum: expected a number between 0 and 1, got 2.0"),
        (lambda: lc.Center(2)(torch.ones(1, 3)), r"Center: expected 2 channels, got shape \(3,\)"),
        (lambda: lc.Residual(nn.ReLU(), weight=-0.1), "weight: expected a number between 0 and 1, got -0.1"),
        (lambda: lc.Residual(3), "body: expected a torch.nn.Module, got int"),  # type: ignore[arg-type]
        (lambda: lc.mirrored(torch.relu), "model: expected a torch.nn.Module, got builtin"),
        (lambda: lc.average(nn.ReLU()), "models: expected a list of networks, got ReLU"),  # type: ignore[call-overload]
        (lambda: lc.average([nn.ReLU()], ["a"]), "weights: expected a number for each model"),  # type: ignore[list-item]
        (lambda: lc.average([]), "weights: expected a finite number for each of 0 models"),
        (
            lambda: lc.average([nn.ReLU()], [0.5, 0.5]),
            "weights: expected a finite number for each of 1 models",
        ),
        (lambda: lc.average([nn.ReLU(), 3]), r"models\[1\]: expected a torch.nn.Module, got int"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()


class Changes(nn.Module):
    """A block whose ReLU changes what it is given."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        relu, convolution = nn.ReLU(inplace=True), nn.Conv2d(2, 2, 1)
        self.body = nn.Sequential(nn.Identity(), relu) if first else nn.Sequential(convolution, relu)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x * 1.0
        made: torch.Tensor = self.body(y) + y
        return made.flatten(1)


def test_a_relu_in_place_is_refused_where_it_changes_another_value() -> None:
    images = torch.rand(2, 2, 2, 2, dtype=torch.float64) - 0.5
    model = Changes(first=False).double()
    with torch.no_grad():
        torch.testing.assert_close(lc.prove(model, (2, 2, 2)).logits(images.abs()), model(images.abs()))
    with pytest.raises(
        lc.errors.NotProvedError, match=r"^model: inplace=True in body of a value with other names"
    ):
        lc.prove(Changes(first=True), (2, 2, 2))


def test_averages_of_proved_networks_are_those_of_their_modules(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = small(), small()
    proved = [lc.prove(model, (1, 4, 4)) for model in (first, second)]
    made = lc.mirrored(lc.average(proved, [0.75, 0.25]))
    wanted = lc.prove(lc.mirrored(lc.average([first, second], [0.75, 0.25])), (1, 4, 4))
    images = torch.rand(6, 1, 4, 4)
    torch.testing.assert_close(made.logits(images), wanted.logits(images), rtol=0, atol=1e-14)
    torch.testing.assert_close(made.pair_bounds, wanted.pair_bounds, rtol=1e-14, atol=0)
    torch.testing.assert_close(made.certify(images).radius, wanted.certify(images).radius, rtol=0, atol=1e-12)
    made.save(tmp_path / "average.safetensors")
    assert lc.load(tmp_path / "average.safetensors").hash == made.hash
    # Both branches of a mirrored network read the same arrays.
    assert (tmp_path / "average.safetensors").stat().st_size < 1.5 * len(to_bytes(lc.average(proved))[0])


def test_averages_of_proved_networks_need_equal_classes() -> None:
    proved = [lc.prove(small(), (1, 4, 4), names) for names in (None, ["cat", "dog", "owl"])]
    with pytest.raises(ArgumentError, match=r"models\[1\]: expected the classes of the first network"):
        lc.average(proved)
