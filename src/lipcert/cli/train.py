"""lipcert train: options to a TrainConfig, then the training loop."""

import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from lipcert.cli.allocator import keep_freed_memory
from lipcert.cli.completion import data_names, start_names
from lipcert.cli.network import FIXED_SIZE
from lipcert.errors import ArgumentError
from lipcert.training.config import TrainConfig

DEFAULTS = {field.name: field.default for field in fields(TrainConfig)}
EXAMPLES = """
Examples:

lipcert train --data digits --epochs 20 --schedule onecycle --lr 0.5 --nesterov --out runs/digits

lipcert train --data cifar10 --width 16 --minutes 30 --series wide --crop 0 --schedule onecycle --lr 0.3 \
--nesterov --out runs/b

lipcert train --data cifar100 --depth 15 --out runs/paper

lipcert train --data photos --start-from lipconvnet5-cifar10 --epochs 20 --schedule onecycle --out runs/mine

lipcert train --out runs/paper --resume
"""


def _option(
    name: str, text: str, *, switch: bool = False, complete: Callable[[str], list[str]] | None = None
) -> Any:
    """An option that is None unless given, so that --resume and --config know what was asked for."""
    default = DEFAULTS[name]
    flag = "--" + name.replace("_", "-")
    shown = ("off", "on")[default] if isinstance(default, bool) else default is not None and str(default)
    panel = next(panel for panel, names in PANELS.items() if name in names)
    declaration = f"{flag}/--no-{flag[2:]}" if switch else flag
    return typer.Option(
        declaration, help=text, show_default=shown, rich_help_panel=panel, autocompletion=complete
    )


PANELS = {
    "Data": ("data", "image_size", "augment", "crop", "held_out"),
    "Network": ("depth", "conv", "activation", "head", "width", "series", "start_from"),
    "Training": (
        "gamma", "offset", "epochs", "minutes", "batch_size", "optimizer", "muon_step", "lr", "momentum",
        "nesterov", "weight_decay", "schedule", "warmup", "ema", "seed",
    ),
    "Machine": ("precision", "devices", "nodes", "threads"),
    "Records": ("eval_every", "checkpoint_every", "tensorboard"),
}  # fmt: skip


