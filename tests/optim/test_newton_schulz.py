import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.errors import ArgumentError
from lipcert.optim import newton_schulz
from lipcert.optim.newton_schulz import BAND, COEFFICIENTS, SMALLEST, orthogonalize
from tools import make_muon


def polynomial(s):
    """What the iterations do to a singular value."""
    for a, b, c in COEFFICIENTS:
        s = a * s + b * s**3 + c * s**5
    return s


def root(s):
    """The 8-norm of singular values, which the iterations start from."""
    return (s**8).sum(-1, keepdim=True) ** (1 / 8)


def by_svd(matrix):
    """The oracle: the polynomial on the singular values, the singular vectors as they are."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    return u * polynomial(s / root(s))[..., None, :] @ v


SHAPES = [(5, 5), (6, 9), (9, 6), (4, 20), (20, 4), (1, 7), (7, 1), (1, 1)]
SHAPES += [(3, 8, 5), (2, 3, 4, 16), (2, 70, 90)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_polynomial_on_the_singular_values(shape):
    torch.manual_seed(0)
    matrix = 1e3 * torch.randn(shape, dtype=torch.float64)
    # Rounding errors of 1e-16 grow by the squares of three slopes at 0, 8e3, and by a handful of products.
    torch.testing.assert_close(orthogonalize(matrix), by_svd(matrix), rtol=0, atol=1e-10)


def test_the_coefficients_are_those_of_the_tool():
    table, least = make_muon.best()
    assert [tuple(round(number, 4) for number in row) for row in table] == list(COEFFICIENTS)
    assert least <= SMALLEST
    # By hand: 5.9258 * 0.5 - 14.6909 * 0.125 + 10.0348 * 0.03125 = 2.9629 - 1.8363625 + 0.3135875.
    a, b, c = COEFFICIENTS[0]
    assert a * 0.5 + b * 0.5**3 + c * 0.5**5 == pytest.approx(1.440125)


def test_no_better_polynomial_than_the_nearest_is_found():
    (a, b, c), error = make_muon.nearest_to_one(0.2, 1.0)
    x = torch.linspace(0.2, 1.0, 2001).double()
    assert float((a * x + b * x**3 + c * x**5 - 1).abs().max()) == pytest.approx(error, rel=1e-6)
    torch.manual_seed(0)
    for change in 0.05 * torch.randn(200, 3).double():
        p, q, r = (torch.tensor([a, b, c]).double() + change).tolist()
        assert float((p * x + q * x**3 + r * x**5 - 1).abs().max()) > error


def test_the_band_is_what_the_coefficients_promise_and_no_wider():
    s = polynomial(torch.logspace(torch.log10(torch.tensor(SMALLEST)).item(), 0, 200_001).double())
    assert BAND[0] < s.min() < BAND[0] + 0.01
    assert BAND[1] - 0.01 < s.max() < BAND[1]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**16))
def test_singular_values_end_in_the_band(rows, columns, seed):
    torch.manual_seed(seed)
    matrix = torch.randn(rows, columns, dtype=torch.float64)
    before = torch.linalg.svdvals(matrix)
    before = before / root(before)
    after = torch.linalg.svdvals(orthogonalize(matrix))
    assert after.max() < BAND[1]
    if before.min() >= SMALLEST:
        assert after.min() > BAND[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(32, 160), (48, 48), (64, 20)])
def test_lower_precisions_end_near_the_band(shape, dtype):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    s = torch.linalg.svdvals(matrix)
    s = s / root(s)
    found = orthogonalize(matrix, dtype=dtype)
    assert found.dtype == torch.float32
    # bfloat16 has eps 2^-8; ten products of numbers near 1, each off by sqrt(160) eps / 10 or so.
    slack = 1e-3 if dtype == torch.float32 else 0.1
    after = torch.linalg.svdvals(found)
    assert after.max() < BAND[1] + slack
    assert after[s >= 2 * SMALLEST].min() > BAND[0] - slack


@pytest.mark.parametrize("shape", [(16, 80), (40, 8), (3, 5, 15)])
def test_iterating_on_the_gram_matrix_changes_nothing(shape, monkeypatch):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    on_gram = orthogonalize(matrix)
    monkeypatch.setattr(newton_schulz, "WIDE", 10**9)
    plain = orthogonalize(matrix)
    assert not torch.equal(on_gram, plain)  # two ways indeed
    # Float32: eps 1e-7 grows by a^2 = 11.9 in each of four iterations, to 2e-3 of the smallest values.
    torch.testing.assert_close(on_gram, plain, rtol=0, atol=2e-3)


@pytest.mark.parametrize("shape", [(12, 12), (13, 13), (14, 33), (70, 17), (2, 13, 13)])
@pytest.mark.parametrize("is_skew", [False, True])
def test_mirrored_halves_are_the_whole_product(shape, is_skew, monkeypatch):
    monkeypatch.setattr(newton_schulz, "STRIP", 3)
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    if is_skew and shape[-1] == shape[-2]:
        matrix = matrix - matrix.mT
    torch.testing.assert_close(orthogonalize(matrix), by_svd(matrix), rtol=0, atol=1e-10)


def test_large_matrices_on_a_cpu_take_half_products(monkeypatch):
    sizes = []
    real = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: (sizes.append(len(a) * b.shape[1]), real(a, b))[1]
    )
    matrix = torch.randn(512, 512)
    orthogonalize(matrix - matrix.T)
    # Three products, each of four strips: 4, 3, 2 and 1 of 16 blocks, in every iteration.
    assert sum(sizes) == len(COEFFICIENTS) * 3 * 512**2 * 10 / 16


def test_matrices_of_a_batch_do_not_see_each_other():
    torch.manual_seed(0)
    batch = torch.randn(3, 4, 12, dtype=torch.float64) * torch.tensor([1e-6, 1.0, 1e6])[:, None, None]
    together = orthogonalize(batch)
    for one, found in zip(batch, together, strict=True):
        torch.testing.assert_close(found, orthogonalize(one), rtol=1e-9, atol=1e-9)


def test_zero_stays_zero():
    assert torch.equal(orthogonalize(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_an_odd_polynomial_of_a_skew_matrix_is_skew():
    torch.manual_seed(0)
    matrix = torch.randn(8, 8, dtype=torch.float64)
    found = orthogonalize(matrix - matrix.T)
    torch.testing.assert_close(found, -found.T, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"matrices": torch.ones(3)},
            r"matrices: expected floating point matrices .* got .* of shape \(3,\)",
        ),
        ({"matrices": torch.ones(3, 3, dtype=torch.int64)}, "matrices: expected floating .* got torch.int64"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        orthogonalize(**arguments)
