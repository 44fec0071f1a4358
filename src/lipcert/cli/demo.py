"""lipcert demo: train, certify, attack and report on the embedded digits in half a minute."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipcert.cli.console import print_json, say
from lipcert.errors import ArgumentError
from lipcert.files import CONFIG, REPORT

if TYPE_CHECKING:
    from lipcert.runs.config import TrainConfig


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("runs/demo"),
    threads: Annotated[
        int | None, typer.Option("--threads", help="CPU threads; default: chosen by torch.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")] = False,
) -> None:
    """Train a small classifier on handwritten digits, certify it, attack it, and write report.html.

    Examples:

    lipcert demo

    lipcert demo --out runs/demo --threads 2
    """
    start = time.monotonic()
    import torch

    from lipcert.attacks.audit import audit
    from lipcert.cli.allocator import keep_freed_memory
    from lipcert.cli.certify import as_dict, show
    from lipcert.cli.report import write_page
    from lipcert.data import to_float
    from lipcert.report.words import sentence
    from lipcert.runs.run import Run
    from lipcert.training.loop import train_and_certify
    from lipcert.training.progress import Silent, for_terminal

    def tell(message: str) -> None:
        if not as_json:
            say(message)

    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    options = demo_config(threads)
    again = _is_there(out / CONFIG, options)
    tell(
        "1/3 Training a LipConvnet on 1,294 handwritten digits of 8x8 pixels (no download)"
        + (", again from where it is" if again else "")
    )
    _, found = train_and_certify(options, out, resume=again, progress=Silent() if as_json else for_terminal())
    assert found is not None, "the demonstration is one process"

    tell("2/3 Attacking the certificates of 360 digits it has never seen")
    pixels = found.images.images
    # Our own attacks alone: foolbox is an extra that a first run need not have.
    attacks = ["pgd", "pgd-minimal"]
    audit(found.network, to_float(pixels), certificates=found.certificates, attacks=attacks, out=out)

    tell("3/3 Writing the report")
    run = Run.at(out).knowing(certified_images=pixels, certified_network=found.network)
    write_page([run], out / REPORT)
    if as_json:
        print_json(as_dict(run, out))
        return
    show(run, out)
    assert run.audit is not None
    attacked, broken = run.audit.summary["certified"], run.audit.broken
    say(f"Audit:   {attacked} certificates attacked, {broken} broken")
    say("")
    say(sentence(run))
    page = (out / REPORT).resolve()
    say(f"All of it took {time.monotonic() - start:.0f} s. Open {page} in a browser.")
    say("Next: lipcert train --data FOLDER_OF_YOUR_IMAGES")


def demo_config(threads: int | None) -> "TrainConfig":
    """The network and budget of the demonstration: a small one that still learns the digits well."""
    from lipcert.runs.config import TrainConfig

    return TrainConfig(
        data="digits",
        depth=5,
        width=8,
        head="orthogonal",
        series="wide",
        epochs=30,
        batch_size=64,
        optimizer="muon",
        lr=0.3,
        nesterov=True,
        schedule="onecycle",
        ema=0.99,
        threads=threads,
    )


def _is_there(config: Path, options: "TrainConfig") -> bool:
    """Whether the folder holds this demonstration; raises an ArgumentError if it holds another run."""
    from lipcert.runs.config import TrainConfig

    if not config.is_file():
        return False
    if TrainConfig.read(config).changes(options):
        raise ArgumentError(f"out: {config.parent} holds another run; choose another folder with --out")
    return True
