"""What a contender executes is counted, however it is written."""

import pytest
import torch

from lipcert.kernels import packed
from lipcert.operators import Matrix
from tools.bench.timing import Contender, measure


def test_products_in_place_count_like_others() -> None:
    a, b, c, m = torch.rand(2, 3, 4), torch.rand(2, 4, 5), torch.rand(2, 3, 5), torch.rand(3, 4)
    contenders = [
        Contender("new", lambda: (torch.baddbmm(c, a, b), torch.addmm(c[0], m, b[0]))[0], 1),
        Contender("in place", lambda: (c.baddbmm_(a, b), c[0].addmm_(m, b[0]))[0], 1),
    ]
    first, second = measure(contenders, 1)
    flops = 2 * 2 * 3 * 4 * 5 + 2 * 3 * 4 * 5
    for timing in (first, second):
        assert round(timing.gflops * timing.seconds * 1e9) == flops


def test_packed_products_count_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LEAST_ENTRIES", 1)
    matrix, x = Matrix(torch.rand(5, 4), None), torch.rand(3, 4)
    (timing,) = measure([Contender("", lambda: matrix.apply(x), 3)], 1)
    assert round(timing.gflops * timing.seconds * 1e9) == 2 * 3 * 4 * 5
