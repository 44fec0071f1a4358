import pytest
import torch
import torch.nn.functional as F

from holdfast.functional.space_to_depth import depth_to_space, space_to_depth

ORDERS = [(0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 0, 1)]
"""Axes from the slowest to the fastest: contiguous, channels last, and the order of maps on a torus."""


def in_order(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    back = [order.index(axis) for axis in range(4)]
    return x.permute(order).contiguous().permute(back)


@pytest.mark.parametrize("grad_order", ORDERS)
@pytest.mark.parametrize("order", ORDERS)
def test_it_is_pixel_unshuffle_in_every_order_of_memory(
    order: tuple[int, ...], grad_order: tuple[int, ...]
) -> None:
    x = in_order(torch.randn(2, 3, 6, 4), order).requires_grad_()
    y = space_to_depth(x)
    grad = in_order(torch.randn_like(y), grad_order)
    (result,) = torch.autograd.grad(y, x, grad)
    assert torch.equal(y, F.pixel_unshuffle(x, 2))
    assert torch.equal(result, F.pixel_shuffle(grad, 2))
    assert torch.equal(depth_to_space(y), x)


def test_gradients_of_gradients() -> None:
    x = torch.randn(1, 2, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(space_to_depth, x)
    assert torch.autograd.gradgradcheck(space_to_depth, x)


def test_the_gradient_keeps_channels_together() -> None:
    """Elementwise passes over the maps and their gradients are slow when the two lie differently."""
    x = in_order(torch.randn(4, 8, 6, 6), (2, 3, 0, 1)).requires_grad_()
    y = space_to_depth(x)
    (result,) = torch.autograd.grad(y, x, in_order(torch.randn_like(y), (2, 3, 0, 1)))
    assert result.stride(1) == 1
