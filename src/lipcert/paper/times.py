"""The paper's time tables on this machine: one pass over the test set, from random weights."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipcert.errors import ArgumentError
from lipcert.files import write_atomically
from lipcert.machine import cpu_model
from lipcert.models.freezing import freeze
from lipcert.models.lipconvnet import lipconvnet
from lipcert.paper.render import Line, Sheet
from lipcert.paper.tables import Network, Row, Table
from lipcert.schema import read_json

TIMES = "times"
"""Folder of the timings, beside the runs."""

TEST_IMAGES = 10_000
CLASSES = {"cifar10": 10, "cifar100": 100}
REPEATS = 3
FORMS = {"evaluation": "this machine", "frozen": "this machine, frozen"}


@dataclass(frozen=True)
class Timing:
    """Seconds for `images` images, the median of a few passes, and where they were measured."""

    seconds: float
    images: int
    width: int
    batch_size: int
    device: str
    threads: int
    machine: str
    torch: str

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.images <= 0:
            raise ArgumentError("seconds, images: expected numbers above 0")

    @property
    def for_test_set(self) -> float:
        """Seconds scaled to the 10,000 images of the paper's tables."""
        return self.seconds * TEST_IMAGES / self.images


Clock = Callable[[nn.Module, int, int], float]
"""Seconds of one pass of a model over a number of images in batches of a given size."""


def time_networks(
    rows: Sequence[Row],
    folder: Path,
    *,
    width: int = 32,
    images: int = TEST_IMAGES,
    batch_size: int = 128,
    say: Callable[[str], None] = print,
    clock: Clock | None = None,
) -> dict[Network, dict[str, Timing]]:
    """Time every network of `rows`, as it evaluates and frozen; what is in `folder` is not timed again.

    Args:
        rows: of time tables.
        folder: keeps one file per network, width, form, number of images and number of threads.
        width: channels of the first stage.
        images: how many to time; the tables scale to 10,000 and say so.
        batch_size: images per forward pass.
        say: called with a message before every measurement.
        clock: measures one pass; None is `seconds_per_pass`.
    """
    check_count(images, batch_size)
    clock = seconds_per_pass if clock is None else clock
    found: dict[Network, dict[str, Timing]] = {}
    for network in dict.fromkeys(network for row in rows for network in row.networks.values()):
        model: nn.Module | None = None
        found[network] = {}
        for form in FORMS:
            path = (
                folder / f"{network.key}-w{width}-{form}-{images}images-{torch.get_num_threads()}threads.json"
            )
            if not path.exists():
                say(f"timing {network.key}, width {width}, {form}, {images} images")
                model = model or random_network(network, width)
                timed = freeze(model) if form == "frozen" else model
                timing = _describe(clock(timed, images, batch_size), images, width, batch_size)
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(path, (json.dumps(asdict(timing), indent=2) + "\n").encode())
            found[network][form] = read_json(path, Timing, "remove it to measure again")
    return found


def check_count(images: int, batch_size: int = 128) -> None:
    """Raise if there is not a batch to time."""
    if images < batch_size:
        raise ArgumentError(f"count: expected at least one batch of {batch_size} images, got {images}")


def random_network(network: Network, width: int) -> nn.Module:
    """The network with random weights of seed 0, as the paper's layers compute it, ready to evaluate."""
    series: dict[str, Any] = {"series": "exponential"} if network.conv == "soc" else {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = lipconvnet(
            depth=network.depth,
            conv=network.conv,
            activation=network.activation,
            head=network.head,
            num_classes=CLASSES[network.dataset],
            width=width,
            **series,
        )
    return model.to(_device()).eval()


def seconds_per_pass(model: nn.Module, images: int, batch_size: int) -> float:
    """Median over a few passes, after one batch to warm up."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.rand(batch_size, 3, 32, 32, generator=generator, device="cpu").to(_device())
    sizes = [batch_size] * (images // batch_size) + [images % batch_size] * bool(images % batch_size)
    times = []
    with torch.inference_mode():
        model(batch)
        for _ in range(REPEATS):
            _wait()
            start = time.perf_counter()
            for size in sizes:
                model(batch[:size])
            _wait()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def time_sheet(table: Table, rows: Sequence[Row], timings: Mapping[Network, Mapping[str, Timing]]) -> Sheet:
    """A time table with the paper's seconds and this machine's."""
    lines: list[Line] = []
    used: list[Timing] = []
    for row in rows:
        label = f"LipConvnet-{row.depth}"
        lines.append((label, "paper (RTX 2080 Ti)", *row.reported.values()))
        for form, source in FORMS.items():
            measured = [timings[row.networks[column]][form] for column in table.columns]
            used.extend(measured)
            lines.append((label, source, *(f"{timing.for_test_set:.2f}" for timing in measured)))
    return Sheet(
        name=table.name,
        title=f"Table {table.number} of the paper ({table.name}). {table.title}",
        columns=("Architecture", "Source", *table.columns),
        lines=tuple(lines),
        notes=tuple(dict.fromkeys(_note(timing) for timing in used)),
        labels=1,
    )


def _note(timing: Timing) -> str:
    scaled = "" if timing.images == TEST_IMAGES else f", timed on {timing.images} images and scaled to 10,000"
    other = "" if timing.width == 32 else " (the paper's is 32)"
    return (
        f"This machine: {timing.machine}, {timing.device}, {timing.threads} threads, torch {timing.torch}; "
        f"random weights, the paper's series for SOC, fp32, width {timing.width}{other}, "
        f"batches of {timing.batch_size}, median of {REPEATS} passes{scaled}."
    )


def _describe(seconds: float, images: int, width: int, batch_size: int) -> Timing:
    device = _device()
    return Timing(
        seconds=seconds,
        images=images,
        width=width,
        batch_size=batch_size,
        device=device.type,
        threads=torch.get_num_threads(),
        machine=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        torch=torch.__version__,
    )


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
