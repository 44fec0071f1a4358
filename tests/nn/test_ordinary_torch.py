"""Torch's own tools on lipcert's networks: compile, export, averages, scaled gradients, several processes."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.torch_version import TorchVersion

import lipcert as lc
from lipcert.kernels.series import SERIES
from lipcert.nn import ACTIVATIONS, CONVOLUTIONS
from lipcert.nn.carried import complete_state

# Torch's compiler itself looks at such gradients, between the graphs that a network falls into.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

IMAGES, LABELS = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])


def network(conv: str, activation: str, head: str, series: str | None = None) -> nn.Sequential:
    """Few channels behind a convolution: activations then pack them, the case that tracing got wrong."""
    build = CONVOLUTIONS[conv]
    options = {"series": series} if series else {}
    return nn.Sequential(
        lc.Normalize((0.4, 0.5, 0.6), 0.25),
        build(3, 12, 3, stride=2, **options),
        lc.Center(12),
        ACTIVATIONS[activation](12),
        build(12, 8, 3, **options),
        lc.Flatten(),
        lc.NormalizedLinear(128, 4) if head == "lln" else lc.OrthogonalHead(128, 4, method=head),
    )


def cases() -> Iterator[object]:
    """Every convolution, series, activation and head at least once; one of them in the quick tests."""
    heads = ["lln", "soc", "bjorck", "cayley"]
    kinds = [("soc", name) for name in SERIES] + [(name, None) for name in CONVOLUTIONS if name != "soc"]
    rows = max(len(kinds), len(ACTIVATIONS))
    activations = ["hh1", *(name for name in ACTIVATIONS if name != "hh1")]
    for row in range(rows):
        conv, series = kinds[row % len(kinds)]
        activation, head = activations[row % len(activations)], heads[row % len(heads)]
        name = f"{conv}-{series or 'default'}-{activation}-{head}"
        marks = pytest.mark.slow if row else ()
        yield pytest.param(conv, activation, head, series, id=name, marks=marks)


every_case = pytest.mark.parametrize(("conv", "activation", "head", "series"), list(cases()))


def step(model: nn.Module, parts: nn.Module, train: bool) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the gradients of the images and of all parameters; then a step of gradient descent."""
    images = IMAGES.clone().requires_grad_()
    logits = model(images)
    lc.CertificateLoss(0.5, offset=0.1)(model, logits, LABELS).backward()
    gradients = [t.grad.clone() for t in (images, *parts.parameters()) if t.grad is not None]
    with torch.no_grad():
        for parameter in parts.parameters():
            if train and parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
            parameter.grad = None
    return logits.detach(), gradients


def check_compiled(model: nn.Sequential, backend: str) -> None:
    torch._dynamo.reset()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=backend)
    for train in (True, True, False):
        model.train(train)
        twin.train(train)
        expected, gradients = step(model, model, train)
        found, theirs = step(compiled, twin, train)
        # Compiled sums may run in another order: a few roundings, which two steps carry on.
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert len(theirs) == len(gradients) == 1 + len(list(model.parameters()))
        for mine, other in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(other, mine, rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-5)


@every_case
def test_a_compiled_network_computes_the_same(
    conv: str, activation: str, head: str, series: str | None
) -> None:
    check_compiled(network(conv, activation, head, series), "aot_eager")


@pytest.mark.parametrize(  # a C++ compiler for a minute each
    "conv",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "soc" else pytest.mark.thorough)
        for name in CONVOLUTIONS
    ],
)
def test_inductor_computes_the_same(conv: str) -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        pytest.skip("no C++ compiler here, which torch.compile needs on a CPU")
    check_compiled(network(conv, "hh1", "lln"), "inductor")


