"""AOC as a layer: stride, groups and dilation; what every convolution promises is in tests/contracts."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from lipcert import load, prove
from lipcert.errors import ArgumentError
from lipcert.nn.aoc import AOC
from lipcert.nn.aoc_transpose import AOCTranspose2d
from lipcert.nn.bcop import BCOP
from lipcert.nn.shape import Flatten
from lipcert.operators import CircularConvolution, Sequence, SpaceToDepth
from lipcert.optim import Muon, muon_groups
from tests.contracts.dense import dense_jacobian, dense_matrix, rounding, worst_singular_value

# in, out, kernel, stride, groups, dilation, height, width
CASES = [
    (3, 4, 3, 1, 1, 2, 5, 4),
    (4, 4, 3, 1, 2, 1, 3, 3),
    (4, 4, 3, 1, 4, 1, 3, 3),  # depthwise: every channel only changes its sign
    (6, 4, 5, 1, 2, 3, 4, 4),
    (3, 5, 3, 2, 1, 1, 4, 6),
    (2, 16, 3, 2, 1, 1, 4, 2),  # embeds 2 channels in 4
    (4, 36, 5, 2, 2, 1, 2, 2),
    (4, 6, 5, 2, 2, 3, 6, 4),
    (2, 2, 3, 2, 2, 5, 4, 4),
    (4, 8, 1, 2, 2, 2, 4, 2),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def build(case: tuple[int, ...]) -> AOC:
    inputs, outputs, kernel, stride, groups, dilation = case[:6]
    return AOC(inputs, outputs, kernel, stride=stride, groups=groups, dilation=dilation, dtype=torch.float64)


@every_case
@pytest.mark.parametrize("training", [True, False])
def test_jacobian_is_orthonormal(case: tuple[int, ...], training: bool) -> None:
    layer = build(case).train(training)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    shape = (case[0], *case[6:])
    jacobian = dense_jacobian(layer, shape)
    assert worst_singular_value(jacobian) <= layer.orthogonality_error + rounding(jacobian)
    exact = copy.deepcopy(layer).eval()
    assert 1 - 1e-13 <= exact.lipschitz_bound(shape) <= 1 + 1e-10


@every_case
def test_it_is_one_circular_conv2d(case: tuple[int, ...]) -> None:
    layer = build(case).eval()
    inputs, outputs, kernel, stride, groups, dilation, *pixels = case
    x = torch.randn(2, inputs, *pixels, dtype=torch.float64)
    operator = layer.freeze((inputs, *pixels))
    with torch.no_grad():
        y = layer(x)
    torch.testing.assert_close(operator.apply(x), y, rtol=0, atol=1e-13)
    if kernel == 1:
        assert isinstance(operator, Sequence)
        assert [type(part) for part in operator.parts] == [SpaceToDepth, CircularConvolution]
        return
    assert isinstance(operator, CircularConvolution)
    reach = dilation * (kernel // 2)
    rows, columns = ((torch.arange(-reach, side + reach) % side) for side in pixels)
    plain = nn.Conv2d(inputs, outputs, kernel, stride, dilation=dilation, groups=groups, dtype=torch.float64)
    plain.weight.data, plain.bias.data = operator.kernel, layer.bias.data  # type: ignore[union-attr]
    torch.testing.assert_close(y, plain(x[:, :, rows][..., columns]), rtol=0, atol=1e-13)


@every_case
def test_gradients(case: tuple[int, ...]) -> None:
    layer = build(case)
    x = torch.randn(1, case[0], *case[6:], dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def output(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), x)

    assert torch.autograd.gradcheck(output, (x, *values), fast_mode=True)


@pytest.mark.parametrize("channels", [(3, 5), (5, 3)])
def test_without_stride_and_groups_it_is_bcop(channels: tuple[int, int]) -> None:
    layer, other = AOC(*channels, 3, dtype=torch.float64), BCOP(*channels, 3, dtype=torch.float64)
    with torch.no_grad():
        other.weight.copy_(layer.weight[0])
        other.bases.copy_(layer.bases[:, 0])
    torch.testing.assert_close(layer.kernel(), other.kernel(), rtol=0, atol=1e-14)


def test_every_tap_of_a_strided_kernel_is_used() -> None:
    taps = AOC(8, 16, 3, stride=2).kernel().detach().square().sum(dim=(0, 1))
    assert float(taps.min() / taps.max()) > 1e-3


def test_groups_do_not_see_each_other() -> None:
    matrix = dense_matrix(AOC(4, 6, 3, groups=2, dtype=torch.float64).eval(), (4, 3, 3))
    first, second = matrix.view(2, 3 * 9, 2, 2 * 9).unbind(0)
    assert not first[:, 1].any()
    assert not second[:, 0].any()


def test_steps_keep_it_orthogonal_in_float32() -> None:
    layer = AOC(4, 6, 3, stride=2)
    optimiser = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    target = torch.randn(8, 6, 2, 2)
    for _ in range(20):
        optimiser.zero_grad()
        (layer(torch.randn(8, 4, 4, 4)) - target).square().mean().backward()
        optimiser.step()
    operator = layer.freeze((4, 4, 4)).to(dtype=torch.float64)
    assert worst_singular_value(dense_matrix(operator.apply, (4, 4, 4))) <= layer.orthogonality_error


@pytest.mark.parametrize("case", [case for case in CASES if case[2] > 1], ids=str)
def test_the_transposed_layer_is_the_adjoint(case: tuple[int, ...]) -> None:
    inputs, outputs, kernel, stride, groups, dilation, height, width = case
    layer = AOCTranspose2d(
        outputs, inputs, kernel, stride=stride, groups=groups, dilation=dilation, dtype=torch.float64
    )
    small, large = (outputs, height // stride, width // stride), (inputs, height, width)
    assert layer.output_shape(small) == large
    x = torch.randn(2, *small, dtype=torch.float64)
    trained = layer(x)
    matrix = dense_jacobian(layer.eval(), small)
    torch.testing.assert_close(matrix, dense_matrix(layer.adjoint, large).T, rtol=0, atol=1e-13)
    assert worst_singular_value(matrix) <= layer.orthogonality_error + rounding(matrix)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), trained, rtol=0, atol=1e-13)
    torch.testing.assert_close(layer.freeze(small).apply(x), trained, rtol=0, atol=1e-13)
    assert layer.lipschitz_bound(small) <= 1 + 1e-10


def test_a_transposed_layer_trains_and_is_proved(tmp_path: Path) -> None:
    model = nn.Sequential(AOC(2, 8, 3, stride=2), AOCTranspose2d(8, 2, 3, stride=2), Flatten())
    optimiser = Muon(muon_groups(model), lr=0.1)
    before = model[1].adjoint.weight.clone()  # type: ignore[union-attr]
    model(torch.randn(4, 2, 4, 4)).square().sum().backward()
    optimiser.step()
    assert not torch.equal(before, model[1].adjoint.weight)  # type: ignore[union-attr,arg-type]
    proved = prove(model.eval(), (2, 4, 4))
    assert proved.lipschitz <= 1 + 1e-10
    proved.save(tmp_path / "net.proved.safetensors")
    x = torch.rand(3, 2, 4, 4)
    loaded = load(tmp_path / "net.proved.safetensors")
    assert torch.equal(loaded.logits(x), proved.logits(x))
    torch.testing.assert_close(proved.logits(x).float(), model(x).detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "x", "message"),
    [
        ((4, 2, 1), None, "kernel_size: AOCTranspose2d takes 3 or 5 at stride 2, got 1"),
        ((4, 2, 3), torch.zeros(4, 2, 2), "AOCTranspose2d: expected a batch of maps"),
        ((4, 2, 3), torch.zeros(1, 2, 2, 2), "AOCTranspose2d: expected maps of 4 channels, got shape"),
    ],
)
def test_bad_transposed_layers(arguments: tuple[int, int, int], x: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AOCTranspose2d(*arguments, stride=2)(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 3}, "groups: expected a divisor of 4 and 6 channels, got 3"),
        ({"groups": 0}, "groups: expected a positive integer, got 0"),
        ({"dilation": 2, "stride": 2}, "dilation: expected an odd one at stride 2, got 2"),
        ({"dilation": 0}, "dilation: expected a positive integer, got 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AOC(4, 6, 3, **arguments)  # type: ignore[arg-type]
