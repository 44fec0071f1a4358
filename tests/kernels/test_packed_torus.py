"""Products per frequency with a spectrum that is kept in oneDNN's order."""

import copy

import pytest
import torch
from torch import Tensor

from lipcert.kernels import packed_torus
from lipcert.kernels.packed import packing_is_at_hand
from lipcert.kernels.packed_torus import BLOCK, PackedTorus
from lipcert.kernels.skew import SkewOperator, horner
from lipcert.kernels.taps import skew_taps
from lipcert.kernels.torus import TorusOperator, torus_pays
from lipcert.operators import SkewPolynomial

COEFFICIENTS = (1.0, 0.9, 0.4, 0.1)

at_hand = pytest.mark.skipif(not packing_is_at_hand(), reason="packs with AVX-512 and oneDNN only")


def taps_of(channels: int, size: int = 3) -> Tensor:
    torch.manual_seed(0)
    weight = torch.randn((size**2 + 1) // 2, channels, channels)
    return skew_taps(weight / (size * channels**0.5))


@pytest.fixture
def always_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_torus, "packed_torus_price", lambda *shape: 0.0)
    monkeypatch.setattr(packed_torus, "is_amd_with_avx512", lambda: True)


@at_hand
@pytest.mark.parametrize("batch", [0, 1, 3, BLOCK, BLOCK + 2])
@pytest.mark.parametrize(
    # channels, inputs, outputs, kernel, height, width
    "shape",
    [(6, 6, 6, 3, 5, 4), (6, 3, 2, 3, 3, 6), (16, 5, 16, 3, 8, 8), (5, 5, 3, 5, 3, 7), (6, 6, 4, 3, 1, 7)],
    ids=lambda shape: "-".join(map(str, shape)),
)
def test_polynomials_are_those_of_the_convolution(shape: tuple[int, ...], batch: int) -> None:
    channels, inputs, outputs, size, height, width = shape
    taps = taps_of(channels, size)
    x = torch.randn(batch, inputs, height, width)
    exact = SkewOperator(taps.double(), height, width)
    for coefficients in (COEFFICIENTS, COEFFICIENTS[:2], COEFFICIENTS[:3]):
        wanted = horner(exact, x.double(), coefficients, outputs)[0].float()
        found = horner(PackedTorus(taps, height, width), x, coefficients, outputs)[0]
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@at_hand
def test_other_numbers_of_threads_pack_again() -> None:
    torus, x = PackedTorus(taps_of(8), 5, 5), torch.randn(2, 8, 5, 5)
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(horner(torus, x, COEFFICIENTS, 8)[0])
    finally:
        torch.set_num_threads(before)
    assert len(torus.spectra) == 2
    torch.testing.assert_close(*results)


def polynomial(channels: int) -> SkewPolynomial:
    taps = taps_of(channels)
    rows, columns = torch.triu_indices(channels, channels, offset=1)
    centre = taps[0][rows, columns]
    return SkewPolynomial(centre, taps[1:], 1.0, 1.0, COEFFICIENTS, channels, channels - 1, None)


@at_hand
@pytest.mark.usefixtures("always_packed")
def test_frozen_layers_have_gradients_and_copies() -> None:
    frozen = polynomial(8)
    x = torch.randn(4, 8, 5, 5, requires_grad=True)
    y = frozen.apply(x)
    assert "_packed_torus" in frozen._made[5, 5].made
    (found,) = torch.autograd.grad(y, x, torch.ones_like(y))
    wanted = frozen.with_arrays(Tensor.double).adjoint(torch.ones_like(y).double())
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.func.vmap(frozen.apply)(x[None])[0], y)
    other = copy.deepcopy(frozen)
    assert not other._made
    torch.testing.assert_close(other.apply(x), y)


@at_hand
@pytest.mark.usefixtures("always_packed")
def test_only_fixed_taps_in_float32_are_packed() -> None:
    taps = taps_of(8)
    assert isinstance(SkewOperator(taps, 5, 5, fixed=True).frame(4), PackedTorus)
    for changed in (
        SkewOperator(taps, 5, 5),
        SkewOperator(taps.double(), 5, 5, fixed=True),
        SkewOperator(taps.bfloat16(), 5, 5, fixed=True),
        SkewOperator(taps.clone().requires_grad_(), 5, 5, fixed=True),
        SkewOperator(taps, 5, 5, fixed=True, scale=torch.ones(1)),
        SkewOperator(taps, 2, 2, fixed=True),
    ):
        assert not isinstance(changed.frame(4), PackedTorus)


@at_hand
@pytest.mark.parametrize(("amd", "chosen"), [(True, PackedTorus), (False, TorusOperator)])
def test_packs_where_products_by_mkl_are_slow(
    amd: bool, chosen: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipcert.kernels.torus.is_amd_with_avx512", lambda: amd)
    monkeypatch.setattr(packed_torus, "is_amd_with_avx512", lambda: amd)
    operator = SkewOperator(taps_of(256), 8, 8, fixed=True)
    assert type(operator.frame(BLOCK)) is chosen
    assert type(operator.frame(2)) is SkewOperator
    assert torus_pays(torch.float32, 128, 3, 16, 16) != amd
