"""Norms of zero-padded convolutions, as strips and on a torus, against dense matrices."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.certify.independent import convolution as second
from lipcert.proofs import convolutions, deflated
from lipcert.proofs.convolutions import convolution_norm_upper_bound
from lipcert.proofs.eigenvalues import ritz_values, start_vectors

GEOMETRIES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "same": ((3, 3, 8, 8), {"padding": (1, 1)}),
    "valid": ((3, 3, 8, 7), {}),
    "full": ((3, 3, 4, 5), {"padding": (2, 2)}),
    "stride": ((3, 3, 8, 8), {"stride": (2, 2), "padding": (1, 1)}),
    "stride, blocks cut": ((3, 3, 9, 7), {"stride": (2, 2), "padding": (1, 1)}),
    "patches": ((4, 4, 8, 8), {"stride": (4, 4)}),
    "gaps between patches": ((2, 2, 9, 8), {"stride": (3, 3)}),
    "dilation": ((3, 3, 8, 8), {"padding": (2, 2), "dilation": (2, 2)}),
    "groups": ((3, 3, 6, 7), {"padding": (1, 1), "groups": 4}),
    "large kernel": ((7, 7, 6, 5), {"stride": (2, 2), "padding": (3, 3)}),
    "even kernel": ((2, 4, 7, 8), {"padding": (1, 2)}),
    "one row": ((1, 3, 1, 9), {"padding": (0, 1)}),
    "all of it": (
        (3, 2, 9, 8),
        {"stride": (1, 3), "padding": (1, 0), "dilation": (2, 1), "groups": 2},
    ),
}


def kernel_of(name: str, scale: float = 1.0) -> tuple[Tensor, tuple[int, int], dict[str, Any]]:
    (ky, kx, height, width), how = GEOMETRIES[name]
    generator = torch.Generator().manual_seed(len(name))
    kernel = torch.randn(8, 4 // how.get("groups", 1), ky, kx, generator=generator).double() * scale
    return kernel, (height, width), how


def dense_norm(kernel: Tensor, size: tuple[int, int], how: dict[str, Any]) -> float:
    count = kernel.shape[1] * how.get("groups", 1) * math.prod(size)
    basis = torch.eye(count, dtype=torch.float64).view(count, -1, *size)
    return float(torch.linalg.matrix_norm(F.conv2d(basis, kernel, None, **how).flatten(1), 2))


def second_norm(kernel: Tensor, size: tuple[int, int], how: dict[str, Any]) -> float:
    plain = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    return second.convolution_norm_bound({**plain, **how, "kernel": kernel.numpy()}, size)


def only(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size decides which way is taken; here it is forced, in both implementations."""
    for module in (convolutions, second):
        monkeypatch.setattr(module, "DENSE", 10**9 if way == "dense" else 0)
        monkeypatch.setattr(module, "STRIPS", 0.0 if way == "deflated" else math.inf)


