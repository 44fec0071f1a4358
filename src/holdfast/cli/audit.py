"""holdfast audit: attacks every certificate of a network, and exits with 1 if one breaks."""

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from holdfast.errors import ArgumentError, BrokenCertificateError, CheckpointError, choose

if TYPE_CHECKING:
    from holdfast.attacks.audit import Progress

EXAMPLES = """
Examples:

holdfast audit runs/a

holdfast audit runs/a --count 1000 --weights best

holdfast audit runs/a --attacks pgd,pgd-minimal --steps 200 --restarts 5 --box

holdfast audit model.safetensors --data cifar10 --out audits/model
"""
FILES = {"last": "model.safetensors", "best": "best.safetensors"}


def audit(
    model: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of a run, a saved network, or a name of the zoo.")
    ],
    weights: Annotated[
        str, typer.Option("--weights", help="Of a run: last, or best on held-out images.")
    ] = "last",
    data: Annotated[
        str | None, typer.Option("--data", help="digits, cifar10, cifar100 or a folder; else the run's own.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", help="Only the first so many test images.", min=1)
    ] = None,
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
    precision: Annotated[
        str, typer.Option("--precision", help="float64 (proved) or float32 (measured rounding).")
    ] = "float64",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images attacked at once.")] = 128,
    seed: Annotated[int, typer.Option("--seed", help="Of all random starts.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for audit.json, audit.jsonl and counter-examples; else the run's."
        ),
    ] = None,
) -> None:
    """Attack every certificate of a network. Exits with 1, and saves the counter-example, if one breaks."""
    from holdfast.attacks.audit import ATTACKS
    from holdfast.attacks.audit import audit as run
    from holdfast.attacks.settings import AttackSettings
    from holdfast.data import load as load_data
    from holdfast.data import to_float
    from holdfast.models.storage import load

    folder = Path(model)
    settings = AttackSettings(steps=steps, restarts=restarts, targets=targets, box=box, seed=seed)
    names = list(ATTACKS) if attacks is None else [part.strip() for part in attacks.split(",")]
    source = data or _data_of(folder)
    network = load(_file(folder, weights))
    images = load_data(source, split="test", image_size=_image_size(source, network.config.image_size))
    pixels = to_float(images.images[:count])
    where = out or (folder if folder.is_dir() else Path("audit"))
    try:
        with _progress() as progress:
            report = run(
                network,
                pixels,
                precision=precision,
                attacks=names,
                settings=settings,
                batch_size=batch_size,
                out=where,
                progress=progress,
            )
    except BrokenCertificateError as error:
        raise BrokenCertificateError(f"{error}; the counter-examples are in {where}") from error
    _show(report.summary())
    typer.echo(f"wrote {where / 'audit.json'} and {where / 'audit.jsonl'}")


audit.__doc__ = f"{audit.__doc__}\n{EXAMPLES}"


def _file(model: Path, weights: str) -> Path:
    choose("weights", weights, FILES)
    if not model.is_dir():
        return model
    file = model / FILES[weights]
    if not file.is_file():
        raise CheckpointError(
            f"{model}: holds no {file.name}; train to the end first, or name a saved network"
        )
    return file


def _data_of(run: Path) -> str:
    """What a run was trained on."""
    try:
        stored = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
        return str(stored["data"])
    except (OSError, KeyError, ValueError) as error:
        raise ArgumentError(
            f"data: {run} does not say which images the network is for; pass --data digits, cifar10, "
            "cifar100 or a folder"
        ) from error


def _image_size(source: str, size: int) -> int | None:
    """CIFAR has one size and takes no other; digits and folders are read at the network's."""
    return None if source in ("cifar10", "cifar100") else size


@contextmanager
def _progress() -> "Iterator[Progress | None]":
    """A bar on a terminal, a line per attack and batch elsewhere."""
    if not sys.stdout.isatty():
        yield lambda done, total, attack: typer.echo(f"{done}/{total} {attack or 'done'}")
        return
    with Bar() as bar:
        task = bar.add_task("audit", total=None)

        def advance(done: int, total: int, attack: str) -> None:
            bar.update(task, completed=done, total=total, description=attack or "done")

        yield advance


def _show(summary: dict[str, Any]) -> None:
    ratio = summary["ratio"]
    table = Table(title="Audit by attack", title_justify="left", show_header=False)
    table.add_row("images", f"{summary['images']}, {summary['certified']} of them certified")
    table.add_row(
        "points tried", f"{summary['points_tried']}, {summary['points_inside']} inside a certificate"
    )
    table.add_row("broken certificates", str(summary["broken"]))
    table.add_row("changes found", f"{summary['found']} images, all beyond the radius")
    if ratio["smallest"] is not None:
        table.add_row("distance / radius", f"smallest {ratio['smallest']:.4f}, median {ratio['median']:.4f}")
    Console().print(table)
