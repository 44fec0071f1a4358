"""What a contender executes is counted, however it is written."""

import torch

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
