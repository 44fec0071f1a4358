"""Products with a matrix that is kept in oneDNN's order."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.kernels import packed
from lipcert.operators import Matrix

INPUTS, OUTPUTS = 96, 40

at_hand = pytest.mark.skipif(not packed.packing_is_at_hand(), reason="packs with AVX-512 and oneDNN only")


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> Matrix:
    monkeypatch.setattr(packed, "LEAST_ENTRIES", 1)
    torch.manual_seed(0)
    return Matrix(torch.randn(OUTPUTS, INPUTS), torch.randn(OUTPUTS))


def exact(matrix: Matrix, x: Tensor) -> Tensor:
    assert matrix.bias is not None
    return F.linear(x.double(), matrix.weight.double(), matrix.bias.double()).float()


@at_hand
@pytest.mark.parametrize("batch", [2, 3, 64])
def test_products_are_those_of_the_matrix(matrix: Matrix, batch: int) -> None:
    x = torch.randn(INPUTS, batch).T
    assert packed.packing_pays(x, matrix.weight)
    # 97 terms of order 1: their sum is off by 97 u times 97 at most.
    torch.testing.assert_close(matrix.apply(x), exact(matrix, x), rtol=0, atol=1e-3)
    assert "packed" in matrix._made
    plain = Matrix(matrix.weight, None)
    torch.testing.assert_close(plain.apply(x), exact(matrix, x) - matrix.bias, rtol=0, atol=1e-3)


@at_hand
def test_gradients_reach_the_input(matrix: Matrix) -> None:
    x, grad = torch.randn(4, INPUTS, requires_grad=True), torch.randn(4, OUTPUTS)
    (found,) = torch.autograd.grad(matrix.apply(x), x, grad)
    torch.testing.assert_close(found, grad @ matrix.weight)


@at_hand
def test_maps_over_a_batch_and_its_gradient(matrix: Matrix) -> None:
    x = torch.randn(3, 4, INPUTS)
    mapped = torch.func.vmap(matrix.apply)(x)
    torch.testing.assert_close(mapped, exact(matrix, x), rtol=0, atol=1e-3)
    rows = torch.func.vmap(torch.func.jacrev(lambda z: matrix.apply(z).sum(0)))(x)
    torch.testing.assert_close(rows, matrix.weight.expand(3, 4, -1, -1).transpose(1, 2))


@at_hand
def test_copies_pack_again(matrix: Matrix) -> None:
    x = torch.randn(4, INPUTS)
    matrix.apply(x)
    other = copy.deepcopy(matrix)
    assert not other._made
    twice = matrix.with_arrays(lambda array: 2 * array)
    torch.testing.assert_close(twice.apply(x), 2 * other.apply(x))


@pytest.mark.parametrize(
    "changed",
    [{"dtype": torch.float64}, {"dtype": torch.bfloat16}, {"requires_grad": True}],
    ids=["float64", "bfloat16", "trainable"],
)
def test_what_is_not_packed(matrix: Matrix, changed: dict[str, Any]) -> None:
    weight = matrix.weight.detach().to(changed.get("dtype", torch.float32), copy=True)
    weight.requires_grad_(changed.get("requires_grad", False))
    assert not packed.packing_pays(torch.randn(4, INPUTS, dtype=weight.dtype), weight)


def test_single_vectors_and_autocast_are_left_to_blas(matrix: Matrix) -> None:
    assert not packed.packing_pays(torch.randn(1, INPUTS), matrix.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert matrix.apply(torch.randn(4, INPUTS)).dtype == torch.bfloat16


def test_small_matrices_are_left_to_blas() -> None:
    assert not packed.packing_pays(torch.randn(4, INPUTS), torch.randn(OUTPUTS, INPUTS))
