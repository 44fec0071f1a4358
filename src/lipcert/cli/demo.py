"""lipcert demo: the whole story on the embedded digits in half a minute."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipcert.cli.console import print_json, say
from lipcert.errors import ArgumentError

if TYPE_CHECKING:
    from lipcert.training.config import TrainConfig

EXAMPLES = """
Examples:

lipcert demo

lipcert demo --out runs/demo --threads 2
"""


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("runs/demo"),
    threads: Annotated[
        int | None, typer.Option("--threads", help="CPU threads; else torch decides.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")] = False,
) -> None:
    """Train a small classifier on handwritten digits, certify it, attack it, and write report.html."""
    start = time.monotonic()
    import torch

    from lipcert.attacks.audit import audit
    from lipcert.cli.allocator import keep_freed_memory
    from lipcert.cli.certify import as_dict, certify_with_progress, show, write_everything
    from lipcert.cli.network import find_network, open_network, test_images
    from lipcert.data import to_float
    from lipcert.training.loop import train
    from lipcert.training.progress import Silent, for_terminal
    from lipcert.training.run_folder import CONFIG

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
    train(options, out, resume=again, progress=Silent() if as_json else for_terminal())

    tell("2/3 Certifying 360 digits it has never seen, then attacking the certificates")
    source = find_network(out, None, "best")
    network = open_network(source, "cpu")
    images = test_images(source, None, network)
    certificates = certify_with_progress(network, images, len(images), quiet=True)
    # Our own attacks alone: foolbox is an extra that a first run need not have.
    attacks = ["pgd", "pgd-minimal"]
    audit(network, to_float(images.images), certificates=certificates, attacks=attacks, out=out)

    tell("3/3 Writing the report")
    evidence = write_everything(out, source, network, images, certificates)
    if as_json:
        print_json(as_dict(evidence, out))
        return
    show(evidence, out)
    assert evidence.audit is not None
    attacked, broken = evidence.audit.summary["certified"], evidence.audit.broken
    say(f"Audit:   {attacked} certificates attacked, {broken} broken")
    say("")
    say(evidence.sentence)
    page = (out / "report.html").resolve()
    say(f"All of it took {time.monotonic() - start:.0f} s. Open {page} in a browser.")
    say(
        "Next: lipcert train --data FOLDER_OF_YOUR_IMAGES --start-from lipconvnet5-cifar10 --minutes 30 "
        "--crop 0 --schedule onecycle --nesterov --out runs/mine"
    )


demo.__doc__ = f"{demo.__doc__}\n{EXAMPLES}"


def demo_config(threads: int | None) -> "TrainConfig":
    """The network and budget of the demonstration: a small one that still learns the digits well."""
    from lipcert.training.config import TrainConfig

    return TrainConfig(
        data="digits",
        depth=5,
        width=16,
        epochs=30,
        batch_size=64,
        lr=0.3,
        nesterov=True,
        schedule="onecycle",
        threads=threads,
    )


def _is_there(config: Path, options: "TrainConfig") -> bool:
    """Whether this very demonstration was begun; another run is in nobody's way."""
    from lipcert.training.config import TrainConfig

    if not config.is_file():
        return False
    if TrainConfig.read(config).changes(options):
        raise ArgumentError(f"out: {config.parent} holds another run; choose another folder with --out")
    return True