@pytest.mark.parametrize("scale", [1.0, 2.0**-400])
@pytest.mark.parametrize("way", ["dense", "strips"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_norm_on_the_map_to_three_digits(
    name: str, way: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(way, monkeypatch)
    kernel, size, how = kernel_of(name, scale)
    truth = dense_norm(kernel / scale, size, how)
    bound, other = (norm(kernel, size, how) / scale for norm in (_norm, second_norm))
    assert truth * (1 - 1e-13) <= other <= bound * (1 + 1e-6)
    assert bound <= truth * (1 + 5e-4)


def _norm(kernel: Tensor, size: tuple[int, int], how: dict[str, Any]) -> float:
    return convolution_norm_upper_bound(kernel, size, **how)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_norm_from_the_torus(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tight for the convolution with all its outputs; small maps lose what their padding cuts off."""
    only("deflated", monkeypatch)
    kernel, size, how = kernel_of(name)
    truth = dense_norm(kernel, size, how)
    bound, other = _norm(kernel, size, how), second_norm(kernel, size, how)
    assert truth <= other <= bound * (1 + 1e-6)
    reach = tuple(d * (k - 1) for d, k in zip(how.get("dilation", (1, 1)), kernel.shape[2:], strict=True))
    if "stride" not in how:
        assert bound <= dense_norm(kernel, size, {**how, "padding": reach}) * (1 + 2e-3)


def test_large_maps_lose_less_than_a_thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where strips are the truth to three digits."""
    kernel = torch.randn(3, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    only("strips", monkeypatch)
    truth = _norm(kernel, (28, 28), {"padding": (1, 1)}) / (1 + 3e-4)
    only("deflated", monkeypatch)
    assert truth * (1 - 1e-4) <= _norm(kernel, (28, 28), {"padding": (1, 1)}) <= truth * (1 + 1e-3)


@pytest.mark.parametrize("fault", ["estimate", "solution", "no solution", "waves"])
@pytest.mark.parametrize("name", ["same", "full", "stride"])
def test_nothing_that_is_only_estimated_makes_a_bound_false(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("deflated", monkeypatch)
    kernel, size, how = kernel_of(name)
    truth = dense_norm(kernel, size, how)
    honest, solve = deflated._estimate, deflated._solved
    if fault == "estimate":
        monkeypatch.setattr(deflated, "_estimate", lambda *a: 0.9 * honest(*a))
    elif fault == "solution":
        monkeypatch.setattr(deflated, "_solved", lambda *a: solve(*a) * 0.5)
    elif fault == "no solution":
        monkeypatch.setattr(deflated, "_solved", lambda *a: torch.zeros_like(solve(*a)))
    else:
        monkeypatch.setattr(deflated, "MOST_WAVES", 0)
    assert _norm(kernel, size, how) >= truth


def test_what_is_added_for_the_residual_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess below the truth passes if the residual of a bad solution is left out."""
    kernel = torch.randn(3, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    size, sides = (6, 6), (8, 8)
    truth = dense_norm(kernel, size, {"padding": (2, 2)})
    below, above = (truth * 0.99) ** 2, (truth * 1.001) ** 2
    few, enough = (deflated._waves(kernel, size, sides, guess) for guess in (below, above))
    assert few is not None
    assert enough is not None
    assert not deflated._holds(kernel, size, below, few)
    assert deflated._holds(kernel, size, above, enough)
    monkeypatch.setattr(deflated, "_solved", lambda *a: torch.zeros_like(a[3].basis))
    assert not deflated._holds(kernel, size, above, enough)
    assert deflated._holds(kernel, size, below, few._replace(floor=math.inf)), "the residual decides nothing"


def test_the_floor_of_p_holds() -> None:
    """Against the dense matrix of P on the map."""
    kernel = torch.randn(3, 3, 3, 3, dtype=torch.float64)
    guess = dense_norm(kernel, (5, 5), {"padding": (2, 2)}) ** 2
    waves = deflated._waves(kernel, (5, 5), (7, 7), guess)
    assert waves is not None
    assert len(waves.weights), "a floor without waves"
    eye = torch.eye(75, dtype=torch.float64)
    dense = deflated._product(kernel, (5, 5), guess, waves.basis, waves.weights, eye)
    assert 0 < waves.floor <= float(torch.linalg.eigvalsh(dense)[0]) + 1e-12 * guess


def test_a_kernel_of_zeros_and_one_of_one_pixel() -> None:
    assert convolution_norm_upper_bound(torch.zeros(2, 2, 3, 3), (5, 5), padding=(1, 1)) == 0
    kernel = torch.tensor([3.0, -4.0]).view(2, 1, 1, 1)
    assert convolution_norm_upper_bound(kernel, (40, 40), groups=2) == pytest.approx(4, rel=1e-6)
    assert convolution_norm_upper_bound(kernel, (40, 40)) == pytest.approx(5, rel=1e-6)


@pytest.mark.slow
def test_the_bound_of_256_channels_on_16x16_is_tight() -> None:
    """The truth is that of 300 steps of Lanczos, from below."""
    kernel = torch.randn(256, 256, 3, 3, dtype=torch.float64)
    bound = convolution_norm_upper_bound(kernel, (16, 16), padding=(1, 1))

    def gram(v: Tensor) -> Tensor:
        maps = F.conv2d(v.view(1, 256, 16, 16), kernel, padding=1)
        return F.conv_transpose2d(maps, kernel, padding=1).view_as(v)

    estimate = math.sqrt(float(ritz_values(gram, start_vectors(1, 65536), 300).max()))
    assert estimate < bound < estimate * (1 + 1e-3)
