"""LiResNets: their shapes, a bound above the true norm, files, and a run that trains and starts another."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import lipcert as lc
from lipcert.errors import ArgumentError
from lipcert.models.liresnet import LiResNet
from lipcert.models.storage import CONFIGS
from lipcert.models.storage import load as load_weights
from lipcert.runs.config import ARCHITECTURES
from tests.contracts.dense import dense_jacobian

BLOCKS = ["liresnet", "cpl", "sll", "soc", "aoc"]
"""Linear ones, steps of gradient descent, and orthogonal ones with zeros around the map and without."""


def tiny(block: str = "liresnet", **arguments: object) -> LiResNet:
    defaults = {"depth": 2, "width": 4, "num_classes": 3, "image_size": 8, "in_channels": 1}
    return lc.liresnet(block=block, **{**defaults, **arguments})  # type: ignore[arg-type]


def trained(model: LiResNet, images: Tensor) -> LiResNet:
    """A few steps of gradient descent: neither the means of `Center` nor the kernels are the first ones."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model.train()(images).square().sum().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize(
    ("size", "side", "features"),
    [(2, 1, 4), (6, 3, 4 * 9), (8, 4, 16), (28, 14, 8 * 49), (32, 16, 32), (72, 9, 4 * 81)],
)
def test_the_body_keeps_one_size_and_the_neck_leaves_a_vector(size: int, side: int, features: int) -> None:
    model = tiny(image_size=size).eval()
    seen: list[tuple[int, ...]] = []
    for part in model.body.blocks.children():  # type: ignore[union-attr]
        part.register_forward_hook(lambda _, given, made: seen.append(tuple(made.shape[1:])))
    images = torch.rand(2, 1, size, size)
    assert model(images).shape == (2, 3)
    assert set(seen) == {(4, side, side)}
    assert model.features(images).shape == (2, features)
    assert model.head.in_features == features
    assert model(images[:0]).shape == (0, 3)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_bound_is_not_below_the_norm_of_a_dense_jacobian(block: str) -> None:
    torch.manual_seed(1)
    images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    model = trained(tiny(block).double(), images)
    body = torch.nn.Sequential(model.normalize, model.body, model.flatten)
    bound = lc.prove(body, (1, 8, 8)).lipschitz
    jacobians = [dense_jacobian(model.features, (1, 8, 8), image[None]) for image in images]
    assert max(float(torch.linalg.matrix_norm(matrix, 2)) for matrix in jacobians) <= bound
    assert bound <= 4 * (1 + 1e-3)  # 1 / std, and layers of constant 1


@pytest.mark.parametrize("block", BLOCKS)
def test_a_trained_network_comes_back(block: str, tmp_path: Path) -> None:
    images = torch.rand(5, 1, 8, 8)
    model = trained(tiny(block, dense=1, std=0.3), images)
    lc.save(model, tmp_path / "a.safetensors")
    loaded = lc.load(tmp_path / "a.safetensors")
    assert isinstance(loaded, LiResNet)
    assert loaded.config == model.config
    assert torch.equal(loaded(images), model(images))
    proved = lc.prove(loaded)
    proved.save(tmp_path / "a.proved.safetensors")
    torch.testing.assert_close(proved.logits(images).float(), model(images).detach(), rtol=1e-4, atol=1e-4)
    again = lc.load(tmp_path / "a.proved.safetensors").certify(images)
    assert torch.equal(again.radius, lc.certify(model, images).radius)


def test_every_architecture_can_be_read_back() -> None:
    assert tuple(CONFIGS) == ARCHITECTURES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, "depth: expected a positive integer, got 0"),
        ({"dense": 0}, "dense: expected a positive integer, got 0"),
        ({"image_size": 7}, "image_size: expected an even size, .* got 7"),
        ({"block": "liresnt"}, "block: expected one of .* did you mean 'liresnet'"),
        ({"block": "cpl", "series": "wide"}, "series: only 'soc' convolutions have one"),
        ({"width": 3}, "channels: Householder needs a multiple of 2, got 3"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tiny(**arguments)  # type: ignore[arg-type]


def test_a_run_on_digits_learns_and_starts_another(tmp_path: Path) -> None:
    first = lc.TrainConfig(
        data="digits", architecture="liresnet", conv="liresnet", depth=1, width=8, dense=1,
        epochs=3, batch_size=64, optimizer="muon", lr=0.3, schedule="onecycle", ema=0.9,
    )  # fmt: skip
    summary = lc.train(first, tmp_path / "first")
    assert summary.test["best"]["standard"] > 0.7
    assert summary.test["best"]["certified"]["36/255"] > 0.4
    model = load_weights(tmp_path / "first" / "best.safetensors")
    assert model.config.title == "LiResNet of depth 1 (LIRESNET, hh1, LLN head, width 8)"
    from lipcert.cli.train import collect_options

    given = {"data": "digits", "start_from": str(tmp_path / "first"), "epochs": 1}
    second, _ = collect_options(given, out=tmp_path / "second", config=None, resume=False)
    assert (second.architecture, second.conv, second.dense) == ("liresnet", "liresnet", 1)
    better = lc.train(second, tmp_path / "second")
    assert better.held_out["standard"] > 0.7
    other = lc.TrainConfig.from_dict(second.to_dict() | {"dense": 2})
    with pytest.raises(ArgumentError, match="has dense 1, but this run dense 2"):
        lc.train(other, tmp_path / "third")