def train(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, to the same bits.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="Read options from a config.toml; those given here win.")
    ] = None,
    data: Annotated[
        str | None,
        _option("data", "digits, cifar10, cifar100, or a folder of images.", complete=data_names),
    ] = None,
    image_size: Annotated[
        int | None, _option("image_size", "Side of the images; else the data's own.")
    ] = None,
    augment: Annotated[
        str | None, _option("augment", "crop-flip, none, or auto: crop-flip for all but digits.")
    ] = None,
    crop: Annotated[
        int | None,
        _option("crop", "Padding of the random crops, 0: only flips; else an eighth of the side."),
    ] = None,
    held_out: Annotated[
        int | None, _option("held_out", "Training images kept for selection, at most a tenth of them.")
    ] = None,
    depth: Annotated[int | None, _option("depth", "Convolutions, for 32x32 images: 5, 10, 15, ...")] = None,
    conv: Annotated[str | None, _option("conv", "soc, bcop or cayley.")] = None,
    activation: Annotated[
        str | None, _option("activation", "hh1, hh2, maxmin, or any registered name.")
    ] = None,
    head: Annotated[str | None, _option("head", "lln or orthogonal.")] = None,
    width: Annotated[int | None, _option("width", "Channels of the first stage.")] = None,
    series: Annotated[
        str | None,
        _option(
            "series",
            "Polynomial of SOC: isometric (fastest), wide (learns more), or the paper's exponential.",
        ),
    ] = None,
    start_from: Annotated[
        str | None,
        _option(
            "start_from",
            "Begin with the weights of a run, a file or a network of the zoo, and its options above.",
            complete=start_names,
        ),
    ] = None,
    gamma: Annotated[float | None, _option("gamma", "Weight of the certificate in the loss.")] = None,
    offset: Annotated[float | None, _option("offset", "Margin that the cross entropy asks for.")] = None,
    epochs: Annotated[int | None, _option("epochs", "Passes over the training images.")] = None,
    minutes: Annotated[
        float | None, _option("minutes", "Time budget in place of --epochs: the schedule is fitted to it.")
    ] = None,
    batch_size: Annotated[
        int | None, _option("batch_size", "Images per step, of all processes together.")
    ] = None,
    optimizer: Annotated[
        str | None,
        _option("optimizer", "sgd, or muon: Muon for the convolutions' matrices, SGD for the rest."),
    ] = None,
    muon_step: Annotated[
        float | None, _option("muon_step", "Share of its length by which Muon moves a matrix, at most.")
    ] = None,
    lr: Annotated[float | None, _option("lr", "Highest learning rate of SGD.")] = None,
    momentum: Annotated[float | None, _option("momentum", "Of SGD.")] = None,
    nesterov: Annotated[bool | None, _option("nesterov", "Nesterov's momentum.", switch=True)] = None,
    weight_decay: Annotated[
        float | None,
        _option("weight_decay", "On convolutions and head; if not given 5e-4 for soc and 0 for others."),
    ] = None,
    schedule: Annotated[
        str | None,
        _option("schedule", "step (x0.1 at 1/2 and 3/4), onecycle (up, then linear to 0), or cosine."),
    ] = None,
    warmup: Annotated[
        float | None, _option("warmup", "Share of the steps that onecycle and cosine rise.")
    ] = None,
    ema: Annotated[
        float | None,
        _option("ema", "Also keep an average of the weights, with this decay per step (0.998); 0: none."),
    ] = None,
    seed: Annotated[int | None, _option("seed", "Of weights, split, order and augmentation.")] = None,
    precision: Annotated[str | None, _option("precision", "fp32 or bf16-mixed.")] = None,
    devices: Annotated[int | None, _option("devices", "Processes per machine, one device each.")] = None,
    nodes: Annotated[int | None, _option("nodes", "Machines (with torchrun or SLURM).")] = None,
    threads: Annotated[int | None, _option("threads", "CPU threads per process; else torch decides.")] = None,
    eval_every: Annotated[int | None, _option("eval_every", "Epochs between held-out evaluations.")] = None,
    checkpoint_every: Annotated[
        str | None, _option("checkpoint_every", "Steps (500) or time (30s, 10m) between checkpoints.")
    ] = None,
    tensorboard: Annotated[
        bool | None,
        _option("tensorboard", "Also log to TensorBoard (needs the extra: log).", switch=True),
    ] = None,
) -> None:
    """Train a classifier with certificates. The defaults are the paper's recipe, with lipcert's SOC."""
    given = {name: value for name, value in locals().copy().items() if name in DEFAULTS and value is not None}
    options = collect_options(given, out=out, config=config, resume=resume)

    from lipcert.training.loop import train as run
    from lipcert.training.progress import for_terminal

    keep_freed_memory()

    run(options, out, resume=resume, progress=for_terminal())


train.__doc__ = f"{train.__doc__}\n{EXAMPLES}"


def collect_options(given: dict[str, Any], *, out: Path, config: Path | None, resume: bool) -> TrainConfig:
    """Merge the options `given` into those of the run to resume, of a config file, or of the defaults."""
    if "epochs" in given and "minutes" in given:
        raise ArgumentError("minutes: takes the place of --epochs; give one of the two")
    stored = out / "config.toml"
    if config is None and resume and stored.exists():
        config = stored
    base = {} if config is None else TrainConfig.read(config).to_dict()
    if config is not None and not resume:  # what a file leaves open is not decided by the defaults yet
        written = tomllib.loads(config.read_text(encoding="utf-8"))
        base = {name: value for name, value in base.items() if name in written}
    if "epochs" in given and "minutes" not in given and not resume:
        base.pop("minutes", None)
    asked = base | given
    if "start_from" in asked and not resume:
        asked = _of_start(asked) | asked
    options = TrainConfig.from_dict(asked)
    if "warmup" in given and options.schedule == "step":
        raise ArgumentError("warmup: the schedule step has none; use onecycle or cosine, or leave it out")
    if "muon_step" in given and options.optimizer != "muon":
        raise ArgumentError("muon_step: the optimizer sgd has none; use --optimizer muon, or leave it out")
    return options


def _of_start(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the network decides which a run starts from."""
    from lipcert.training.start import network_options

    found = network_options(options["start_from"])
    if options.get("data", TrainConfig.data) in FIXED_SIZE:
        del found["image_size"]
    if options.get("conv", found["conv"]) != found["conv"]:
        del found["series"]  # which another convolution would refuse, before it is said what does not fit
    return found
