"""The lives a layer may have had before it is asked to keep its promise."""

import copy
import functools
from collections.abc import Callable

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from lipcert.nn import LipschitzModule
from lipcert.nn.checks import trained_copy
from lipcert.operators import Shape
from tests.contracts.dense import Function

Build = Callable[[], LipschitzModule]


def trained(build: Build, shape: Shape) -> LipschitzModule:
    """20 steps of SGD towards random targets, large enough to move every weight."""
    return copy.deepcopy(_trained(build, shape))


@functools.cache
def _trained(build: Build, shape: Shape) -> LipschitzModule:
    """Trained once for all tests; with a seed of its own, so that no test's numbers depend on another's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return trained_copy(build().double(), shape, steps=20)


def at_init(build: Build, shape: Shape) -> LipschitzModule:
    """As built, never run."""
    return build().double().eval()


def after_training(build: Build, shape: Shape) -> LipschitzModule:
    """Trained, then put in evaluation mode."""
    return trained(build, shape).eval()


def train_eval_train_eval(build: Build, shape: Shape) -> LipschitzModule:
    """Evaluated before and between training, so that anything remembered would be stale."""
    layer = build().double().eval()
    x = torch.randn(2, *shape, dtype=torch.float64)
    with torch.no_grad():
        layer(x)
    layer.train()
    loss = (layer(x) * torch.randn(2, *layer.output_shape(shape), dtype=torch.float64)).sum()
    if list(layer.parameters()):
        loss.backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                if parameter.grad is not None:
                    parameter -= 0.05 * parameter.grad
    return layer.eval()


def saved_and_loaded(build: Build, shape: Shape) -> LipschitzModule:
    """Through safetensors, into a layer that has had other weights and has used them."""
    content = to_bytes({k: v.contiguous() for k, v in trained(build, shape).state_dict().items()})
    layer = build().double().eval()
    with torch.no_grad():
        layer(torch.randn(1, *shape, dtype=torch.float64))
    layer.load_state_dict(from_bytes(content))
    return layer


def copied(build: Build, shape: Shape) -> LipschitzModule:
    """A deep copy of a trained layer, the original changed afterwards."""
    layer = trained(build, shape)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return twin.eval()


def frozen(build: Build, shape: Shape) -> Function:
    """The operator of a trained layer."""
    return trained(build, shape).eval().freeze(shape).apply


History = Callable[[Build, Shape], Function]
HISTORIES: list[History] = [
    at_init,
    after_training,
    train_eval_train_eval,
    saved_and_loaded,
    copied,
    frozen,
]
