import errno
import json
import os
import random
import resource

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lipcert.certify.curve import RADII
from lipcert.errors import CheckpointError, TrainingError
from lipcert.runs.checkpoint import (
    CHECKPOINT,
    PREVIOUS,
    Position,
    read_checkpoint,
    restore,
    write_checkpoint,
)
from lipcert.training.average import WeightAverage


class WithBuffer(nn.Module):
    """A weight, a power-iteration-like vector and a counter: the kinds of state that layers have."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("vector", torch.randn(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.steps += 1
            with torch.no_grad():
                self.vector += torch.randn(4)
        return self.linear(x * self.vector)


def make(seed=0):
    torch.manual_seed(seed)
    model = WithBuffer()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)


def step(model, optimizer, count=1):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()


def position(at=3, **changes):
    fields = {"step": at, "total_steps": 9, "elapsed": 0.1 + 0.2, "config": {"lr": 0.1}, "data": "abc"}
    return Position(**(fields | changes))


def test_restored_run_continues_to_the_same_bits(tmp_path):
    model, optimizer = make()
    step(model, optimizer, 3)
    best = {"step": 2, "images": 3, "standard": 0.5, "certified": dict.fromkeys(RADII, 0.1)}
    write_checkpoint(tmp_path, model, optimizer, position(best=best, losses=(0.1 + 0.2, 2)))
    drawn = [random.random(), np.random.rand()]
    step(model, optimizer, 4)
    other, other_optimizer = make(seed=1)
    random.seed(1)
    np.random.seed(1)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position == position(best=best, losses=(0.1 + 0.2, 2))
    restore(checkpoint, other, other_optimizer)
    assert [random.random(), np.random.rand()] == drawn
    step(other, other_optimizer, 4)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(
            optimizer.state[mine]["momentum_buffer"], other_optimizer.state[theirs]["momentum_buffer"]
        )


def test_the_average_of_the_weights_comes_back(tmp_path):
    model, optimizer = make()
    average = WeightAverage(model, 0.9)
    step(model, optimizer)
    average.update(model, 1)
    assert not torch.equal(average.model.linear.weight, model.linear.weight)
    write_checkpoint(tmp_path, model, optimizer, position(), average=average.model)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    other, other_optimizer = make(1)
    copied = WeightAverage(other, 0.9)
    restore(checkpoint, other, other_optimizer, average=copied.model)
    assert torch.equal(other.linear.weight, model.linear.weight)
    for mine, theirs in zip(average.model.parameters(), copied.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_checkpoint_without_the_average_of_a_run_that_keeps_one(tmp_path):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position())
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    with pytest.raises(
        CheckpointError, match=r"another run: the average of linear.weight is absent in the file and of shape"
    ):
        restore(checkpoint, model, optimizer, average=WeightAverage(model, 0.9).model)


def test_an_average_that_is_not_finite_is_not_written(tmp_path):
    model, optimizer = make()
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        average.model.linear.bias[0] = float("nan")
    with pytest.raises(TrainingError, match=r"average.linear.bias is no longer finite"):
        write_checkpoint(tmp_path, model, optimizer, position(), average=average.model)


def test_before_the_first_step_there_is_no_momentum(tmp_path):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position(0))
    other, other_optimizer = make(1)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    restore(checkpoint, other, other_optimizer)
    step(model, optimizer)
    torch.set_rng_state(checkpoint.tensors["generator.cpu"])
    step(other, other_optimizer)
    assert torch.equal(model.linear.weight, other.linear.weight)


def test_no_checkpoint_is_none(tmp_path):
    assert read_checkpoint(tmp_path) is None


def test_channels_last_weights_keep_values_and_layout(tmp_path):
    model = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    write_checkpoint(tmp_path, model, optimizer, position())
    other = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    restore(checkpoint, other, other_optimizer)
    assert torch.equal(model.weight, other.weight)
    momentum = other_optimizer.state[other.weight]["momentum_buffer"]
    assert torch.equal(momentum, optimizer.state[model.weight]["momentum_buffer"])
    assert momentum.stride() == model.weight.stride()


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, broken):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position(3))

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    step(model, optimizer)
    with pytest.raises(
        CheckpointError,
        match=r"step 4: No space left on device; the last good .* is intact; free disk space .*--resume",
    ):
        write_checkpoint(tmp_path, model, optimizer, position(4))
    monkeypatch.undo()
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.step == 3
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_write_that_fails_half_way_keeps_the_last_good_checkpoint(tmp_path):
    # A real failure of write(2): for a moment this process may not make files larger than 64 KiB.
    small, large = nn.Linear(4, 4), nn.Linear(400, 400)
    write_checkpoint(tmp_path, small, torch.optim.SGD(small.parameters()), position(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .* step 2: File too large"):
            write_checkpoint(tmp_path, large, torch.optim.SGD(large.parameters()), position(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.step == 1


def test_kill_between_the_two_renames_leaves_the_previous_one(tmp_path):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position(3))
    os.replace(tmp_path / CHECKPOINT, tmp_path / PREVIOUS)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.step == 3


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_checkpoint(tmp_path, share):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position(3))
    whole = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(
        CheckpointError, match=f"{CHECKPOINT} is truncated or damaged .*; remove it to begin again"
    ):
        read_checkpoint(tmp_path)


def test_damaged_checkpoint_names_the_good_one_before_it(tmp_path):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position(3))
    write_checkpoint(tmp_path, model, optimizer, position(6))
    (tmp_path / CHECKPOINT).write_bytes(b"rubbish")
    with pytest.raises(
        CheckpointError, match=rf"damaged .*{PREVIOUS}, step 3\) is good: rename it to {CHECKPOINT}"
    ):
        read_checkpoint(tmp_path)
    os.replace(tmp_path / PREVIOUS, tmp_path / CHECKPOINT)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.step == 3


def test_foreign_safetensors_file(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / CHECKPOINT)
    with pytest.raises(CheckpointError, match="not a training checkpoint of this version of lipcert"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("header", ["{}", "[1]", "no json"])
def test_foreign_header(tmp_path, header):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position())
    tensors = load_file(tmp_path / CHECKPOINT)
    metadata = {"format": "lipcert training checkpoint 1", "position": header, "generators": "{}"}
    save_file(tensors, tmp_path / CHECKPOINT, metadata)
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "linear", nn.Linear(4, 2)), r"linear.weight is of shape \[3, 4\] in the file"),
        (lambda m: m.register_buffer("more", torch.zeros(1)), r"more is absent in the file and of shape"),
        (lambda m: m.register_buffer("vector", torch.zeros(5)), r"vector is of shape \[4\] .* shape \[5\]"),
        (lambda m: delattr(m, "vector"), r"vector is of shape \[4\] in the file and absent in the model"),
    ],
)  # fmt: skip
def test_checkpoint_of_another_network(tmp_path, change, message):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position())
    other, other_optimizer = make(1)
    change(other)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    with pytest.raises(CheckpointError, match=f"belongs to another network: {message}"):
        restore(checkpoint, other, other_optimizer)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_never_replace_a_good_checkpoint(tmp_path, value):
    model, optimizer = make()
    write_checkpoint(tmp_path, model, optimizer, position(3))
    with torch.no_grad():
        model.linear.weight[0, 0] = value
    with pytest.raises(
        TrainingError, match=r"step 4: model.linear.weight is no longer finite; the last good .*lr"
    ):
        write_checkpoint(tmp_path, model, optimizer, position(4))
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.position.step == 3


def test_file_holds_tensors_and_json_only(tmp_path):
    model, optimizer = make()
    step(model, optimizer)
    write_checkpoint(tmp_path, model, optimizer, position())
    content = (tmp_path / CHECKPOINT).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["position"])["step"] == 3
    assert {"model.vector", "model.steps", "momentum.linear.weight", "generator.cpu"} <= set(header)
