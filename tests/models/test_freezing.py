"""Frozen networks: the same function from numbers alone, in the form that is fast for its images."""

import copy
import pickle

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.kernels.series import SERIES
from lipcert.models.freezing import FrozenNetwork, fastest
from lipcert.nn import ACTIVATIONS, CONVOLUTIONS, SOC
from lipcert.nn.checks import allowed_difference
from lipcert.operators import (
    CircularConvolution,
    Matrix,
    Operator,
    Reshape,
    Sequence,
    SkewPolynomial,
    SpaceToDepth,
    SpectralConvolution,
)
from tests.contracts.dense import dense_matrix, rounding

convolutions = pytest.mark.parametrize("conv", CONVOLUTIONS)


def tiny(conv: str = "soc", **options: object) -> lc.LipConvnet:
    defaults = {"num_classes": 10, "width": 4, "image_size": 8, "in_channels": 1}
    return lc.lipconvnet(5, conv, **{**defaults, **options})  # type: ignore[arg-type]


@convolutions
@pytest.mark.parametrize("head", ["lln", "orthogonal"])
def test_a_frozen_network_computes_the_same(conv: str, head: str) -> None:
    model = tiny(conv, head=head).double().eval()
    frozen = lc.freeze(model)
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    assert isinstance(frozen, FrozenNetwork)
    assert frozen.input_shape == (1, 8, 8)
    assert not frozen.training
    assert not list(frozen.parameters())
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_freezes(activation: str) -> None:
    model = tiny(activation=activation).double().eval()
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(lc.freeze(model)(x), model(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_has_the_precision_of_the_model_and_can_be_cast(dtype: torch.dtype) -> None:
    model = tiny().to(dtype).eval()
    frozen, x = lc.freeze(model), torch.rand(3, 1, 8, 8, dtype=dtype)
    assert {array.dtype for array in frozen.operator.arrays()} == {dtype}
    found = frozen(x)
    assert found.dtype == dtype
    exact = frozen.double()(x.double())
    assert {array.dtype for array in frozen.operator.arrays()} == {torch.float64}
    assert ((found - exact).norm(dim=1) <= allowed_difference(frozen.operator, (1, 8, 8), x)).all()


def test_it_is_a_copy_and_the_model_is_left_as_it_is() -> None:
    model = tiny().train()
    state = copy.deepcopy(model.state_dict())
    frozen, x = lc.freeze(model), torch.rand(3, 1, 8, 8)
    before = frozen(x)
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(frozen(x), before)


def test_it_can_be_attacked() -> None:
    model = tiny().double().eval().requires_grad_(False)
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x)[:, 0].sum(), x)
    (found,) = torch.autograd.grad(lc.freeze(model)(x)[:, 0].sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_pickles_and_copies_compute_the_same() -> None:
    frozen, x = lc.freeze(tiny()), torch.rand(3, 1, 8, 8)
    expected = frozen(x)
    assert torch.equal(pickle.loads(pickle.dumps(frozen))(x), expected)  # noqa: S301 (made in this line)
    assert torch.equal(copy.deepcopy(frozen)(x), expected)


def test_wrapped_models_are_frozen_as_themselves() -> None:
    model, x = tiny(), torch.rand(2, 1, 8, 8)
    assert torch.equal(lc.freeze(nn.DataParallel(model))(x), lc.freeze(model)(x))


def test_repr_shows_the_operators() -> None:
    assert "ChannelAffine(mean=float32 (1,), std=float32 (1,))" in repr(lc.freeze(tiny()))


def test_a_frozen_network_is_no_model_to_certify() -> None:
    """Certificates are of `lipcert.prove`, which freezes in float64 and keeps the paths of the layers."""
    with pytest.raises(NotProvedError, match="FrozenNetwork has no proved bound"):
        lc.certify(lc.freeze(tiny()), torch.rand(1, 1, 8, 8))


def test_the_shape_is_asked_for_where_the_model_does_not_say_it() -> None:
    model = nn.Sequential(lc.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ArgumentError, match="input_shape: Sequential does not say which images it takes"):
        lc.freeze(model)
    assert lc.freeze(model, (1, 2, 2))(torch.rand(3, 1, 2, 2)).shape == (3, 2)


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize(("shape", "kind"), [((4, 2, 2), Matrix), ((4, 24, 24), SkewPolynomial)], ids=str)
@pytest.mark.parametrize("outputs", [3, 4, 6])
def test_freezing_chooses_the_cheaper_form(
    series: str, shape: tuple[int, int, int], kind: type[Operator], outputs: int
) -> None:
    layer = SOC(4, outputs, 3, series=series).double().eval()
    operator = fastest(layer.freeze(shape), shape)
    parts = operator.parts if isinstance(operator, Sequence) else (operator,)
    assert kind in [type(part) for part in parts]
    assert operator.output_shape(shape) == layer.output_shape(shape)
    x = torch.randn(3, *shape, dtype=torch.float64)
    torch.testing.assert_close(operator.apply(x), layer(x))
    if kind is Matrix:
        matrix = dense_matrix(operator.apply, shape)
        torch.testing.assert_close(matrix, dense_matrix(layer, shape), rtol=0, atol=rounding(matrix))
        norm = float(torch.linalg.matrix_norm(matrix, 2))
        # The bound of a matrix is proved to about 1e-7.
        assert norm * (1 - 1e-14) <= operator.lipschitz_bound(shape) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("channels", "outputs", "on_torus"), [(96, 96, True), (96, 16, False), (8, 8, False)]
)
def test_maps_of_4x4_run_on_a_torus_where_it_pays(
    channels: int, outputs: int, on_torus: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torus", "packed_torus"):
        monkeypatch.setattr(f"lipcert.kernels.{module}.is_amd_with_avx512", lambda: False)
    # Of 96 channels 37 products of channels per degree in place of 256; of few, transforms cost more.
    shape = (channels, 4, 4)
    layer = SOC(channels, outputs, 3).eval()
    found = fastest(layer.freeze(shape), shape)
    assert isinstance(found, SkewPolynomial) == on_torus
    assert isinstance(fastest(layer.freeze(shape), shape, by_torus=False), Sequence)
    x = torch.randn(64, *shape)
    torch.testing.assert_close(found.apply(x), layer(x), rtol=0, atol=1e-4)


def test_a_strided_layer_keeps_its_space_to_depth_in_front_of_the_matrix() -> None:
    layer = SOC(2, 8, 3, stride=2).double().eval()
    operator = fastest(layer.freeze((2, 4, 4)), (2, 4, 4))
    assert isinstance(operator, Sequence)
    assert [type(part) for part in operator.parts] == [SpaceToDepth, Reshape, Matrix, Reshape]
    assert operator.parts[-1] == Reshape((8, 2, 2))
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(operator.apply(x), layer(x))


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 16, 16), (1, 8, 8)], ids=str)
def test_other_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        lc.freeze(tiny())(torch.rand(shape))


