"""Models inside wrappers of torch."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import lipcert as lc
from lipcert.nn.heads import NormalizedLinear
from lipcert.nn.shape import Flatten
from lipcert.nn.wrappers import device_of, unwrap


def model() -> nn.Sequential:
    return nn.Sequential(Flatten(), NormalizedLinear(4, 2))


def test_wrappers_are_taken_off_however_many_there_are() -> None:
    inner = model()
    assert unwrap(inner) is inner
    assert unwrap(nn.DataParallel(nn.DataParallel(inner))) is inner
    assert isinstance(unwrap(AveragedModel(inner)), nn.Sequential)


def test_wrapped_parts_of_a_network_are_read_as_what_is_inside() -> None:
    class Block(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0.5 * x + 0.5 * self.body(x)

    conv = nn.Conv2d(2, 2, 3, padding=1)
    plain, wrapped = (
        lc.prove(nn.Sequential(Block(body), nn.Flatten(), nn.Tanh()), (2, 3, 3)).operator
        for body in (conv, AveragedModel(nn.DataParallel(conv)))
    )
    assert wrapped == plain


@pytest.mark.slow  # the first torch.compile imports half of torch
def test_compiled_models_are_unwrapped() -> None:
    inner = model()
    assert unwrap(torch.compile(inner, backend="eager")) is inner


def test_a_wrapper_of_somebody_else_is_a_model() -> None:
    class DataParallel(nn.Module):
        """Called as one of torch's, and another function."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    mine = DataParallel(model())
    assert unwrap(mine) is mine


def test_the_device_is_that_of_the_tensors() -> None:
    assert device_of(nn.Linear(2, 2, device="meta")).type == "meta"
    assert device_of(Flatten()).type == "cpu"
