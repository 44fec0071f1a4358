"""Ways of evaluating a polynomial of a skew convolution: all of them are one matrix."""

import pytest
import torch

from lipcert.kernels.karatsuba import KaratsubaOperator
from lipcert.kernels.skew import SkewOperator
from lipcert.kernels.torus import TorusOperator
from lipcert.operators import SkewPolynomial
from tests.operators.cases import CASES, dense_matrix, skew

WAYS = {"convolution": (False, False), "torus": (True, False), "karatsuba": (False, True)}
"""Whether a torus and whether Karatsuba's trick is said to pay."""


def ways(name: str) -> list[str]:
    operator, (_, height, width) = CASES[name].build(), CASES[name].shape
    assert isinstance(operator, SkewPolynomial)
    return [
        "convolution",
        *["torus"] * (operator.kernel_size > 1),
        *["karatsuba"] * ((operator.kernel_size, height, width) == (3, 2, 2)),
    ]


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in CASES if "skew" in name for way in ways(name)]
)
def test_every_way_of_evaluation_is_the_same_matrix(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Map, batch and precision decide which one runs; here it is forced."""
    case = CASES[name]
    operator = case.build()
    assert isinstance(operator, SkewPolynomial)
    torus, karatsuba = WAYS[way]
    monkeypatch.setattr("lipcert.kernels.skew.torus_pays", lambda *_: torus)
    monkeypatch.setattr("lipcert.kernels.skew.karatsuba_pays", lambda *_: karatsuba)
    frame = SkewOperator(operator.held_taps(), *case.shape[1:]).frame(64)
    assert isinstance(frame, {"torus": TorusOperator, "karatsuba": KaratsubaOperator}.get(way, SkewOperator))
    found, expected = dense_matrix(operator, case.shape), skew_matrix(operator, case.shape)
    # Below that is room for the ways that are not chosen in float64, so that no worst case is proved.
    tolerance = 1e-12 * float(torch.linalg.vector_norm(expected))
    tolerance += operator.rounding_error(case.shape).relative * expected.shape[1] ** 0.5
    assert float(torch.linalg.vector_norm(found - expected)) <= tolerance


def skew_matrix(operator: SkewPolynomial, shape: tuple[int, ...]) -> torch.Tensor:
    """p(A) written out: the kernel on zero-padded maps, column by column, and powers of that matrix."""
    c, (_, height, width) = operator.channels, shape
    basis = torch.eye(c * height * width, dtype=torch.float64).view(-1, c, height, width)
    columns = torch.nn.functional.conv2d(basis, operator.kernel(), padding=operator.kernel_size // 2)
    a = columns.flatten(1).T
    assert torch.equal(a, -a.T)
    total = sum(k * torch.linalg.matrix_power(a, j) for j, k in enumerate(operator.coefficients))
    assert isinstance(total, torch.Tensor)
    pixels = height * width
    return total[: operator.out_channels * pixels, : operator.in_channels * pixels]


@pytest.mark.parametrize(
    ("name", "batch", "kind"),
    [
        ("skew on a torus", 64, TorusOperator),
        ("skew on a torus", 1, SkewOperator),
        ("skew as a matrix", 64, SkewOperator),
        ("skew 3x3", 1, SkewOperator),
    ],
)
def test_the_table_has_every_way_of_evaluation(name: str, batch: int, kind: type) -> None:
    case = CASES[name]
    operator = case.build()
    assert isinstance(operator, SkewPolynomial)
    frame = SkewOperator(operator.held_taps(), *case.shape[1:]).frame(batch)
    assert isinstance(frame, kind)
    assert getattr(frame, "as_matrix", False) == (name == "skew as a matrix")


def test_the_adjoint_of_a_skew_polynomial_is_its_transpose() -> None:
    operator = skew(5, 3, 2, 4)
    assert isinstance(operator, SkewPolynomial)
    forward = dense_matrix(operator, (2, 3, 4))
    basis = torch.eye(48, dtype=torch.float64).view(48, 4, 3, 4)
    torch.testing.assert_close(operator.adjoint(basis).flatten(1), forward, rtol=0, atol=1e-13)
