import copy
from dataclasses import replace

import pytest
import torch

import lipcert as lc
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.kernels.series import SERIES
from lipcert.kernels.skew import Pivot, SkewOperator
from lipcert.kernels.skew_norms import CONVERGED_ITERATIONS, TRAINING_ITERATIONS, start_vector
from lipcert.nn import soc as soc_module
from lipcert.nn.carried import complete_state
from lipcert.nn.soc import SOC
from lipcert.operators import SkewPolynomial
from tests.contracts.dense import dense_jacobian, dense_matrix, rounding, worst_singular_value
from tests.contracts.histories import HISTORIES, History
from tests.reference.exponential import PAPER_ERROR, dense_convolution
from tests.reference.skew import transpose_kernel

every_series = pytest.mark.parametrize("series", SERIES)


def test_the_exponential_series_is_the_exponential() -> None:
    layer = SOC(4, 4, 3, bias=False, series="exponential").double().eval()
    operator = layer.freeze((4, 4, 3))
    assert isinstance(operator, SkewPolynomial)
    kernel = operator.kernel()
    # A is 0.7 / sigma times the skew part, sigma the smallest norm of four reshapes: at most 2.1 in all.
    square = kernel.permute(0, 2, 1, 3).reshape(12, 12)
    sigma = min(torch.linalg.matrix_norm(m, 2) for m in (kernel.reshape(4, -1), square))
    torch.testing.assert_close(sigma, torch.tensor(0.7, dtype=torch.float64), rtol=1e-6, atol=0)
    exact = torch.linalg.matrix_exp(dense_convolution(kernel, 4, 3))
    difference = torch.linalg.matrix_norm(dense_matrix(layer, (4, 4, 3)) - exact, 2)
    assert difference < PAPER_ERROR


def test_channels_are_padded_with_zeros_and_cut() -> None:
    wide, layer = SOC(6, 6, 3, bias=False).double().eval(), SOC(2, 6, 3, bias=False).double().eval()
    layer.load_state_dict(wide.state_dict())
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    padded = torch.cat([x, torch.zeros(3, 4, 4, 4, dtype=torch.float64)], 1)
    torch.testing.assert_close(layer(x), wide(padded))
    narrow = SOC(6, 4, 3, bias=False).double().eval()
    narrow.load_state_dict(wide.state_dict())
    torch.testing.assert_close(narrow(padded), wide(padded)[:, :4])


@every_series
def test_training_and_evaluation_agree_within_the_training_error(series: str) -> None:
    layer = SOC(8, 8, 3, series=series)
    x = torch.randn(4, 8, 5, 5)
    trained = layer(x)
    evaluated = layer.eval()(x)
    # Moduli differ by the two stated errors, phases by at most 0.0505 (tests/kernels/test_series.py).
    allowed = layer.training_series.modulus_error + layer.orthogonality_error + 0.0505
    assert (trained - evaluated).norm() <= allowed * x.norm()


@every_series
def test_evaluation_depends_on_nothing_that_ran_before(series: str) -> None:
    layer = SOC(4, 6, 3, series=series)
    x = torch.randn(2, 4, 4, 4)
    fresh = copy.deepcopy(layer).eval()(x)
    for _ in range(3):
        layer.train()(torch.randn(2, 4, 6, 6))
    layer.eval()(torch.randn(1, 4, 3, 3))
    layer.vector.mul_(1e6)
    assert torch.equal(layer(x), fresh)


@every_series
def test_a_resumed_layer_continues_to_the_same_bits(series: str) -> None:
    layer = SOC(4, 6, 3, series=series)
    x = torch.randn(2, 4, 4, 4)
    layer(x)
    resumed = SOC(4, 6, 3, series=series)
    resumed.load_state_dict(complete_state(layer))
    for _ in range(2):
        assert torch.equal(layer(x), resumed(x))


def test_evaluation_can_be_fine_tuned() -> None:
    layer = SOC(4, 4, 3).double().eval()
    x = torch.randn(2, 4, 4, 4, dtype=torch.float64)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": weight}, (x,)).square().mul(x).sum()

    # After 200 iterations the norm is known to about 1e-7, its vectors, and so the gradient, to the root of
    # that.
    weight = layer.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (weight,), rtol=2e-3, atol=1e-3)


