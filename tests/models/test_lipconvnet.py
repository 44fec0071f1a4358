"""LipConvnets: the architecture that the paper leaves between the lines, other image sizes, refusals."""

import json
from dataclasses import asdict

import pytest
import torch

import lipcert as lc
from lipcert.errors import ArgumentError
from lipcert.models import LipConvnet, lipconvnet
from lipcert.nn import (
    ACTIVATIONS,
    CONVOLUTIONS,
    LipschitzModule,
    OrthogonalConv2d,
    register_activation,
    register_convolution,
)


def tiny(**arguments: object) -> LipConvnet:
    defaults = {"depth": 5, "num_classes": 10, "width": 2, "image_size": 8, "in_channels": 1}
    return lipconvnet(**{**defaults, **arguments})  # type: ignore[arg-type]


def convolutions(model: LipConvnet) -> list[tuple[int, int, int, int, int]]:
    """(in, out, kernel, stride, output side) of every convolution in order."""
    found, shape = [], model.config.input_shape
    for layer in model.body.modules():  # in a tree of Sequentials that is the order of execution
        if isinstance(layer, LipschitzModule):
            shape = layer.output_shape(shape)
        if isinstance(layer, OrthogonalConv2d):
            found.append((layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, shape[1]))
    return found


def test_depth_5_is_the_papers() -> None:
    model = lipconvnet(depth=5, num_classes=10)
    assert convolutions(model) == [
        (3, 64, 3, 2, 16),
        (64, 128, 3, 2, 8),
        (128, 256, 3, 2, 4),
        (256, 512, 3, 2, 2),
        (512, 1024, 1, 2, 1),
    ]
    assert (model.head.in_features, model.head.num_classes) == (1024, 10)


def test_depth_10_is_the_papers() -> None:
    assert convolutions(lipconvnet(depth=10, width=4)) == [
        (3, 4, 3, 1, 32),
        (4, 8, 3, 2, 16),
        (8, 8, 3, 1, 16),
        (8, 16, 3, 2, 8),
        (16, 16, 3, 1, 8),
        (16, 32, 3, 2, 4),
        (32, 32, 3, 1, 4),
        (32, 64, 3, 2, 2),
        (64, 64, 3, 1, 2),
        (64, 128, 1, 2, 1),
    ]


@pytest.mark.parametrize("depth", [5, 10, 15, 20, 25, 30, 35, 40])
def test_depth_counts_the_convolutions(depth: int) -> None:
    assert len(convolutions(lipconvnet(depth=depth, width=2))) == depth


def test_normalisation_is_the_papers() -> None:
    normalize = lipconvnet(depth=5, width=2).normalize
    torch.testing.assert_close(normalize.mean.flatten(), torch.tensor([0.4914, 0.4822, 0.4465]))
    torch.testing.assert_close(normalize.std.flatten(), torch.tensor([0.2507] * 3))


@pytest.mark.parametrize(
    ("size", "stages", "features"),
    [(2, 1, 4), (8, 3, 16), (28, 2, 8 * 49), (32, 5, 64), (48, 4, 32 * 9), (64, 5, 64 * 4)],
)
def test_a_stage_per_halving_and_at_most_five(size: int, stages: int, features: int) -> None:
    model = lipconvnet(depth=10, num_classes=3, width=2, image_size=size, in_channels=1)
    assert len(model.body) == model.config.stages == stages
    assert len(convolutions(model)) == 2 * stages
    assert model.head.in_features == features
    assert model.eval()(torch.rand(2, 1, size, size)).shape == (2, 3)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
