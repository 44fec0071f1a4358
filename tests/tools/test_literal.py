"""The baseline of every speed ratio must be the paper's network: the same function, only slower."""

import pytest
import torch

import lipcert as lc
from tests.reference.skew import taps_from_kernel
from tools.bench.literal import LiteralHead, LiteralHouseholder, LiteralMaxMin, LiteralSOC


@pytest.mark.parametrize(("inputs", "outputs", "size", "stride"), [(4, 6, 3, 1), (2, 6, 3, 2), (6, 4, 1, 1)])
@torch.no_grad()
def test_the_baseline_is_the_exponential_series(inputs: int, outputs: int, size: int, stride: int) -> None:
    slow = LiteralSOC(inputs, outputs, size, stride)
    x = torch.randn(2, inputs, 8, 8)
    for _ in range(4):  # fifty power iterations each
        slow.steps = 0
        slow.train()(x)
    fast = lc.SOC(inputs, outputs, size, stride=stride, series="exponential").eval()
    skew = (slow.weight - slow.weight.transpose(0, 1).flip(2, 3)) / 2
    fast.weight.copy_(taps_from_kernel(skew))
    fast.weight[0] /= 2**0.5  # of which SOC takes (W - W^T) / sqrt(2)
    fast.bias.copy_(slow.bias)
    torch.testing.assert_close(slow.eval()(x), fast(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_other_parts_are_the_same_functions() -> None:
    x = torch.randn(3, 8, 2, 2)
    assert torch.equal(LiteralMaxMin()(x), lc.MaxMin()(x))
    slow, fast = LiteralHouseholder(8), lc.Householder(8)
    slow.theta.copy_(torch.randn(1, 4, 1, 1))
    fast.theta.copy_(slow.theta.flatten())
    torch.testing.assert_close(slow(x), fast(x))
    head, ours = LiteralHead(32, 5), lc.NormalizedLinear(32, 5)
    ours.load_state_dict(head.linear.state_dict())
    torch.testing.assert_close(head(x), ours(x.flatten(1)))


@torch.no_grad()
def test_evaluation_leaves_the_baseline_as_it_is() -> None:
    slow, x = LiteralSOC(4, 4, 3, 1), torch.randn(1, 4, 8, 8)
    slow.train()(x)
    first = slow.eval()(x)
    assert torch.equal(first, slow(x))
