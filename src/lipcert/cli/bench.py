"""lipcert bench: a short test of speed on this machine."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lipcert.cli.allocator import keep_freed_memory
from lipcert.cli.console import say

if TYPE_CHECKING:
    from torch import nn

NETWORK = "lipconvnet5-cifar10"


def bench(
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads for torch; all cores by default.")
    ] = None,
) -> None:
    """Measure within a minute how fast this machine loads, certifies and trains a network that ships.

    The two sides of a line take turns, and times are medians, so that a busy machine slows both alike.

    Examples:

    lipcert bench

    lipcert bench --threads 1
    """
    import torch

    from lipcert.certify.network_file import read_network
    from lipcert.cli.selftest import environment
    from lipcert.machine import has_bf16, in_turns
    from lipcert.models.freezing import freeze
    from lipcert.models.storage import load
    from lipcert.runs.naming import find_run
    from lipcert.training.start import weights_of

    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    for line in environment(torch.device("cpu")):
        say(line)
    run = find_run(NETWORK)
    proved, model = run.network, load(weights_of(run))
    frozen = freeze(model)
    say(f"{NETWORK}: {proved.name}")
    (loading,) = in_turns([partial(read_network, run.file)], 5)
    size = run.file.stat().st_size / 1e6
    say(f"loading its proved file of {size:.2g} MB: {1000 * loading:.3g} ms, its hash is checked")
    for count, repetitions in ((1, 20), (64, 3)):
        images = torch.rand(count, *proved.input_shape)
        with torch.inference_mode():
            ours, plain = in_turns([partial(proved.certify, images), partial(frozen, images)], repetitions)
        say(
            f"{count} image{'s' * (count > 1)}: {1000 * ours:.3g} ms proved certificate, "
            f"{1000 * plain:.3g} ms frozen forward pass in fp32, ratio {ours / plain:.2f}"
        )
    if not has_bf16():
        say("training in bf16: this processor has no instructions for it; train with --precision fp32")
        return
    exact, mixed = in_turns([training_step(model), training_step(model, bf16=True)], 3)
    say(
        f"training step of 128 images: {1000 * exact:.3g} ms in fp32, {1000 * mixed:.3g} ms in bf16-mixed, "
        f"ratio {exact / mixed:.2f}"
    )


def training_step(model: "nn.Module", *, bf16: bool = False, batch: int = 128) -> Callable[[], object]:
    """One step of SGD on random images: forward, backward, update."""
    import torch
    from torch.nn.functional import cross_entropy

    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=True)

    def step() -> None:
        model.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(images)
        optimizer.zero_grad()
        cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