@pytest.mark.parametrize("head", ["lln", "orthogonal"])
def test_every_convolution_and_head_trains(conv: str, head: str) -> None:
    model = tiny(conv=conv, head=head)
    images, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    loss, optimizer = lc.CertificateLoss(0.1), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        value = loss(model, model(images), labels)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_builds(activation: str) -> None:
    assert tiny(activation=activation, width=4).eval()(torch.rand(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("conv", "method"), [("soc", "soc"), ("bcop", "bjorck"), ("cayley", "cayley"), ("aoc", "bjorck")]
)
def test_the_orthogonal_head_follows_the_convolution(conv: str, method: str) -> None:
    assert f"method={method!r}" in repr(tiny(conv=conv, head="orthogonal").head)


def test_the_series_reaches_the_layers() -> None:
    assert repr(tiny(series="exponential")).count("series='exponential'") == 3


def test_features_are_what_enters_the_head() -> None:
    model = tiny().eval()
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(model.head(model.features(x)), model(x))


def test_the_config_is_json_and_complete() -> None:
    model = tiny(mean=0.3, std=(0.5,))
    assert json.loads(json.dumps(asdict(model.config)))["mean"] == [0.3]
    twin = lipconvnet(**asdict(model.config))
    assert twin.config == model.config
    assert {k: v.shape for k, v in twin.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


def test_repr_is_readable() -> None:
    lines = repr(tiny()).splitlines()
    assert len(lines) < 25
    assert "(conv1): SOC(1, 4, kernel_size=3, stride=2" in "\n".join(lines)


def test_the_same_seed_gives_the_same_network() -> None:
    torch.manual_seed(7)
    one = tiny().state_dict()
    torch.manual_seed(7)
    other = tiny().state_dict()
    assert all(torch.equal(one[k], other[k]) for k in one)


def test_newly_registered_layers_are_found_by_name() -> None:
    register_convolution("mine")(CONVOLUTIONS["bcop"])
    register_activation("also-mine", ACTIVATIONS["maxmin"])
    try:
        assert len(convolutions(tiny(conv="mine", activation="also-mine", head="orthogonal"))) == 3
    finally:
        del CONVOLUTIONS["mine"], ACTIVATIONS["also-mine"]


def test_lipcerts_own_names_stay_its_own() -> None:
    class Mine(OrthogonalConv2d):
        pass

    with pytest.raises(ArgumentError, match="name: 'soc' is one of lipcert's own; choose another"):
        register_convolution("soc")(Mine)
    with pytest.raises(ArgumentError, match="name: 'hh1' is one of lipcert's own"):
        register_activation("hh1", lambda channels: ACTIVATIONS["maxmin"](channels))
    with pytest.raises(TypeError, match="abstract"):  # what it lacks is named when it is built
        Mine(2, 2, 3)


@pytest.mark.parametrize(
    ("depth", "size", "blocks"),
    [(5, 32, (1, 1, 1, 1, 1)), (9, 32, (1, 2, 2, 2, 2)), (13, 8, (1, 3, 3)), (25, 32, (5, 5, 5, 5, 5))],
)
def test_blocks_of_each_stage_follow_from_the_depth(depth: int, size: int, blocks: tuple[int, ...]) -> None:
    model = lipconvnet(depth, num_classes=2, width=2, image_size=size)
    assert model.config.blocks == blocks
    assert tuple(len(stage) // 2 for stage in model.body) == blocks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 7}, "depth: expected a multiple of 5, .* got 7; use 5"),
        ({"depth": 0}, "depth: expected a positive integer, got 0"),
        ({"depth": 3}, "depth: expected a multiple of 5, .* got 3; use 5"),
        ({"depth": 5.0}, "depth: expected a positive integer, got 5.0"),
        ({"width": 0}, "width: expected a positive integer, got 0"),
        ({"num_classes": 0}, "num_classes: expected a positive integer, got 0"),
        ({"in_channels": -1}, "in_channels: expected a positive integer, got -1"),
        ({"image_size": 0}, "image_size: expected a positive integer, got 0"),
        (
            {"image_size": 7},
            "image_size: expected an even size, .* got 7; pad the images to 8 or crop them to 6",
        ),
        ({"conv": "sco"}, "conv: expected one of .* got 'sco'; did you mean 'soc'"),
        ({"activation": "maxmim"}, "activation: expected one of .* did you mean 'maxmin'"),
        ({"head": "orthogonl"}, "head: expected one of lln, orthogonal, .* did you mean 'orthogonal'"),
        ({"series": "isometrik"}, "series: expected one of .* did you mean 'isometric'"),
        ({"series": "exponential", "conv": "bcop"}, "series: only 'soc' convolutions have one"),
        ({"mean": (0.1, 0.2)}, "mean: expected one number, or one for each of the 1 channels, got 2"),
        ({"std": 0.0}, "std: expected positive numbers, got 0"),
        ({"std": float("nan")}, "std: expected finite numbers"),
        ({"width": 3, "depth": 10}, "channels: Householder needs a multiple of 2, got 3"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tiny(**arguments)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 8, 8), r"expected a batch of images \(N, C, H, W\)"),
        (torch.zeros(1, 3, 8, 8), "expected images of 1 channels"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "expected floating point pixels"),
        (torch.zeros(1, 1, 16, 16), "expected vectors of 16 features"),
    ],
)
def test_bad_images(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tiny()(x)


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_a_batch_may_be_empty(conv: str) -> None:
    """torch's pixel_unshuffle does nothing to a tensor without elements."""
    model = lc.lipconvnet(5, conv, num_classes=3, width=4, image_size=8).eval()
    nothing = torch.rand(0, 3, 8, 8)
    for network in (model, lc.freeze(model)):
        assert network(nothing).shape == (0, 3)
    layer = CONVOLUTIONS[conv](3, 8, 3, stride=2)
    assert layer(nothing).shape == layer.freeze((3, 8, 8)).apply(nothing).shape == (0, 8, 4, 4)