@every_series
@pytest.mark.parametrize("shape", [(4, 2, 2), (4, 24, 24)], ids=str)
def test_it_freezes_to_its_evaluation_polynomial(series: str, shape: tuple[int, int, int]) -> None:
    layer = SOC(4, 4, 3, series=series).double().eval()
    operator = layer.freeze(shape)
    assert isinstance(operator, SkewPolynomial)
    assert operator.coefficients == layer.evaluation_series.coefficients
    x = torch.randn(3, *shape, dtype=torch.float64)
    torch.testing.assert_close(operator.apply(x), layer(x))
    exact = torch.linalg.matrix_norm(dense_matrix(operator.apply, shape), 2) if shape[1] < 9 else 1 - 5e-4
    assert exact <= operator.lipschitz_bound(shape) <= 1 + 1e-6


def test_the_bound_follows_the_kernel_that_runs() -> None:
    """A kernel that somebody scaled is bounded as it is, and every kernel that an operator holds is skew."""
    operator = SOC(3, 3, 3).double().eval().freeze((3, 24, 24))
    assert isinstance(operator, SkewPolynomial)
    assert operator.lipschitz_bound((3, 24, 24)) <= 1
    scaled = replace(operator, factor=4 * operator.factor, centre_factor=4 * operator.centre_factor)
    assert scaled.lipschitz_bound((3, 24, 24)) > 2
    changed = replace(operator, taps=operator.taps + 1e-3 * torch.randn_like(operator.taps))
    assert not torch.equal(changed.kernel(), operator.kernel())
    assert torch.equal(transpose_kernel(changed.kernel()), -changed.kernel())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 8, 8), "SkewPolynomial: expected maps of 12 channels"),
        ((3, 7, 8), "SpaceToDepth: expected maps of even height and width"),
        ((3,), "SpaceToDepth: expected maps"),
    ],
    ids=str,
)
def test_the_operator_refuses_what_the_layer_refuses(shape: tuple[int, ...], message: str) -> None:
    layer = SOC(3, 8, 3, stride=2).eval()
    with pytest.raises(ArgumentError, match=message):
        layer.freeze((3, 8, 8)).output_shape(shape)
    with pytest.raises(ArgumentError, match="SOC: "):
        layer.freeze(shape)


@every_series
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(series: str, value: float) -> None:
    layer = SOC(3, 3, 3, series=series)
    with torch.no_grad():
        layer.weight[1, 0, 2] = value
    with pytest.raises(NotProvedError, match="SOC: its weights are not finite; the model diverged"):
        layer.freeze((3, 4, 4))


@every_series
def test_weights_of_zeros_freeze_to_the_constant_term(series: str) -> None:
    layer = SOC(3, 3, 3, bias=False, series=series).eval()
    with torch.no_grad():
        layer.weight.zero_()
        x = torch.rand(2, 3, 4, 4)
        torch.testing.assert_close(layer.freeze((3, 4, 4)).apply(x), layer(x))
        torch.testing.assert_close(layer(x), layer.evaluation_series.coefficients[0] * x)


def test_a_layer_is_built_whatever_device_is_the_default() -> None:
    layer = SOC(2, 3, 3).eval()
    with torch.device("meta"):
        y = layer(torch.ones(1, 2, 4, 4, device="cpu"))
    assert y.device.type == "cpu"
    assert y.isfinite().all()


def test_bad_arguments() -> None:
    with pytest.raises(
        ArgumentError, match="series: expected one of exponential, isometric, wide, got 'isomertic'; did you"
    ):
        SOC(3, 3, 3, series="isomertic")
    with pytest.raises(ArgumentError, match="kernel_size: SOC takes 1, 3, 5, got 2"):
        SOC(3, 3, 2)


def test_repr_names_the_series() -> None:
    assert repr(SOC(3, 4, 3, stride=2)) == "SOC(3, 4, kernel_size=3, stride=2, series='isometric')"


