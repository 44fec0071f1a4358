"""What layers remember between calls, asked by two threads at once."""

from typing import cast

import torch
from torch import Tensor

from lipcert.nn.cache import WeightCache


def test_a_second_thread_in_the_middle_of_a_call_changes_nothing() -> None:
    cache, weights = WeightCache(), (torch.zeros(2),)

    class Slow:
        """Weights that take so long to copy that another thread asks in between."""

        def detach(self) -> Tensor:
            assert cache.get(weights, lambda: "other", key=2) == "other"
            return torch.zeros(2)

    assert cache.get((cast(Tensor, Slow()),), lambda: "mine", key=1) == "mine"
    assert cache.get(weights, lambda: "built again", key=1) == "mine"
    assert cache.get(weights, lambda: "built again", key=2) == "built again"
