"""Rounding bounds. The analysis knows u as a number: with u = 2^-24 it must hold for float32."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.fft
import torch
from torch import nn

import lipcert as lc
from lipcert.attacks.classifier import certified_classifier
from lipcert.certify import rounding
from lipcert.certify.exact import exact_network
from lipcert.certify.radii import _forward
from lipcert.certify.rounding import ForwardError, body_error, forward_error, fourier_error, head_error
from lipcert.errors import NotProvedError
from lipcert.functional import rounding as units
from lipcert.functional.skew import SkewOperator, horner
from lipcert.functional.taps import every_tap, taps_from_kernel
from lipcert.functional.torus import PRODUCT_PRICE, TorusOperator, torus_size
from lipcert.nn import ConstantHead, Flatten, LipschitzModule, Normalize
from lipcert.nn.frozen_circular import CircularConv2d, FrozenLinear, SpectralConv2d
from lipcert.nn.frozen_skew import FrozenMatrix, FrozenSeries


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error analysis for float32."""
    monkeypatch.setattr(units, "UNIT", 2.0**-24)
    monkeypatch.setattr(rounding, "UNIT", 2.0**-24)


def _series() -> LipschitzModule:
    frozen = lc.SOC(6, 8, 3).freeze((6, 16, 16))
    assert isinstance(frozen, FrozenSeries)
    return frozen


def _torus() -> LipschitzModule:
    frozen = lc.SOC(8, 6, 3).double().frozen_series((8, 4, 3))
    operator = SkewOperator(taps_from_kernel(frozen.kernel), 4, 3)
    assert isinstance(operator.frame(64), TorusOperator)
    return frozen.float()


def _matrix() -> LipschitzModule:
    frozen = lc.SOC(6, 24, 3, stride=2).freeze((6, 2, 2))
    assert isinstance(frozen, FrozenMatrix)
    return frozen


def _circular() -> LipschitzModule:
    frozen = lc.BCOP(6, 8, 3).freeze((6, 5, 5))
    assert isinstance(frozen, CircularConv2d)
    return frozen


def _spectral() -> LipschitzModule:
    frozen = lc.Cayley(6, 8, 3).freeze((6, 5, 6))
    assert isinstance(frozen, SpectralConv2d)
    return frozen


