"""Bounds of layers and networks: never below the dense Jacobian's norm, close to it, tied to the weights."""

import copy
import math
import operator
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lipcert as lc
from lipcert.certify import exact, layer_bounds, radii
from lipcert.certify.exact import ExactNetwork, exact_network, fingerprint, network_hash
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.functional.series import SERIES
from lipcert.models.lipconvnet import LipConvnet
from lipcert.nn import ConstantHead, Flatten, LipschitzModule, Normalize

SVD_ERROR = 1e-12  # of a norm through autograd and LAPACK on matrices of up to 300 columns


def jacobian_norm(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """Largest singular value of the dense Jacobian in float64, column by column."""
    size = math.prod(shape)
    with torch.no_grad():
        origin = layer(torch.zeros(1, *shape, dtype=torch.float64))
        columns = layer(torch.eye(size, dtype=torch.float64).view(size, *shape)) - origin
    return float(torch.linalg.matrix_norm(columns.flatten(1), 2))


@settings(max_examples=150)
@given(
    conv=st.sampled_from(["isometric", "wide", "exponential", "bcop", "cayley"]),
    seed=st.integers(0, 2**32),
    inputs=st.integers(2, 5),
    outputs=st.integers(1, 9),
    kernel=st.sampled_from([1, 3]),
    stride=st.sampled_from([1, 2]),
    side=st.integers(1, 3),
    scale=st.sampled_from([1.0, 1e-12, 1e12, 1e-30, 1e30]),
)
def test_layer_bounds_hold_and_are_tight(
    conv: str, seed: int, inputs: int, outputs: int, kernel: int, stride: int, side: int, scale: float
) -> None:
    torch.manual_seed(seed)
    shape = (inputs, side * stride, side * stride)
    options = {"series": conv} if conv in SERIES else {}
    kind = {"bcop": lc.BCOP, "cayley": lc.Cayley}.get(conv, lc.SOC)
    layer = kind(inputs, outputs, kernel, stride=stride, bias=False, dtype=torch.float64, **options).eval()
    with torch.no_grad():
        layer.weight.mul_(scale)  # every weight is normalised: the function must not care
    (proved,) = layer_bounds(nn.Sequential(layer), shape)
    truth = jacobian_norm(proved.layer, shape)
    assert truth * (1 - SVD_ERROR) <= proved.bound
    # A narrow layer keeps part of an orthogonal operator, which may be smaller than the whole; a polynomial
    # is bounded over an interval, and attains its maximum somewhere in it.
    complete = outputs >= inputs * stride**2
    slack = 1e-4
    if complete and truth > 0:
        assert proved.bound <= truth * (1 + slack)
    assert proved.bound <= 1 + 1e-4


@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_no_pair_of_images_gains_more_than_the_bound(conv: str) -> None:
    model = lc.lipconvnet(10, conv, num_classes=5, width=4, image_size=8, in_channels=1).double().eval()
    bound = lc.lipschitz_upper_bound(model)
    x = torch.rand(200, 1, 8, 8, dtype=torch.float64)
    y = x + 10 ** torch.empty(200, 1, 1, 1, dtype=torch.float64).uniform_(-6, 0) * torch.randn_like(x)
    with torch.no_grad():
        gain = (model(x) - model(y)).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert gain.max() <= bound * (1 + 1e-9)  # differences at 1e-6 keep nine digits
    assert gain.max() >= 0.1 * bound


@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_the_body_of_a_network_is_bounded_by_little_more_than_its_normalisation(conv: str) -> None:
    model = lc.lipconvnet(10, conv, num_classes=5, width=4, image_size=8, in_channels=3)
    assert 1 / 0.2507 * (1 - 1e-6) <= exact_network(model, (3, 8, 8)).lipschitz <= 1 / 0.2507 * (1 + 1e-4)


def test_the_table_of_layers() -> None:
    model = lc.lipconvnet(5, num_classes=5, width=4, image_size=8, in_channels=1)
    table = layer_bounds(model)
    assert [row.name for row in table[:3]] == ["Normalize", "SOC", "Householder"]
    assert table[1].path == "body.stage1.conv1"
    assert table[1].error.relative > 0
    assert math.prod(row.bound for row in table) == pytest.approx(exact_network(model, (1, 8, 8)).lipschitz)


def test_modules_without_a_bound_are_refused_by_path_and_name() -> None:
    model = nn.Sequential(Flatten(), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)))
    with pytest.raises(NotProvedError, match=r"^1\.0: ReLU has no proved bound; use a layer of lipcert"):
        lc.lipschitz_upper_bound(model, (4,))


