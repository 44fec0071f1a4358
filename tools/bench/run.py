"""The lines of the speed table: what is compared, how the ratio is formed, and what it should reach."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from lipcert.cli.bench import training_step
from lipcert.files import write_atomically
from lipcert.machine import cpu_model
from tools.bench import peers, work
from tools.bench.timing import Contender, Timing, measure, peak_memory

OTHER_SERIES = {"exponential": "lipcert, the paper's series", "wide": "lipcert, wide series"}
"""SOC layers by longer polynomials than the default's: what remains of the gain."""


@dataclass(frozen=True)
class Line:
    """One line of the table: `ratio` is the first timing's seconds over the last one's, unless said
    otherwise.
    """

    key: str
    title: str
    reach: str
    ratio: float
    precision: str
    timings: list[Timing] = field(default_factory=list)
    note: str = ""


def lines(
    repetitions: int, depths: tuple[int, ...], bf16: bool = True
) -> Iterator[tuple[str, Callable[[], Line]]]:
    """Title and measurement of every line, in the order of the table.

    Args:
        repetitions: how often each contender runs.
        depths: of the networks that are compared with the paper's formulation.
        bf16: whether the processor has it; everything is in fp32 if not.
    """
    for depth in depths if bf16 else ():
        reach = {5: ">= 10", 20: ">= 8"}.get(depth, "")
        yield f"training, LipConvnet-{depth}, bf16", partial(_training, depth, True, reach, repetitions)
    for depth in (5,) if bf16 else depths:
        reach = {5: ">= 4"}.get(depth, "")
        yield f"training, LipConvnet-{depth}, fp32", partial(_training, depth, False, reach, repetitions)
    for depth in depths:
        reach = {5: ">= 8", 20: ">= 4"}.get(depth, "")
        yield f"inference, LipConvnet-{depth}", partial(_inference, depth, reach, repetitions)
    yield "inference of one image, proved", partial(_latency, 10 * repetitions)
    yield "peak memory of a training step, LipConvnet-20", partial(_memory, bf16)
    # A few percent are less than the noise of a few repetitions.
    yield "Householder over MaxMin, training", partial(_householder, bf16, 10 * repetitions)
    yield "BCOP and Cayley, training", partial(_others, bf16, repetitions)
    for behind in (False, True):
        yield "inference by explicit kernels", partial(_explicit, behind, 3 * repetitions)
    if peers.available():
        yield "peers, evaluation", partial(_peers, repetitions, False)
        yield "peers, training", partial(_peers, repetitions, True)


def _precision(bf16: bool) -> str:
    return "bf16" if bf16 else "fp32"


def _line(key: str, title: str, reach: str, precision: str, timings: list[Timing], note: str = "") -> Line:
    return Line(key, title, reach, timings[0].seconds / timings[-1].seconds, precision, timings, note)


def _training(depth: int, bf16: bool, reach: str, repetitions: int) -> Line:
    timings = measure(
        [
            Contender("the paper's formulation, fp32", training_step(work.literal(depth)), 128),
            *[
                Contender(name, training_step(work.ours(depth, series=series), bf16=bf16), 128)
                for series, name in OTHER_SERIES.items()
            ],
            Contender("lipcert", training_step(work.ours(depth), bf16=bf16), 128),
        ],
        repetitions,
    )
    precision = _precision(bf16)
    title = f"training step, LipConvnet-{depth}, width 32, batch 128, SOC + hh1, {precision}"
    return _line(f"train-{depth}-{precision}", title, reach, precision, timings)


def _inference(depth: int, reach: str, repetitions: int) -> Line:
    model = work.ours(depth)
    frozen = work.ours_frozen(depth)
    plain, fast = work.inference(model)(), work.inference(frozen)()
    difference = float((plain - fast).abs().max())
    if difference > 1e-4:
        raise AssertionError(f"frozen and plain network differ by {difference}")
    timings = measure(
        [
            Contender("the paper's formulation", work.inference(work.literal(depth)), 256),
            *[
                Contender(
                    f"{name}, frozen",
                    work.inference_with_margins(work.ours_frozen(depth, series=series)),
                    256,
                )
                for series, name in OTHER_SERIES.items()
            ],
            Contender("lipcert, evaluation mode", work.inference(model), 256),
            Contender("lipcert, proved, float64", work.proved_certificates(work.loaded(model)[0]), 256),
            Contender("lipcert, frozen", work.inference_with_margins(frozen), 256),
        ],
        repetitions,
    )
    title = f"inference with margins, LipConvnet-{depth}, width 32, batch 256, fp32"
    note = f"frozen and plain logits differ by at most {difference:.1e}"
    return _line(f"certify-{depth}", title, reach, "fp32", timings, note)


def _latency(repetitions: int) -> Line:
    """One image by a proved file that was loaded, against a frozen forward pass of the same network."""
    model = work.ours(5)
    network, proving, loading = work.loaded(model)
    timings = measure(
        [
            Contender("proved certificate, float64", work.proved_certificates(network, batch=1), 1),
            Contender("frozen forward, fp32", work.inference(work.ours_frozen(5), batch=1), 1),
        ],
        repetitions,
    )
    note = f"proved in {proving:.1f} s, once; its file is loaded in {loading:.2f} s"
    return _line("latency", "one image, LipConvnet-5, width 32", "<= 2.5", "fp32", timings, note)


