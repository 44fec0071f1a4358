"""lipcert audit: attacks every certificate of a network, and exits with 1 if one breaks."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress as Bar

from lipcert.cli.console import make_folder, print_json, print_table, say
from lipcert.cli.options import Count, Data, Device, Network, Weights
from lipcert.cli.places import default_folder, home_folder, pick_device
from lipcert.errors import BrokenCertificateError, CheckpointError
from lipcert.files import ATTACKED, AUDIT
from lipcert.runs.naming import find_run

if TYPE_CHECKING:
    from lipcert.attacks.audit import Progress


def audit(
    named: Network,
    weights: Weights = "best",
    data: Data = None,
    count: Count = None,
    attacks: Annotated[
        str | None,
        typer.Option(
            "--attacks",
            help="Some of noise, pgd, pgd-minimal, foolbox-deepfool, foolbox-ddn, foolbox-cw, foolbox-pgd.",
            show_default="all",
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Gradient steps of one descent.")] = 40,
    restarts: Annotated[int, typer.Option("--restarts", help="Descents per target in the ball.")] = 2,
    targets: Annotated[int, typer.Option("--targets", help="How many other classes to aim at.")] = 3,
    box: Annotated[
        bool, typer.Option("--box", help="Stay in [0, 1]; certificates hold everywhere, so off is stronger.")
    ] = False,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images attacked at once.")] = 128,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all random starts.")] = 0,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for audit.json, audit.jsonl and counter-examples. Default: the run's folder, or a "
            "subfolder of it for other data, other weights, or an audit that covers less.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")
    ] = False,
) -> None:
    """Attack every certificate of a network. Exits with 1, and saves the counter-example, if one breaks.

    Examples:

    lipcert audit runs/a

    lipcert audit runs/a --count 1000 --weights last

    lipcert audit runs/a --attacks pgd,pgd-minimal --steps 200 --restarts 5 --box

    lipcert audit model.safetensors --data cifar10 --out audits/model
    """
    run = find_run(named, weights)

    from lipcert.attacks.audit import ATTACKS, INTERRUPTED, InterruptedAudit, check_plan
    from lipcert.attacks.audit import audit as attack
    from lipcert.attacks.settings import AttackSettings

    settings = AttackSettings(steps=steps, restarts=restarts, targets=targets, box=box, seed=seed)
    names = list(ATTACKS) if attacks is None else [part.strip() for part in attacks.split(",")]
    check_plan(names, batch_size)
    target = pick_device(device)
    test = run.test_images(data)
    images = test.pixels[:count]
    where = out
    if where is None:
        less = _knows_more(home_folder(run, test.name), run.network.hash, len(images), names)
        kept = len(images) if less else None
        where = default_folder(run, "audit", data=test.name, count=kept, weights=weights)
    make_folder(where)
    try:
        with _progress(quiet=as_json) as progress:
            report = attack(
                run.network.to(target),
                images,
                attacks=names,
                settings=settings,
                batch_size=batch_size,
                out=where,
                progress=progress,
            )
    except InterruptedAudit as interruption:
        raise KeyboardInterrupt(f"{interruption}; they are in {where / INTERRUPTED}") from interruption
    except BrokenCertificateError as error:
        raise BrokenCertificateError(f"{error}; the counter-examples are in {where}") from error
    if as_json:
        print_json(report.summary())
        return
    _show(report.summary())
    say(f"wrote {where / AUDIT} and {where / ATTACKED}")


def _knows_more(folder: Path, network_hash: str, images: int, attacks: Sequence[str]) -> bool:
    """Whether the folder has an audit of this network with more images or other attacks."""
    from lipcert.runs.audit import read_audit

    try:
        known = read_audit(folder)
    except CheckpointError:  # damaged: may be replaced
        return False
    if known is None or not known.is_of(network_hash):
        return False
    return known.summary["images"] > images or not set(known.summary["attacks"]) <= set(attacks)


@contextmanager
def _progress(*, quiet: bool) -> "Iterator[Progress | None]":
    """A bar on a terminal, a line per attack and batch elsewhere."""
    if quiet:
        yield None
        return
    if not sys.stdout.isatty():
        yield lambda done, total, attack: typer.echo(f"{done}/{total} {attack or 'done'}")
        return
    with Bar(transient=True) as bar:
        task = bar.add_task("audit", total=None)

        def advance(done: int, total: int, attack: str) -> None:
            bar.update(task, completed=done, total=total, description=attack or "done")

        yield advance


def _show(summary: dict[str, Any]) -> None:
    from lipcert.report.words import PROOF

    ratio = summary["ratio"]
    rows = [
        ["images", f"{summary['images']}, {summary['certified']} of them certified"],
        ["certificates", PROOF],
        ["points tried", f"{summary['points_tried']}, {summary['points_inside']} inside a certificate"],
        ["broken certificates", str(summary["broken"])],
        ["changes found", f"{summary['found']} images, all outside their certificates"],
    ]
    if ratio["smallest"] is not None:
        rows.append(["distance / radius", f"smallest {ratio['smallest']:.4f}, median {ratio['median']:.4f}"])
    print_table("Audit by attack", ["", ""], rows)