def test_where_lipcert_has_a_layer_of_the_same_name_the_error_says_so() -> None:
    with pytest.raises(NotProvedError, match=r"^0: Flatten has no proved bound; use lipcert\.Flatten"):
        lc.lipschitz_upper_bound(nn.Sequential(nn.Flatten(), lc.OrthogonalHead(4, 4)), (4, 1, 1))


def network() -> LipConvnet:
    return lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1)


def damage_in_place(model: LipConvnet) -> None:
    with torch.no_grad():
        model.head.weight[0].mul_(-1)  # type: ignore[union-attr, operator]


def damage_through_data(model: LipConvnet) -> None:
    model.body.stage1.conv1.weight.data.normal_()  # type: ignore[union-attr]


def damage_by_loading(model: LipConvnet) -> None:
    torch.manual_seed(1)
    model.load_state_dict(network().state_dict())


def damage_by_a_step(model: LipConvnet) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.eval()(torch.rand(4, 1, 4, 4)).square().sum().backward()  # fine-tuning in evaluation mode
    optimizer.step()


@pytest.mark.parametrize(
    "change", [damage_in_place, damage_through_data, damage_by_loading, damage_by_a_step]
)
def test_nothing_outlives_a_change_of_weights(change) -> None:
    model, images = network().eval(), torch.rand(6, 1, 4, 4)
    before = lc.certify(model, images)
    with torch.no_grad():
        model(images)  # fills every cache there is
    change(model)
    after = lc.certify(model, images)
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    expected = lc.certify(copy.deepcopy(fresh), images)
    assert torch.equal(after.radius, expected.radius)
    assert after.lipschitz == expected.lipschitz
    assert not torch.equal(after.radius, before.radius)


def test_the_same_weights_are_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    prove = exact._prove
    monkeypatch.setattr(exact, "_prove", lambda *arguments: calls.append(1) or prove(*arguments))
    model, images = network(), torch.rand(2, 1, 4, 4)
    exact._KNOWN.clear()
    first, second = lc.certify(model, images), lc.certify(model, images)
    lc.lipschitz_upper_bound(model)
    assert len(calls) == 1
    assert torch.equal(first.radius, second.radius)


def test_fingerprints_see_structure_and_numbers() -> None:
    model = nn.Sequential(Normalize(0.5, 0.25), Flatten(), ConstantHead(torch.eye(2), None))
    same, other = copy.deepcopy(model), copy.deepcopy(model)
    assert fingerprint(model) == fingerprint(same)
    assert fingerprint(model.train()) == fingerprint(same.eval())
    other[2].weight[0, 0] += 2.0**-20  # type: ignore[index, operator]
    assert fingerprint(other) != fingerprint(model)
    assert fingerprint(nn.Sequential(lc.GroupSort(2))) != fingerprint(nn.Sequential(lc.GroupSort(4)))


@pytest.mark.parametrize("text", [None, "written otherwise"])
def test_the_hash_in_records_is_the_same_in_every_version(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        monkeypatch.setattr(lc.SOC, "extra_repr", lambda self: text)
    model = network()
    for name, tensor in model.state_dict().items():
        tensor.fill_(len(name) / 64)
    assert network_hash(model) == "22ee5e397efca74de7e85d994fef07373550ea3772c3f5f41b1dc547ce40aff8"
    other = lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1, series="exponential")
    other.load_state_dict(model.state_dict())
    assert network_hash(other) != network_hash(model)