def test_a_single_graph_is_refused_by_name() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(network("soc", "hh1", "lln"), backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.(compiler|_dynamo)\.disable"):
        compiled(IMAGES)


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.13",
    reason="torch.export of torch 2.4 does not take these networks; promised from 2.13 on",
)
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_a_frozen_network_exports_for_any_batch_and_stays_what_it_is(conv: str) -> None:
    frozen = lc.freeze(network(conv, "hh2", "lln"), (3, 8, 8))
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(frozen, (IMAGES,), dynamic_shapes=({0: batch},)).module()
    for images in (IMAGES, torch.rand(9, 3, 8, 8)):
        torch.testing.assert_close(exported(images), frozen(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["maxmin", "hh1", "hh2", "nd4"])
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_functions_of_one_image_are_mapped_and_differentiated(conv: str, activation: str) -> None:
    model = network(conv, activation, "lln").eval()
    each = torch.vmap(lambda image: model(image[None])[0])
    torch.testing.assert_close(each(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-5)
    rows = torch.func.jacrev(lambda images: model(images)[0])(IMAGES[:1])
    expected = torch.autograd.functional.jacobian(lambda images: model(images)[0], IMAGES[:1])
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("conv", "series"), [*((name, None) for name in CONVOLUTIONS), ("soc", "exponential")]
)
def test_a_network_in_training_is_mapped_and_carries_on(conv: str, series: str | None) -> None:
    """SOC starts its power iteration from seeded random numbers, which `torch.vmap` would refuse."""
    model = network(conv, "hh1", "lln", series).train()
    del model[2]  # Center, whose mean is that of a batch
    twin = copy.deepcopy(model)
    mapped = torch.vmap(lambda image: model(image[None])[0])(IMAGES)
    torch.testing.assert_close(mapped, twin(IMAGES), rtol=1e-4, atol=1e-5)
    assert torch.equal(model(IMAGES), twin(IMAGES))  # both went on from the same state


@pytest.mark.parametrize(
    ("conv", "series"), [*((name, None) for name in CONVOLUTIONS), ("soc", "exponential")]
)
def test_a_network_that_was_differentiated_in_training_is_copied_and_carries_on(
    conv: str, series: str | None
) -> None:
    """What training carries is a plain tensor afterwards, not one of the transforms, nested or not."""
    model = network(conv, "hh1", "lln", series).train()
    del model[2]  # Center changes its running mean, which torch.func refuses
    twin = copy.deepcopy(model)
    torch.func.jacrev(model)(IMAGES[:1])
    torch.func.jacrev(torch.func.grad(lambda images: model(images).square().sum()))(IMAGES[:1])
    for _ in range(2):
        twin(IMAGES[:1])
    assert torch.equal(copy.deepcopy(model)(IMAGES), twin(IMAGES))


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_averages_made_before_the_first_step(conv: str) -> None:
    model = network(conv, "hh1", "lln").train()
    averaged, copied = AveragedModel(model), copy.deepcopy(model)
    for _ in range(2):
        step(model, model, True)
        averaged.update_parameters(model)
    assert averaged(IMAGES).isfinite().all()
    with torch.no_grad():
        for mine, theirs in zip(
            (*copied.parameters(), *copied.buffers()), (*model.parameters(), *model.buffers()), strict=True
        ):
            mine.copy_(theirs)
    assert torch.equal(copied.eval()(IMAGES), model.eval()(IMAGES))


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_a_state_dict_from_before_the_first_step_averages_and_loads(conv: str) -> None:
    model = network(conv, "hh1", "lln").train()
    average = copy.deepcopy(model.state_dict())
    for _ in range(2):
        step(model, model, True)
        for name, value in model.state_dict().items():
            average[name].lerp_(value, 0.5)
    twin = copy.deepcopy(model)
    twin.load_state_dict(average)
    # As new: nothing of the training that it was copied from is left.
    fresh = network(conv, "hh1", "lln").train()
    fresh.load_state_dict(average)
    assert torch.equal(twin(IMAGES), fresh(IMAGES))
    assert torch.equal(twin.eval()(IMAGES), copy.deepcopy(fresh).eval()(IMAGES))


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_a_complete_state_carries_training_on_to_the_same_bits(conv: str) -> None:
    model = network(conv, "hh2", "soc").train()
    step(model, model, True)
    twin = network(conv, "hh2", "soc").train()
    twin.load_state_dict(copy.deepcopy(complete_state(model)))
    for _ in range(2):
        mine, theirs = step(model, model, True), step(twin, twin, True)
        assert torch.equal(mine[0], theirs[0])
        assert all(torch.equal(a, b) for a, b in zip(mine[1], theirs[1], strict=True))


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_scaled_gradients_are_the_gradients(conv: str) -> None:
    model = network(conv, "hh1", "lln").train()
    twin = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lc.CertificateLoss(0.5, offset=0.1)(model, model(IMAGES), LABELS)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    step(twin, twin, True)
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


TWO_PROCESSES = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import lipcert as lc

rank, path, conv = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
torch.manual_seed(0)
model = lc.lipconvnet(5, conv, "hh1", "lln", 4, width=4, image_size=8, in_channels=1)
images, labels = torch.rand(8, 1, 8, 8), torch.randint(4, (8,))
alone = lc.lipconvnet(5, conv, "hh1", "lln", 4, width=4, image_size=8, in_channels=1)
alone.load_state_dict(model.state_dict())
shared, loss = DistributedDataParallel(model), lc.CertificateLoss(0.5)
half = slice(4 * rank, 4 * rank + 4)
for _ in range(2):
    for network, part in ((shared, half), (alone, slice(None))):
        loss(network, network(images[part]), labels[part]).backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.05 * parameter.grad
                parameter.grad = None
for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
print("agree", flush=True)
dist.destroy_process_group()
# Without the interpreter's own end, in which a thread of gloo may abort the process.
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_two_processes_without_fabric_equal_one(conv: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_PROCESSES]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), conv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=200) for process in processes]
    assert [out.strip() for out, _ in outputs] == ["agree", "agree"], outputs