def _memory(bf16: bool) -> Line:
    literal = peak_memory(partial(_memory_of, "literal", False))
    ours = peak_memory(partial(_memory_of, "ours", bf16))
    precision = _precision(bf16)
    note = f"{literal:.0f} MiB by the paper's formulation (fp32), {ours:.0f} MiB by lipcert ({precision})"
    title = "peak memory of a training step, LipConvnet-20, width 32, batch 128"
    return Line("memory-20", title, "<= 0.5" if bf16 else "", ours / literal, precision, [], note)


def _memory_of(which: str, bf16: bool) -> Callable[[], object]:
    return training_step(work.literal(20) if which == "literal" else work.ours(20), bf16=bf16)


def _householder(bf16: bool, repetitions: int) -> Line:
    timings = measure(
        [
            Contender(name, training_step(work.ours(5, activation=name), bf16=bf16), 128)
            for name in ("hh1", "maxmin")
        ],
        repetitions,
    )
    title = "Householder order 1 over MaxMin, training step, LipConvnet-5"
    return _line("householder", title, "<= 1.03", _precision(bf16), timings)


def _others(bf16: bool, repetitions: int) -> Line:
    precision = _precision(bf16)
    timings = measure(
        [
            Contender(f"{conv}, {precision}", training_step(work.ours(5, conv=conv), bf16=bf16), 128)
            for conv in ("bcop", "cayley", "soc")
        ],
        repetitions,
    )
    title = "training step by convolution, LipConvnet-5, width 32, batch 128"
    return _line("convolutions", title, "", precision, timings, "ratio: BCOP over SOC")


def _explicit(behind_space_to_depth: bool, repetitions: int) -> Line:
    """Layers that freeze to one kernel, against plain convolutions of the same shapes."""
    run = partial(work.inference, batch=128)
    plain = work.unconstrained(behind_space_to_depth=behind_space_to_depth)
    contenders = [Contender("unconstrained, fp32", run(plain), 128)]
    contenders += [
        Contender(f"{name}, fp32", run(build()), 128)
        for name, build in peers.available().items()
        if "torchlip" in name and not behind_space_to_depth
    ]
    contenders += [
        Contender(
            f"lipcert {conv.upper()}, frozen", run(work.ours_frozen(5, conv=conv, activation="maxmin")), 128
        )
        for conv in (("aol", "bcop") if behind_space_to_depth else ("aoc",))
    ]
    shape = "3x3 behind a space-to-depth" if behind_space_to_depth else "3x3 at stride 2"
    title = f"evaluation by explicit kernels, {shape}, LipConvnet-5, width 32, batch 128"
    key = "explicit-space-to-depth" if behind_space_to_depth else "explicit-strided"
    return _line(key, title, ">= 0.87", "fp32", measure(contenders, repetitions))


def _peers(repetitions: int, training: bool) -> Line:
    builders = {n: b for n, b in peers.available().items() if not (training and "exported" in n)}
    run = training_step if training else work.inference
    contenders = [Contender(f"{name}, fp32", run(build()), 128) for name, build in builders.items()]
    if training:
        contenders.append(Contender("lipcert SOC, fp32", training_step(work.ours(5)), 128))
    else:
        contenders.append(
            Contender("lipcert SOC, frozen", work.inference(work.ours_frozen(5), batch=128), 128)
        )
    timings = measure(contenders, repetitions)
    mode = "training step" if training else "evaluation"
    note = f"ratio: {timings[0].name} over {timings[-1].name}; torchlip's layers are not orthogonal"
    if not training:
        note += "; exported, AOC is one plain convolution a layer, SOC a polynomial of one"
    title = f"{mode}, LipConvnet-5 shape, width 32, batch 128"
    return _line(
        "peers-train" if training else "peers-eval", title, "" if training else ">= 3", "fp32", timings, note
    )


def scaling(repetitions: int) -> dict[str, dict[str, float]]:
    """Milliseconds per image of the frozen network: against depth at batch 128, against batch at depth 5."""
    result: dict[str, dict[str, float]] = {"depth": {}, "batch": {}}
    for depth in range(5, 45, 5):
        contender = Contender("", work.inference_with_margins(work.ours_frozen(depth), batch=128), 128)
        result["depth"][str(depth)] = 1000 / measure([contender], repetitions)[0].images_per_second
    frozen = work.ours_frozen(5)
    for power in range(10):
        contender = Contender("", work.inference_with_margins(frozen, batch=2**power), 2**power)
        result["batch"][str(2**power)] = 1000 / measure([contender], repetitions)[0].images_per_second
    return result


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "cpu": cpu_model(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "lipcert": version("lipcert"),
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    }


def save(
    path: Path, table: list[Line], peak: dict[str, float], curves: dict[str, dict[str, float]] | None
) -> Path:
    """Write a record: the machine, its peak rates, every line with its timings, and the scaling curves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine(),
        "peak_gflops": peak,
        "lines": [asdict(line) for line in table],
        "scaling": curves,
    }
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return path
