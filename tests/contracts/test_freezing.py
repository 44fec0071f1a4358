"""What every layer's operator promises: the same function, proved bounds, numbers of its own."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.errors import ArgumentError
from lipcert.models.lipconvnet import HEADS as HEADS_OF_NETWORKS
from lipcert.nn import Flatten, LipschitzModule
from lipcert.operators import Shape
from tests.contracts.dense import allowed, dense_jacobian
from tests.contracts.histories import Build, trained
from tests.contracts.layers import HEADS, every_layer

layers = pytest.mark.parametrize(("build", "shape"), every_layer())
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def evaluated(build: Build, shape: Shape, dtype: torch.dtype = torch.float64) -> LipschitzModule:
    """A trained layer in evaluation mode."""
    return trained(build, shape).to(dtype).eval()


def tensors(layer: LipschitzModule) -> list[Tensor]:
    return [*layer.parameters(), *layer.buffers()]


@layers
@dtypes
def test_the_operator_is_the_layer_in_evaluation(build: Build, shape: Shape, dtype: torch.dtype) -> None:
    layer = evaluated(build, shape, dtype)
    operator = layer.freeze(shape)
    x = torch.randn(5, *shape, dtype=dtype)
    with torch.no_grad():
        expected, found = layer(x), operator.apply(x)
    assert found.dtype == dtype
    assert found.shape == (5, *operator.output_shape(shape))
    assert operator.output_shape(shape) == layer.output_shape(shape)
    difference = (found - expected).double().flatten(1).norm(dim=1)
    assert (difference <= allowed(operator, shape, x)).all()


@layers
@dtypes
def test_the_bound_holds_and_is_close(build: Build, shape: Shape, dtype: torch.dtype) -> None:
    layer = evaluated(build, shape, dtype)
    operator = layer.freeze(shape)
    # Numbers of float32 in float64 arithmetic, so that the oracle rounds nothing but a product per number.
    exact = operator.to(dtype=torch.float64)
    jacobian = dense_jacobian(exact.apply, shape)
    norm = float(torch.linalg.matrix_norm(jacobian, 2))
    bound = operator.lipschitz_bound(shape)
    assert bound >= norm * (1 - 64 * torch.finfo(dtype).eps * max(jacobian.shape))
    # Against the largest the layer admits to, since a small map need not reach it.
    admitted = max(norm, 1 + getattr(layer, "orthogonality_error", 0.0))
    assert bound <= admitted * (1 + 1e-4)


@layers
@dtypes
def test_the_bound_of_a_layer_is_that_of_its_operator_in_float64(
    build: Build, shape: Shape, dtype: torch.dtype
) -> None:
    layer = evaluated(build, shape, dtype)
    bound = layer.lipschitz_bound(shape)
    assert bound == copy.deepcopy(layer).double().freeze(shape).lipschitz_bound(shape)
    assert all(tensor.dtype == dtype for tensor in tensors(layer))


@layers
@dtypes
def test_its_numbers_have_the_precision_of_the_layer_and_no_gradient(
    build: Build, shape: Shape, dtype: torch.dtype
) -> None:
    arrays = build().to(dtype).freeze(shape).arrays()
    assert all(array.dtype == dtype for array in arrays)
    assert not any(array.requires_grad for array in arrays)


@layers
def test_it_shares_no_memory_with_the_layer(build: Build, shape: Shape) -> None:
    layer = evaluated(build, shape)
    operator, x = layer.freeze(shape), torch.randn(3, *shape, dtype=torch.float64)
    before = operator.apply(x).clone()
    owned = {t.untyped_storage().data_ptr() for t in tensors(layer) if t.numel()}
    assert not owned & {a.untyped_storage().data_ptr() for a in operator.arrays() if a.numel()}
    with torch.no_grad():
        for tensor in tensors(layer):
            tensor.fill_(7.0)
    assert torch.equal(operator.apply(x), before)


@layers
def test_two_operators_share_no_memory(build: Build, shape: Shape) -> None:
    """A layer keeps its kernel between calls; what it hands out is nobody else's."""
    layer = evaluated(build, shape).requires_grad_(False)
    x = torch.randn(3, *shape, dtype=torch.float64)
    expected = layer(x)  # fills every cache there is
    first, second = layer.freeze(shape), layer.freeze(shape)
    assert first == second
    for array in first.arrays():
        array.fill_(7.0)
    assert torch.equal(layer(x), expected)
    assert second == layer.freeze(shape)


