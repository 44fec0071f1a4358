"""lipcert train: options to a TrainConfig, then the training loop."""

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from lipcert.cli.allocator import keep_freed_memory
from lipcert.cli.console import say
from lipcert.cli.options import given_options, takes_options
from lipcert.errors import ArgumentError
from lipcert.files import CONFIG, home_path
from lipcert.runs.config import TrainConfig, options, read_options

DECIDED = (
    "image_size", "augment", "border", "depth", "head", "width", "series", "start_from", "epochs",
    "batch_size", "optimizer", "lr", "nesterov", "schedule", "ema", "precision",
    "mirrored", "eval_every",
)  # fmt: skip
"""Options that a recipe decides where they are not given."""


@takes_options(options(), TrainConfig(), decided=DECIDED)
def train(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; default: a new one in runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; the result has the same bits.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Read options from a config.toml; options given here override it."),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="Decides the options that are not given: fast (Muon, minutes), or paper (SGD, hours).",
        ),
    ] = "fast",
    **arguments: Any,
) -> None:
    """Train a classifier with certificates; the recipe decides the options that are not given.

    Examples:

    lipcert train --data digits --out runs/digits

    lipcert train --data cifar10 --minutes 10

    lipcert train --data photos --out runs/mine

    lipcert train --data cifar100 --recipe paper --depth 15 --out runs/paper

    lipcert train --out runs/paper --resume
    """
    given = given_options(arguments)
    if out is None and resume:
        raise ArgumentError("out: --resume needs the folder of the run; name it with --out")
    out = out or free_folder(given.get("data", TrainConfig.data))
    asked, reason = collect_options(given, out=out, config=config, resume=resume, recipe=recipe)
    if reason and not resume:  # a run that is not there has nothing to go on with
        say(f"Recipe {recipe}: {reason}")
        say(f"Folder of the run: {out}")

    from lipcert.training.loop import train as run
    from lipcert.training.progress import for_terminal

    keep_freed_memory()
    run(asked, out, resume=resume, progress=for_terminal())


def free_folder(data: str) -> Path:
    """A folder in runs/ that does not exist yet, named after the data."""
    name = home_path(data).resolve().name  # of a dataset its own
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def collect_options(
    given: dict[str, Any], *, out: Path, config: Path | None, resume: bool, recipe: str = "fast"
) -> tuple[TrainConfig, str]:
    """Merge the options `given` into those of the run to resume, of a config file, or of the recipe.

    Returns:
        The options, and what the recipe decided; nothing for a run that goes on.
    """
    if config is None and resume and (out / CONFIG).exists():
        config = out / CONFIG
    # What a file leaves open is not decided by the defaults yet, unless a run has begun with them.
    base = {} if config is None else TrainConfig.read(config).to_dict() if resume else read_options(config)
    if "epochs" in given and not resume:
        base.pop("minutes", None)
    asked, reason = base | given, ""
    if not resume or config is None:
        from lipcert.training.recipes import apply_recipe

        chosen = apply_recipe(recipe, asked)
        asked, reason = chosen.options, chosen.reason
    if "start_from" in asked and not resume:
        asked = _of_start(asked) | asked
    options = TrainConfig.from_dict(asked)
    if "warmup" in given and options.schedule == "step":
        raise ArgumentError(
            "warmup: the schedule step has no warmup; use onecycle or cosine, or leave it out"
        )
    if "muon_step" in given and options.optimizer != "muon":
        raise ArgumentError(
            "muon_step: the optimizer sgd does not use it; use --optimizer muon, or leave it out"
        )
    return options, reason


def _of_start(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the network decides which a run starts from."""
    from lipcert.data.archives import ARCHIVES
    from lipcert.training.start import network_options

    found = network_options(options["start_from"])
    if options.get("data", TrainConfig.data) in ARCHIVES:
        del found["image_size"]
    if options.get("conv", found["conv"]) != found["conv"]:
        del found["series"]  # which another convolution would refuse, before it is said what does not fit
    return found