def test_the_hash_of_other_networks_sees_their_modules_as_often_as_they_run() -> None:
    act = lc.MaxMin()
    once, twice = nn.Sequential(act, Flatten()), nn.Sequential(act, Flatten())
    twice.append(act)
    assert network_hash(once) != network_hash(twice)


def gain_layer(gain: float) -> LipschitzModule:
    """A layer of somebody else's, defined anew with the same name, as in a notebook."""

    class Gain(LipschitzModule):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return gain * x

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return gain

        def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
            return gain * 2.0**-53, 0.0

    return Gain()


def test_a_proof_is_not_remembered_for_layers_whose_code_may_change() -> None:
    image, head = (
        torch.tensor([0.2, 0.8]).view(1, 2, 1, 1),
        ConstantHead(torch.eye(2), torch.tensor([1.0, 0])),
    )
    for gain in (1.0, 100.0):
        found = lc.certify(nn.Sequential(gain_layer(gain), Flatten(), head), image)
        assert found.lipschitz == gain


def test_what_is_taken_off_is_twice_the_error_of_the_head() -> None:
    model, images = network(), torch.rand(3, 1, 4, 4)
    found = lc.certify(model, images)
    proved = exact_network(model, (1, 4, 4))
    assert proved.head is not None
    logits, norms = radii._forward(proved, proved.head, images, torch.device("cpu"), 8)
    distances = proved.head.pair_distance_bounds()
    ideal = radii.certify_logits(logits, distances, proved.lipschitz)
    layers = [(layer.bound, layer.error) for layer in proved.layers]
    error, size = radii.body_error(layers, norms, ideal.radius)
    once = radii.head_error(proved.head, found.prediction, error, size, distances)
    assert torch.equal(found.rounding, 2 * once.gather(1, found.runner_up[:, None])[:, 0])


def test_no_radius_is_larger_than_the_ball_whose_rounding_is_bounded() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 1e-12]], dtype=torch.float64)
    model = nn.Sequential(Flatten(), ConstantHead(rows, torch.tensor([1.0, 0.0], dtype=torch.float64)))
    found = lc.certify(model, torch.tensor([0.2, 0.8], dtype=torch.float64).view(1, 2, 1, 1))
    assert found.radius.item() == radii.LARGEST_RADIUS


def test_products_inside_of_a_certificate_run_in_full_precision() -> None:
    seen = []
    backends = torch.backends
    places = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)

    class Watch(LipschitzModule):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("cpu")
            seen.extend(place.fp32_precision for place in places)
            return x

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return 1.0

    model = nn.Sequential(Watch(), Flatten(), ConstantHead(torch.eye(2), None))
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lc.certify(model, torch.tensor([0.2, 0.8]).view(1, 1, 1, 2), precision="float32")
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"ieee"}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("cuda.matmul", "tf32"),
        ("cudnn", "tf32"),
        ("cudnn.conv", "ieee"),
        ("mkldnn.matmul", "bf16"),
        ("mkldnn.conv", "bf16"),
        ("", "tf32"),
        ("", "ieee"),
    ],
)
def test_newer_switches_of_precision_take_no_part_and_stay_as_they_are(place: str, value: str) -> None:
    model, images = network(), torch.rand(2, 1, 4, 4)
    plain = lc.certify(model, images, precision="float32").radius
    switch = operator.attrgetter(place)(torch.backends) if place else torch.backends
    before = switch.fp32_precision
    switch.fp32_precision = value
    try:
        states = every_switch()
        assert torch.equal(lc.certify(model, images, precision="float32").radius, plain)
        assert every_switch() == states
    finally:
        switch.fp32_precision = before


