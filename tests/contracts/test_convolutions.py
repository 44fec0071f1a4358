"""What every registered convolution promises; a new one is picked up from the registry, unnamed here."""

import copy

import pytest
import torch
from torch import nn

from lipcert.errors import ArgumentError
from lipcert.nn import CONVOLUTIONS, OrthogonalConv2d
from tests.contracts.dense import dense_jacobian, dense_matrix, rounding, worst_singular_value
from tests.contracts.histories import HISTORIES, History
from tests.contracts.layers import CASES, Case, convolution, convolution_cases

ORTHOGONAL = [name for name, kind in CONVOLUTIONS.items() if issubclass(kind, OrthogonalConv2d)]
every_case = pytest.mark.parametrize(("name", "case"), convolution_cases(CASES))
LINEAR = [name for name, kind in CONVOLUTIONS.items() if kind.linear]
every_linear_case = pytest.mark.parametrize(("name", "case"), convolution_cases(CASES, LINEAR))
every_orthogonal_case = pytest.mark.parametrize(("name", "case"), convolution_cases(CASES, ORTHOGONAL))
few_cases = pytest.mark.parametrize(("name", "case"), convolution_cases([CASES[1], CASES[7]]))


@every_orthogonal_case
@pytest.mark.parametrize("history", HISTORIES, ids=lambda h: h.__name__)
def test_the_jacobian_is_orthogonal(name: str, case: Case, history: History) -> None:
    build = convolution(name, case)
    function = history(build, case.shape)
    jacobian = dense_jacobian(function, case.shape)
    # An operator has no error of its own to state; the layer it came from has.
    error = getattr(function, "orthogonality_error", build().double().orthogonality_error)
    assert worst_singular_value(jacobian) <= error + rounding(jacobian)


@every_linear_case
def test_forward_and_backward_are_the_same_matrix(name: str, case: Case) -> None:
    layer = convolution(name, case)().double().eval()
    forward, backward = dense_matrix(layer, case.shape), dense_jacobian(layer, case.shape)
    torch.testing.assert_close(forward, backward, rtol=0, atol=rounding(forward))