def test_one_channel_is_not_broadcast_to_three() -> None:
    with pytest.raises(ArgumentError, match="expected"):
        lc.freeze(tiny(in_channels=3))(torch.rand(2, 1, 8, 8))


@convolutions
def test_half_precision_networks_are_frozen(conv: str) -> None:
    model = lc.lipconvnet(10, conv, num_classes=3, width=4, image_size=8, in_channels=1).bfloat16().eval()
    x = torch.rand(2, 1, 8, 8).bfloat16()
    with torch.no_grad():
        # bfloat16 has 8 bits; logits of images this size are of order 1.
        torch.testing.assert_close(lc.freeze(model)(x).float(), model(x).float(), rtol=0.05, atol=0.05)


def test_a_polynomial_behind_a_layer_that_autocast_made_bfloat16() -> None:
    model = nn.Sequential(
        lc.BCOP(3, 8, 3), lc.SOC(8, 8, 3), lc.Flatten(), lc.NormalizedLinear(8 * 8 * 8, 3)
    ).eval()
    images = torch.rand(2, 3, 8, 8)
    frozen = lc.freeze(model, input_shape=(3, 8, 8))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        # bfloat16 has 8 bits; logits of images this size are of order 1.
        torch.testing.assert_close(frozen(images).float(), model(images).float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("channels", "side", "is_spectral"), [(160, 2, True), (320, 4, True), (8, 4, False)])
def test_circular_convolutions_of_many_channels_run_by_frequency(
    channels: int, side: int, is_spectral: bool
) -> None:
    torch.manual_seed(0)
    operator = CircularConvolution(
        torch.randn(channels, channels, 3, 3, dtype=torch.float64), torch.randn(channels, dtype=torch.float64)
    )
    found = fastest(operator, (channels, side, side))
    assert isinstance(found, SpectralConvolution) is is_spectral
    x = torch.randn(2, channels, side, side, dtype=torch.float64)
    torch.testing.assert_close(found.apply(x), operator.apply(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("steps", [{"stride": 2}, {"groups": 2}, {"dilation": 3}])
def test_strided_grouped_and_dilated_ones_stay_as_they_are(steps: dict[str, int]) -> None:
    operator = CircularConvolution(torch.randn(320, 320 // steps.get("groups", 1), 3, 3), None, **steps)
    assert fastest(operator, (320, 4, 4)) is operator
