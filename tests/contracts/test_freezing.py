"""What every layer's operator promises: the same function, proved bounds, numbers of its own."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.nn import HEADS as HEADS_OF_NETWORKS
from lipcert.nn import LipschitzModule, checks
from lipcert.operators import Shape
from tests.contracts.dense import dense_jacobian
from tests.contracts.histories import Build, trained
from tests.contracts.layers import HEADS, every_layer, one_of_each

ON_EVERY_LAYER = [c for c in checks.CHECKS if c not in (checks.bound_holds, checks.training_reads_nothing)]
"""The others have tests of their own here: the bound is close too, and fake tensors take their time."""

layers = pytest.mark.parametrize(("build", "shape"), every_layer())
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def evaluated(build: Build, shape: Shape, dtype: torch.dtype = torch.float64) -> LipschitzModule:
    """A trained layer in evaluation mode."""
    return trained(build, shape).to(dtype).eval()


def tensors(layer: LipschitzModule) -> list[Tensor]:
    return [*layer.parameters(), *layer.buffers()]


@layers
@pytest.mark.parametrize("check", ON_EVERY_LAYER, ids=lambda check: check.__name__)
def test_every_layer_keeps_the_contract(build: Build, shape: Shape, check: checks.Check) -> None:
    check(evaluated(build, shape), shape)


@layers
def test_the_operator_is_the_layer_in_single_precision(build: Build, shape: Shape) -> None:
    checks.operator_is_the_layer(evaluated(build, shape, torch.float32), shape)


@pytest.mark.parametrize(("build", "shape"), one_of_each())
def test_a_training_step_reads_nothing_from_its_device(build: Build, shape: Shape) -> None:
    """On tensors without numbers: forward and backward, at the first step and at the next one."""
    checks.training_reads_nothing(build(), shape)


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


def test_the_table_has_the_heads_of_all_networks() -> None:
    assert {name.partition("-")[0] for name in HEADS} >= set(HEADS_OF_NETWORKS)