def every_switch() -> list[str]:
    names = ("cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", "mkldnn.conv")
    places = [torch.backends, *(operator.attrgetter(name)(torch.backends) for name in names)]
    return [place.fp32_precision for place in places]


def test_a_model_with_a_config_of_its_own_kind() -> None:
    model = nn.Sequential(Flatten(), lc.OrthogonalHead(4, 3))
    model.config = {"name": "mine"}  # type: ignore[assignment]
    assert lc.certify(model, torch.rand(2, 1, 2, 2)).radius.shape == (2,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_certified_as_the_numbers_they_are(dtype: torch.dtype) -> None:
    model, images = network().to(dtype), torch.rand(4, 1, 4, 4)
    cert = lc.certify(model, images)
    assert torch.equal(cert.radius, lc.certify(copy.deepcopy(model).double(), images).radius)
    assert next(model.parameters()).dtype == dtype


def test_tf32_autocast_and_flushed_subnormals_take_no_part() -> None:
    model, images = network(), torch.rand(4, 1, 4, 4)
    plain = {p: lc.certify(model, images, precision=p).radius for p in ("float64", "float32")}
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = {p: lc.certify(model.train(), images, precision=p).radius for p in plain}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_flush_denormal(False)
    assert all(torch.equal(found[p], plain[p]) for p in plain)


def test_float32_is_measured_and_says_so() -> None:
    model, images = network(), torch.rand(8, 1, 4, 4)
    proved, measured = lc.certify(model, images), lc.certify(model, images, precision="float32")
    assert proved.proved
    assert proved.precision == "float64"
    assert not measured.proved
    assert measured.precision == "float32"
    assert (measured.rounding > proved.rounding).all()
    single = exact_network(model, (1, 4, 4), torch.float32)
    features = images
    for layer in single.layers:
        features = layer.layer(features)
    exact_features = images.double()
    for layer in single.layers:  # the float32 weights, in float64 arithmetic
        exact_features = copy.deepcopy(layer.layer).double()(exact_features)
    assert single.head is not None
    logits = copy.deepcopy(single.head).double()(exact_features)
    difference = float((single.head(features).double() - logits).abs().max())
    assert measured.rounding.tolist() == [40 * difference] * len(images)
    torch.testing.assert_close(measured.radius, proved.radius, rtol=0, atol=1e-4)
    with pytest.raises(ArgumentError, match="precision: expected one of float32, float64, got 'float16'"):
        lc.certify(model, images, precision="float16")


def test_subnormal_pixels_are_fine() -> None:
    cert = lc.certify(network(), torch.full((1, 1, 4, 4), 1e-310, dtype=torch.float64))
    assert cert.radius.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("head", ["lln", "orthogonal"])
def test_the_slack_of_a_lipconvnet_5_is_about_1e_7(head: str) -> None:
    model = lc.lipconvnet(5, head=head, num_classes=10)
    cert = lc.certify(model, torch.rand(8, 3, 32, 32))
    assert cert.rounding.max() < 2e-7
    assert cert.lipschitz < 1 / 0.2507 * (1 + 2e-4)


def test_the_product_of_bounds_rounds_up() -> None:
    for bounds in (1 + torch.rand(50, 4, dtype=torch.float64)).tolist():
        found = ExactNetwork(tuple(SimpleNamespace(bound=b) for b in bounds), None).lipschitz
        assert Fraction(found) >= math.prod(map(Fraction, bounds))


def test_a_proof_is_not_remembered_for_maps_of_another_size() -> None:
    model = nn.Sequential(lc.SOC(4, 4, 3), Flatten(), ConstantHead(torch.randn(3, 64), None))
    square = torch.rand(2, 4, 4, 4)
    exact._KNOWN.clear()
    expected = lc.certify(model, square)
    exact._KNOWN.clear()
    lc.certify(model, torch.rand(2, 4, 1, 16))  # sees one row of the taps, and is scaled by that
    assert torch.equal(lc.certify(model, square).radius, expected.radius)