LAYERS = {
    "normalize": (lambda: Normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)), (3, 4, 4)),
    "series": (_series, (6, 16, 16)),
    "torus": (_torus, (8, 4, 3)),
    "matrix": (_matrix, (6, 2, 2)),
    "circular": (_circular, (6, 5, 5)),
    "spectral": (_spectral, (6, 5, 6)),
    "linear": (lambda: FrozenLinear(torch.randn(7, 30), torch.randn(7)), (30,)),
    "hh1": (lambda: lc.Householder(8), (8, 3, 3)),
    "one pair": (lambda: lc.Householder(2), (2,)),
    "hh3": (lambda: lc.HouseholderOrder(8, order=3), (8, 3, 3)),
    "chain": (lambda: lc.HouseholderChain(8, length=3), (8, 3, 3)),
    "nd": (lambda: lc.HouseholderND(8, group_size=4, length=2), (8, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@torch.no_grad()
def test_float32_is_within_the_bound_for_float32(
    name: str, size: float, single: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, shape = LAYERS[name]
    if name == "torus":
        monkeypatch.setitem(PRODUCT_PRICE, torch.float32, 0.0)
        monkeypatch.setitem(PRODUCT_PRICE, torch.float64, 0.0)
    layer = build()
    for parameter_name, parameter in layer.named_parameters():
        if parameter_name in ("theta", "widths"):
            parameter.add_(torch.randn_like(parameter))
    layer = layer.freeze(shape)
    norm = (
        layer.operator_norm_bound(shape) if isinstance(layer, FrozenSeries) else layer.lipschitz_bound(shape)
    )
    error = forward_error(layer, shape, norm)
    inputs = size * torch.randn(64 if len(shape) > 1 else 20_000, *shape)
    exact = layer.double()(inputs.double())
    computed = layer.float()(inputs)
    actual = (computed.double() - exact).flatten(1).norm(dim=1)
    allowed = error.relative * inputs.double().flatten(1).norm(dim=1) + error.absolute
    assert (actual <= allowed).all()
    assert actual.max() > 0, "the test sees no rounding at all"
    # Worst cases of products in a row multiply; polynomials on a torus have three of them per power.
    useless = 3e4 if name == "torus" else 3e3
    assert (allowed <= useless * actual.max()).all(), "a bound that is useless in practice"


def test_the_bound_of_an_inner_product_is_met_by_the_worst_order_of_summation(single: None) -> None:
    """1 + u + u + ... from left to right in float32: every u is a tie that rounds away."""
    n, small = 4000, 2.0**-12  # small * small is u
    row = torch.full((1, n), small)
    row[0, 0] = 1.0
    total = np.float32(0.0)
    for term in (row[0] * row[0]).numpy():
        total = np.float32(total + term)
    exact = Fraction(1) + (n - 1) * Fraction(1, 2**24)
    actual = float(exact - Fraction(float(total)))
    assert actual == (n - 1) * 2.0**-24
    layer = FrozenLinear(row, None)
    error = forward_error(layer, (n,), layer.lipschitz_bound((n,)))
    allowed = error.relative * float(row.double().norm()) + error.absolute
    # || |W| || is bounded by the root of its largest row and column sum, sqrt((1 + n small) 1) = 1.41.
    assert actual <= allowed <= 1.42 * actual
    head = rounding.head_error(
        ConstantHead(row.expand(2, n).double(), None),
        torch.tensor([0]),
        torch.zeros(1, dtype=torch.float64),
        row.double().norm()[None],
        torch.zeros(2, 2, dtype=torch.float64),
    )
    assert 2 * actual <= float(head[0, 1]) <= 2.02 * actual  # one error in each of two logits
    # One application of an operator with n terms per output, || |A| || = 1.
    assert actual <= rounding._error_on_maps([0.0, 1.0], 1.0, 1.0, n) <= 8 * actual


@torch.no_grad()
def test_the_bound_on_a_torus_covers_the_worst_tables(single: None) -> None:
    """Rounding is far from its worst case; here every entry of the tables is off by all that is allowed."""
    shape, keep = (8, 4, 3), 6
    layer = lc.SOC(8, keep, 3).double().frozen_series(shape)
    spread = rounding.absolute_norm_upper_bound(layer.kernel.flatten(2))
    waves = torus_size(3, *shape[1:])
    bound = rounding._error_on_a_torus(
        [abs(c) for c in layer.coefficients],
        layer.operator_norm_bound(shape),
        spread,
        min(spread, rounding.circular_norm_upper_bound(layer.kernel)),
        shape[0],
        3,
        waves,
    )

    def signs(like: torch.Tensor) -> torch.Tensor:
        """Of rank one, so that errors add up."""
        rows, columns = (torch.randn(n, dtype=like.dtype).sign() for n in like.shape[-2:])
        return rows[:, None] * columns

    def matrix(operator: TorusOperator) -> torch.Tensor:
        basis = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
        return horner(operator, basis, layer.coefficients, keep)[0].flatten(1).T

    exact = TorusOperator(taps_from_kernel(layer.kernel), *shape[1:])
    size = every_tap(taps_from_kernel(layer.kernel)).abs().sum(0)
    off = units.gamma(9 + 64) + units.gamma(2 * shape[0] + 8)
    worst = 0.0
    for _ in range(8):
        rough = TorusOperator(taps_from_kernel(layer.kernel), *shape[1:])
        analysis, padding = (
            table + signs(table) * (64 * units.UNIT / waves**0.5 + units.gamma(waves) * table.abs())
            for table in (exact.basis.analysis, exact.basis.padding)
        )
        rough.basis = exact.basis._replace(analysis=analysis, padding=padding)
        rough.a = exact.a + off * size * signs(size)
        rough.b_minus_a = exact.b_minus_a + 2 * off * size * signs(size)
        rough.b_plus_a = exact.b_plus_a + 2 * off * size * signs(size)
        worst = max(worst, float(torch.linalg.matrix_norm(matrix(rough) - matrix(exact), 2)))
    assert worst <= bound <= 100 * worst


@pytest.mark.parametrize("series", ["isometric", "wide"])
def test_taps_that_only_the_torus_sees_are_counted(series: str) -> None:
    """On maps of one row the taps below it meet nothing but zeros, on the torus they meet rounding errors."""
    torch.manual_seed(0)
    layer = lc.SOC(16, 16, 3, bias=False, series=series)
    with torch.no_grad():
        layer.weight[2:] *= 1e16
    sums = torch.ones(2, 128)
    sums[0] = -1
    model = nn.Sequential(layer, Flatten(), ConstantHead(sums, torch.tensor([1e30, 0.0])))
    images = torch.rand(512, 16, 1, 8)
    found = lc.certify(model, images, batch_size=1)
    at_once = certified_classifier(model, (16, 1, 8)).logits(images).argmax(1)
    assert (at_once != found.prediction).any(), "the two ways agree, so nothing is tested"
    assert not (found.radius[at_once != found.prediction] > 0).any()


@pytest.mark.parametrize("layer", [lc.MaxMin(), lc.GroupSort(4), Flatten()])
def test_layers_that_only_move_numbers_are_exact(layer: LipschitzModule) -> None:
    inputs = torch.randn(5, 8, 3, 3)
    assert torch.equal(layer(inputs).double(), layer(inputs.double()))
    assert forward_error(layer, (8, 3, 3), 1.0) == rounding.EXACT


@pytest.mark.parametrize("bias", [0.0, 2.0**8, 2.0**16])
@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
@torch.no_grad()
def test_a_whole_network_in_float32_is_within_the_bound(conv: str, bias: float, single: None) -> None:
    model = lc.lipconvnet(10, conv, num_classes=5, width=4, image_size=8, in_channels=1)
    model.body.stage1.conv1.bias.fill_(bias)  # type: ignore[union-attr, operator]
    images, radius = torch.rand(8, 1, 8, 8), torch.full((8,), 0.25, dtype=torch.float64)
    network = exact_network(model, (1, 8, 8), torch.float32)
    assert network.head is not None
    _, norms = _forward(network, network.head, images, torch.device("cpu"), 8)
    layers = [(proved.bound, proved.error) for proved in network.layers]
    error, size = body_error(layers, norms, radius)
    distances = network.head.pair_distance_bounds()
    classes = torch.zeros(8, dtype=torch.int64)
    slack = head_error(network.head, classes, error, size, distances)
    for _ in range(5):  # any point of the ball, not only the image
        step = torch.randn_like(images)
        point = images + step * (0.2499 / step.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
        x, exact = point, point.double()
        for proved in network.layers:
            x = proved.layer.float()(x)
            exact = proved.layer.double()(exact)
        assert ((x.double() - exact).norm(dim=1) <= error).all()
        assert (exact.norm(dim=1) <= size).all()
        single_logits, logits = network.head.float()(x).double(), network.head.double()(exact)
        pairs = (single_logits[:, :1] - single_logits) - (logits[:, :1] - logits)
        assert (pairs.abs() <= slack).all()
        assert (pairs.abs() > 0).any()


def far_points(radius: float) -> torch.Tensor:
    step = torch.randn(200, 2)
    return torch.tensor([[0.3, 0.7]]) + radius * 0.999 * step / step.norm(dim=1, keepdim=True)


@torch.no_grad()
def test_the_rounding_of_layers_is_needed(single: None) -> None:
    layer, points = FrozenLinear(torch.eye(2) / 3, torch.tensor([2.0**12, 0.0])), far_points(1.0)
    actual = (layer(points).double() - layer.double()(points.double())).norm(dim=1).max()
    norms = [torch.ones(1, dtype=torch.float64), torch.full((1,), 2.0**12, dtype=torch.float64)]
    radius = torch.ones(1, dtype=torch.float64)
    assert body_error([(0.34, rounding.EXACT)], norms, radius)[0] < actual
    assert body_error([(0.34, forward_error(layer, (2,), 0.34))], norms, radius)[0] > actual


@torch.no_grad()
def test_the_size_of_the_ball_is_needed(single: None) -> None:
    layer, points = FrozenLinear(torch.eye(2) / 3, None), far_points(1e7)
    actual = (layer(points).double() - layer.double()(points.double())).norm(dim=1).max()
    norms = [torch.ones(1, dtype=torch.float64)] * 2
    layers = [(0.34, forward_error(layer, (2,), 0.34))]
    assert body_error(layers, norms, torch.zeros(1, dtype=torch.float64))[0] < actual
    assert body_error(layers, norms, torch.full((1,), 1e7, dtype=torch.float64))[0] > actual


@torch.no_grad()
def test_the_rounding_of_the_head_is_needed(single: None) -> None:
    head, points = (
        ConstantHead(torch.tensor([[1 / 3, 0.1], [1 / 7, 1.3]]), torch.tensor([0.1, 100.0])),
        far_points(5.0),
    )
    computed, exact = head(points).double(), head.double()(points.double())
    actual = ((computed[:, 0] - computed[:, 1]) - (exact[:, 0] - exact[:, 1])).abs().max()
    distances = head.pair_distance_bounds()
    zero, size = torch.zeros(1, dtype=torch.float64), torch.full((1,), 6.0, dtype=torch.float64)
    with_head = head_error(head, torch.tensor([0]), zero, size, distances)[0, 1]
    without = zero * distances[0, 1]
    assert without < actual < with_head


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 7), (16, 12), (17, 31), (32, 32), (1, 3), (64, 1)])
def test_the_fourier_transform_is_within_its_bound(height: int, width: int) -> None:
    x = np.random.default_rng(0).standard_normal((height, width))
    exact = scipy.fft.fft2(x.astype(np.longdouble))  # 64 bits of mantissa
    difference = (torch.fft.fft2(torch.from_numpy(x)).numpy() - exact).astype(np.complex128)
    error = np.linalg.norm(difference) / np.linalg.norm(exact.astype(np.complex128))
    assert 0 < error <= fourier_error(height, width)


class Own(LipschitzModule):
    """A layer of somebody else's: proved bound, no word on rounding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.3

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return 0.3000001


class Careful(Own):
    def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
        return 2.0**-53, 0.0


class Careless(Own):
    def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
        return math.nan, 0.0


def test_a_layer_must_state_its_rounding() -> None:
    head = ConstantHead(torch.eye(2), None)
    image = torch.tensor([0.2, 0.9]).view(1, 2, 1, 1)
    with pytest.raises(NotProvedError, match="0: Own has no proved rounding error; give it a method"):
        lc.certify(nn.Sequential(Own(), Flatten(), head), image)
    with pytest.raises(NotProvedError, match="0: Careless has no finite rounding error"):
        lc.certify(nn.Sequential(Careless(), Flatten(), head), image)
    assert lc.certify(nn.Sequential(Careful(), Flatten(), head), image).radius > 0
    assert lc.certify(nn.Sequential(Own(), Flatten(), head), image, precision="float32").radius > 0
    assert lc.lipschitz_upper_bound(nn.Sequential(Own(), Flatten(), head), (2, 1, 1)) > 0.3


@pytest.mark.parametrize("kind", ["linear", "matrix"])
@torch.no_grad()
def test_a_bias_takes_part_in_every_rounding_of_its_sum(kind: str) -> None:
    """Libraries begin the sum with the bias: n small products are added to one large number."""
    n, outputs, large = 4096, 64, 2.0**46
    weight = torch.zeros(outputs, n, dtype=torch.float64)
    weight[0] = 1 / 64
    bias = torch.zeros(outputs, dtype=torch.float64)
    bias[0] = large
    layer: LipschitzModule
    if kind == "linear":
        layer, shape = FrozenLinear(weight, bias), (n,)
    else:
        layer, shape = FrozenMatrix(weight, bias, (n, 1, 1), (outputs, 1, 1)), (n, 1, 1)  # type: ignore[assignment]
    inputs = torch.full((16, *shape), 0.5 - 2.0**-40, dtype=torch.float64)
    exact = (0.5 - 2.0**-40) * n / 64  # to the bit, in front of the bias
    off = float((layer(inputs).flatten(1)[:, 0] - large - exact).abs().max())
    claimed = forward_error(layer, shape, 1.0)
    assert off <= claimed.relative * float(inputs[0].norm()) + claimed.absolute
    # Whatever this library does, one that adds the products one by one loses half of each to the bias.
    one_by_one = torch.tensor(large, dtype=torch.float64)
    for product in (weight[0] * inputs[0].flatten()).tolist():
        one_by_one += product
    lost = abs(float(one_by_one) - large - exact)
    assert 1 < lost <= claimed.relative * float(inputs[0].norm()) + claimed.absolute


def test_the_error_of_two_layers_by_hand() -> None:
    layers = [(2.0, ForwardError(0.5, 0.25)), (3.0, ForwardError(0.125, 0.0))]
    norms = [torch.tensor([n], dtype=torch.float64) for n in (1.0, 4.0, 8.0)]
    error, size = body_error(layers, norms, torch.ones(1, dtype=torch.float64))
    # sizes 1 + 1 = 2 and 4 + 2 * 1.25 + 2 = 8.5; E = 0.5 * 2 + 0.25 = 1.25, then 3 * 1.25 + 8.5 / 8
    assert error.item() == pytest.approx(4.8125, rel=2e-5)
    assert size.item() == pytest.approx(8 + 2 * 4.8125 + 6, rel=2e-5)


def test_errors_of_features_reach_the_logits() -> None:
    head = ConstantHead(torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64), None)
    zero = torch.zeros(1, dtype=torch.float64)
    found = head_error(
        head, torch.tensor([0]), torch.tensor([0.5], dtype=torch.float64), zero, head.pair_distance_bounds()
    )
    assert found[0, 1].item() == pytest.approx(2.5, rel=2e-5)


def test_both_fourier_transforms_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "fourier_error", lambda h, w: 1e-3)
    layer = lc.Cayley(6, 8, 3, bias=False).double().freeze((6, 5, 6))
    assert rounding.forward_error(layer, (6, 5, 6), 1.0).relative >= 4e-3


@torch.no_grad()
def test_householder_of_higher_order_counts_its_angles() -> None:
    """docs/layers/activations.md: (3 |theta| + 40 n + 300) u."""
    layer = lc.HouseholderOrder(8, order=3).double()
    with torch.no_grad():
        layer.theta.fill_(1000.0)
    assert forward_error(layer, (8,), 1.0).relative >= (3 * 1000 + 40 * 3 + 300) * 2**-53


@pytest.mark.parametrize(
    "build",
    [
        lambda shape: Normalize((0.4, 0.5, 0.6) * 2, 0.25),
        lambda shape: lc.SOC(6, 8, 3).double().frozen_series(shape),
        lambda shape: lc.BCOP(6, 8, 3).double().freeze(shape),
        lambda shape: lc.Cayley(6, 8, 3).double().freeze(shape),
    ],
    ids=["normalize", "series", "circular", "spectral"],
)
def test_a_bias_is_rounded_at_every_pixel(build) -> None:
    """Four times the pixels, twice the norm of the bias over all of them."""

    def absolute(side: int) -> float:
        torch.manual_seed(0)
        return forward_error(build((6, side, side)), (6, side, side), 1.0).absolute

    assert absolute(8) == pytest.approx(2 * absolute(4), rel=1e-9)


@pytest.mark.parametrize(
    ("layer", "turns"), [(lc.Householder(8), 1), (lc.HouseholderChain(8, length=3), 3)], ids=["hh1", "chain"]
)
@torch.no_grad()
def test_every_reflection_counts_its_angle(layer: LipschitzModule, turns: int) -> None:
    layer.double().theta.fill_(1000.0)
    assert forward_error(layer, (8,), 1.0).relative >= turns * 1000 * 2.0**-53


def test_every_reflection_of_a_group_counts() -> None:
    one, three = (
        forward_error(lc.HouseholderND(8, group_size=4, length=n).double(), (8,), 1.0).relative
        for n in (1, 3)
    )
    assert three >= 1.9 * one  # (length + 1) of them