@layers
@dtypes
def test_pickles_and_copies_are_the_same_operator(build: Build, shape: Shape, dtype: torch.dtype) -> None:
    operator = evaluated(build, shape, dtype).freeze(shape)
    x = torch.randn(3, *shape, dtype=dtype)
    expected = operator.apply(x)  # fills what an operator keeps
    operator.lipschitz_bound(shape)
    for twin in (
        pickle.loads(pickle.dumps(operator)),  # noqa: S301 (made in this line)
        copy.deepcopy(operator),
    ):
        assert twin == operator
        assert torch.equal(twin.apply(x), expected)
        assert twin.lipschitz_bound(shape) == operator.lipschitz_bound(shape)


@layers
def test_the_mode_is_immaterial_and_nothing_is_changed(build: Build, shape: Shape) -> None:
    layer = trained(build, shape)
    state = copy.deepcopy(layer.state_dict())
    numbers = torch.get_rng_state()
    operator = layer.train().freeze(shape)
    assert layer.training
    assert operator == layer.eval().freeze(shape)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())


@layers
def test_it_follows_from_the_state_alone(build: Build, shape: Shape) -> None:
    """Weights that were changed behind the layer's back, after it had used others."""
    layer, fresh = evaluated(build, shape).requires_grad_(False), build().double()
    layer(torch.randn(1, *shape, dtype=torch.float64))
    layer.freeze(shape)
    for tensor in layer.parameters():
        tensor.data.add_(0.1 * torch.randn_like(tensor))
    fresh.load_state_dict(layer.state_dict())
    assert layer.freeze(shape) == fresh.freeze(shape)


@layers
def test_gradients_in_the_input_are_those_of_the_layer(build: Build, shape: Shape) -> None:
    layer = evaluated(build, shape).requires_grad_(False)
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    u = torch.randn(3, *layer.output_shape(shape), dtype=torch.float64)
    operator = layer.freeze(shape)
    (expected,) = torch.autograd.grad(layer(x), x, u)
    (found,) = torch.autograd.grad(operator.apply(x), x, u)
    # The adjoint has the norm of the operator, and rounds sums of the outputs in place of the inputs.
    larger = max(1.0, u[0].numel() / x[0].numel())
    difference = (found - expected).flatten(1).norm(dim=1)
    assert (difference <= larger * allowed(operator, shape, u)).all()


@layers
def test_what_inference_mode_froze_serves_a_later_attack(build: Build, shape: Shape) -> None:
    model = nn.Sequential(build())
    with torch.inference_mode():
        frozen = lc.freeze(model, shape)
        frozen(torch.randn(2, *shape))  # fills what operators keep
    x = torch.randn(2, *shape, requires_grad=True)
    frozen(x).square().sum().backward()
    assert x.grad is not None


@layers
def test_autocast_takes_no_part(build: Build, shape: Shape) -> None:
    layer = build().eval()
    expected = layer.freeze(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.freeze(shape) == expected


@layers
def test_the_default_device_takes_no_part(build: Build, shape: Shape) -> None:
    layer = build().eval()
    expected = layer.freeze(shape)
    with torch.device("meta"):
        assert layer.freeze(shape) == expected


@layers
def test_other_channels_are_refused(build: Build, shape: Shape) -> None:
    layer = build()
    if isinstance(layer, Flatten):
        pytest.skip("lays out samples of every shape")
    operator, other = layer.freeze(shape), (shape[0] + 1, *shape[1:])
    for refuse in (layer.freeze, layer.lipschitz_bound, operator.output_shape, operator.lipschitz_bound):
        with pytest.raises(ArgumentError, match=r"expected .*, got "):
            refuse(other)


def test_the_table_has_the_heads_of_all_networks() -> None:
    assert {name.partition("-")[0] for name in HEADS} >= set(HEADS_OF_NETWORKS)