@every_case
def test_the_shapes_are_those_of_conv2d(name: str, case: Case) -> None:
    layer = convolution(name, case)()
    plain = nn.Conv2d(case.inputs, case.outputs, case.kernel, stride=case.stride, padding=case.kernel // 2)
    x = torch.randn(2, *case.shape)
    assert layer(x).shape == plain(x).shape == (2, *layer.output_shape(case.shape))


@every_case
def test_the_bound_holds_and_is_close(name: str, case: Case) -> None:
    layer = convolution(name, case)().double().eval()
    norm = float(torch.linalg.matrix_norm(dense_jacobian(layer, case.shape), 2))
    bound = layer.lipschitz_bound(case.shape)
    assert bound >= norm * (1 - 1e-14)
    # Against the largest the layer admits to, since a small map need not reach it.
    assert bound <= (1 + getattr(layer, "orthogonality_error", 0.0)) * (1 + 1e-4)


@few_cases
def test_gradcheck(name: str, case: Case) -> None:
    layer = convolution(name, case)().double().eval()
    x = torch.randn(2, *case.shape, dtype=torch.float64, requires_grad=True)
    names, values = zip(
        *((n, p.detach().clone().requires_grad_()) for n, p in layer.named_parameters()), strict=True
    )

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


@few_cases
def test_a_precision_other_than_that_of_the_weights_is_refused(name: str, case: Case) -> None:
    layer = convolution(name, case)()
    with pytest.raises((ArgumentError, RuntimeError), match=r"float|double|Double"):
        layer(torch.randn(1, *case.shape, dtype=torch.float64))


@few_cases
def test_single_precision_agrees(name: str, case: Case) -> None:
    layer = convolution(name, case)().eval()
    exact = copy.deepcopy(layer).double()
    x = torch.randn(3, *case.shape)
    with torch.no_grad():
        error = (layer(x) - exact(x.double())).norm() / exact(x.double()).norm()
    assert error < 1e-5  # eps is 6e-8, times the few dozen operations behind each output


@few_cases
def test_bfloat16_autocast_agrees_in_training_and_evaluation(name: str, case: Case) -> None:
    layer = convolution(name, case)()
    x = torch.randn(3, *case.shape)
    for mode in (True, False):
        layer.train(mode)
        plain = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = layer(x)
            half.float().square().sum().backward()
        # eps is 4e-3; a polynomial of degree 12 adds up a few of them.
        assert float((half.float() - plain).detach().norm() / plain.detach().norm()) < 0.05
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
        assert all(p.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_the_gradient_keeps_its_norm_through_40_layers(name: str) -> None:
    layers = nn.Sequential(*(CONVOLUTIONS[name](4, 4, 3) for _ in range(40))).eval()
    x = torch.randn(2, 4, 4, 4, requires_grad=True)
    u = torch.randn(2, 4, 4, 4)
    (gradient,) = torch.autograd.grad(layers(x), x, u)
    gain = gradient.flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)
    # As much as the layers themselves state, each; and rounding, of which there is little beside it.
    assert float((gain - 1).abs().max()) <= 40 * layers[0].orthogonality_error + 1e-4  # type: ignore[operator]


@few_cases
def test_evaluation_is_the_same_with_and_without_gradients(name: str, case: Case) -> None:
    layer = convolution(name, case)().double().eval()
    x = torch.randn(2, *case.shape, dtype=torch.float64)
    with torch.no_grad():
        quick = layer(x)
    with torch.inference_mode():
        inferred = layer(x)
    torch.testing.assert_close(layer(x).detach(), quick, rtol=0, atol=1e-13)
    torch.testing.assert_close(inferred.clone(), quick, rtol=0, atol=1e-13)
    # What inference mode has left behind must not disturb a backward pass.
    layer.requires_grad_(False)
    y = layer(x.clone().requires_grad_())
    y.sum().backward()


@few_cases
def test_a_step_of_an_optimizer_is_seen(name: str, case: Case) -> None:
    layer, fresh = convolution(name, case)().double().eval(), convolution(name, case)().double().eval()
    x = torch.randn(2, *case.shape, dtype=torch.float64)
    with torch.no_grad():
        before = layer(x)
        assert torch.equal(layer(x), before)
    layer(x)[:, 0].sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    with torch.no_grad():
        assert not torch.equal(layer(x), before)
        fresh.load_state_dict(layer.state_dict())
        assert torch.equal(layer(x), fresh(x))


@few_cases
def test_what_inference_mode_left_behind_serves_a_later_attack(name: str, case: Case) -> None:
    layer = convolution(name, case)().eval().requires_grad_(False)
    x = torch.rand(2, *case.shape)
    with torch.inference_mode():
        expected = layer(x).clone()
    x.requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert torch.equal(y, expected)
    assert x.grad is not None


@few_cases
@pytest.mark.parametrize("edit", ["data", "in place", "one entry", "assigned data", "load_state_dict", "to"])
def test_a_change_of_weights_is_seen(name: str, case: Case, edit: str) -> None:
    layer, other = convolution(name, case)().double().eval(), convolution(name, case)().double().eval()
    x = torch.randn(2, *case.shape, dtype=torch.float64)
    with torch.no_grad():
        layer(x)
        if edit == "one entry":  # no version counter sees this
            layer.get_parameter("weight").data.flatten()[1] += 0.5
            other.load_state_dict(layer.state_dict())
        if edit == "load_state_dict":
            layer.load_state_dict(other.state_dict())
        for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True):
            if edit == "data":
                mine.data.copy_(theirs)
            elif edit == "in place":
                mine.copy_(theirs)
            elif edit == "assigned data":
                mine.data = theirs.data.clone()
        if edit == "to":
            layer, other = layer.float(), copy.deepcopy(layer).float()
            x = x.float()
        assert torch.equal(layer(x), other(x))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_without_bias(name: str) -> None:
    layer = CONVOLUTIONS[name](2, 3, 3, bias=False).eval()
    assert layer.bias is None
    assert "bias=False" in repr(layer)
    assert not layer(torch.zeros(1, 2, 4, 4)).any()


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_channels": 0}, "in_channels: expected a positive integer, got 0"),
        ({"out_channels": -1}, "out_channels: expected a positive integer, got -1"),
        ({"out_channels": 2.0}, "out_channels: expected a positive integer, got 2.0"),
        ({"kernel_size": 2}, "kernel_size: .* takes 1, 3"),
        ({"stride": 3}, "stride: expected 1 or 2, got 3"),
    ],
)
def test_bad_arguments(name: str, arguments: dict[str, int], message: str) -> None:
    good = {"in_channels": 2, "out_channels": 3, "kernel_size": 3}
    with pytest.raises(ArgumentError, match=message):
        CONVOLUTIONS[name](**{**good, **arguments})


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 4, 4), r"expected a batch of maps \(N, C, H, W\), got shape \(2, 4, 4\)"),
        (torch.zeros(1, 3, 4, 4), r"expected maps of 2 channels, got shape \(3, 4, 4\)"),
        (torch.zeros(1, 2, 5, 4), "stride 2 needs a map of even height and width, got 5x4"),
        (torch.zeros(1, 2, 4, 4, dtype=torch.int64), "expected floating point input, got torch.int64"),
    ],
    ids=["rank", "channels", "odd map", "dtype"],
)
def test_bad_input(name: str, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        CONVOLUTIONS[name](2, 3, 3, stride=2)(x)
