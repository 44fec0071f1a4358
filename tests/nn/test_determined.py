"""Weights that leave open which function they mean are refused when they are frozen, and not before."""

import pytest
import torch

from lipcert.errors import NotProvedError
from lipcert.kernels.orthogonalize import LARGEST_CONDITION
from lipcert.nn.bcop import BCOP
from lipcert.nn.linear import OrthogonalLinear


def with_condition(size: int, ratio: float) -> torch.Tensor:
    """A matrix with singular values from 1 down to 1 / ratio."""
    left, right = (torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0] for _ in range(2))
    return left @ torch.diag(torch.logspace(0, -1, size, dtype=torch.float64, base=ratio)) @ right


@pytest.mark.parametrize("ratio", [10 * LARGEST_CONDITION, float("inf")])
def test_a_matrix_near_a_singular_one_is_refused(ratio: float) -> None:
    layer = OrthogonalLinear(4, 4, method="bjorck", dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(with_condition(4, ratio) if ratio < float("inf") else torch.ones(4, 4))
    layer(torch.ones(1, 4, dtype=torch.float64))
    with pytest.raises(NotProvedError, match="OrthogonalLinear has weights with a condition number of"):
        layer.freeze((4,))
    with pytest.raises(NotProvedError, match="leave open what their orthogonal factor is"):
        layer.lipschitz_bound((4,))


def test_a_matrix_of_a_large_condition_is_taken() -> None:
    layer = OrthogonalLinear(4, 4, method="bjorck", dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(with_condition(4, 0.9 * LARGEST_CONDITION))
    assert layer.lipschitz_bound((4,)) <= 1 + 1e-10


@pytest.mark.parametrize("name", ["weight", "bases"])
@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_bcop_refuses_either_of_its_matrices(name: str, value: float) -> None:
    layer = BCOP(4, 4, 3)
    with torch.no_grad():
        layer.get_parameter(name)[..., 0] = value
    with pytest.raises(NotProvedError, match=r"BCOP has weights with a condition number of .* train it"):
        layer.freeze((4, 3, 3))


@pytest.mark.parametrize("scale", [1e8, float("inf"), float("nan")])
def test_a_cayley_matrix_of_large_scale_is_refused(scale: float) -> None:
    layer = OrthogonalLinear(4, 3, method="cayley")
    with torch.no_grad():
        assert layer.scale is not None
        layer.scale.fill_(scale)
    with pytest.raises(NotProvedError, match=r"OrthogonalLinear has a scale that .* train with a smaller"):
        layer.freeze((4,))