@every_series
def test_one_channel_is_the_identity_up_to_its_modulus(series: str) -> None:
    """A skew 1x1 matrix is zero: nothing to scale, and p(0) is its constant term."""
    layer = SOC(1, 1, 1, bias=False, series=series)
    x = torch.rand(2, 1, 3, 3)
    for mode in (True, False):
        constant = (layer.training_series if mode else layer.evaluation_series).coefficients[0]
        torch.testing.assert_close(layer.train(mode)(x), constant * x)
    assert layer.lipschitz_bound((1, 3, 3)) <= 1


@every_series
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_the_size_of_the_weights_is_immaterial(series: str, size: float) -> None:
    layer = SOC(4, 4, 3, series=series).eval()
    x = torch.rand(2, 4, 4, 4)
    with torch.no_grad():
        expected = layer(x)
        layer.weight *= size
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    assert layer.lipschitz_bound((4, 4, 4)) <= 1 + 1e-12


@every_series
@pytest.mark.parametrize("history", HISTORIES, ids=lambda h: h.__name__)
@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "stride", "shape"),
    [(3, 3, 3, 1, (3, 4, 3)), (2, 8, 3, 2, (2, 4, 4)), (4, 2, 5, 1, (4, 3, 3)), (3, 5, 1, 2, (3, 2, 2))],
)
def test_every_series_keeps_the_contract(
    series: str,
    history: History,
    inputs: int,
    outputs: int,
    size: int,
    stride: int,
    shape: tuple[int, int, int],
) -> None:
    """The contract's first law; its tests build the default series alone."""

    def build() -> SOC:
        return SOC(inputs, outputs, size, stride=stride, series=series)

    jacobian = dense_jacobian(history(build, shape), shape)
    assert worst_singular_value(jacobian) <= build().orthogonality_error + rounding(jacobian)


def test_training_keeps_up_with_kernels_that_move_fast() -> None:
    """Two easy classes, few channels, small batches and the highest learning rate of the short recipe."""
    model = lc.lipconvnet(5, num_classes=2, width=4, series="wide").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    loss_of = lc.CertificateLoss(0.5)
    labels = torch.arange(16) % 2
    worst = 0.0
    for step in range(20):
        optimizer.param_groups[0]["lr"] = 0.3 * min(1, (step + 1) / 6)
        images = 0.4 * torch.rand(16, 3, 32, 32) + 0.6 * labels.view(-1, 1, 1, 1)
        loss = loss_of(model, model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worst = max(worst, loss.item())
    assert worst < 50


def test_training_goes_on_from_the_last_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], soc_module.operator_norm_estimate

    def estimate(operator: SkewOperator, vector: torch.Tensor, iterations: int, *, stop_early: bool) -> Pivot:
        asked.append((iterations, stop_early))
        return real(operator, vector, iterations, stop_early=stop_early)

    monkeypatch.setattr(soc_module, "operator_norm_estimate", estimate)
    layer, x = SOC(4, 4, 3), torch.randn(2, 4, 6, 6)
    for _ in range(3):
        layer(x)
    few = (TRAINING_ITERATIONS, False)
    assert asked == [(CONVERGED_ITERATIONS, False), few, few]


@pytest.mark.parametrize("series", ["isometric", "wide"])
def test_a_norm_that_is_hidden_from_the_iteration_is_refused(series: str) -> None:
    """A large plane orthogonal to the start vector: only rounding errors would ever find it."""
    size = 16
    start = start_vector(torch.empty(0, dtype=torch.float64), 1, size, 1, 1).flatten()
    basis = torch.linalg.qr(torch.cat([start[:, None], torch.randn(size, size - 1).double()], dim=1)).Q
    one, two, three, four = basis[:, 1:5].T
    layer = SOC(size, size, 1, series=series).double().eval()
    weak = torch.outer(basis[:, 0], three) + torch.outer(three, four)
    with torch.no_grad():
        layer.weight[0] = weak + 3 * torch.outer(one, two)
    with pytest.raises(NotProvedError, match="whose norm the power iteration does not find"):
        layer.freeze((size, 1, 1))
    with torch.no_grad():
        layer.weight[0] = weak
    assert layer.freeze((size, 1, 1)).lipschitz_bound((size, 1, 1)) <= 1
