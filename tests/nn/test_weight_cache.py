"""What layers remember between calls: asked by two threads at once, and of weights that are buffers."""

from typing import cast

import torch
from torch import Tensor

from lipcert.nn.cache import WeightCache
from lipcert.nn.convolution import Device
from lipcert.nn.explicit import ExplicitConv2d


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


class Fixed(ExplicitConv2d):
    """A convolution that is not trained: half of its input."""

    def make_weights(self, device: Device, dtype: torch.dtype | None) -> None:
        weight = torch.zeros(self.out_channels, self.map_channels, 3, 3, device=device, dtype=dtype)
        weight[:, :, 1, 1].fill_diagonal_(0.5)
        self.register_buffer("weight", weight)

    def kernel(self, height: int, width: int, *, training: bool = False) -> Tensor:
        return self.weight.clone()


def test_a_change_of_a_buffer_is_seen() -> None:
    layer, x = Fixed(2, 2, 3, bias=False).eval(), torch.ones(1, 2, 4, 4)
    assert torch.equal(layer(x), 0.5 * x)
    layer.weight.mul_(0.5)
    assert torch.equal(layer(x), 0.25 * x)


def test_a_layer_without_parameters_freezes() -> None:
    x = torch.ones(1, 2, 4, 4)
    assert torch.equal(Fixed(2, 2, 3, bias=False).freeze((2, 4, 4)).apply(x), 0.5 * x)


def test_nothing_is_remembered_before_the_first_call() -> None:
    assert WeightCache().get((), lambda: "built") == "built"
