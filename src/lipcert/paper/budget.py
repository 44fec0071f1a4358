"""The training budget of a reproduction, and how it differs from the paper's."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lipcert.errors import ArgumentError, choose
from lipcert.paper.tables import Network
from lipcert.runs.config import PAPER_WEIGHT_DECAY, TrainConfig

PAPER = TrainConfig(width=32, series="exponential", epochs=200, lr=0.1, schedule="step")
"""The paper's recipe; dataset, network and gamma are per row."""


RECIPES = ("paper", "fast")
OPTIONS = (
    "epochs", "minutes", "width", "batch_size", "optimizer", "muon_step", "schedule", "lr", "nesterov", "ema",
    "series", "crop", "precision", "eval_every", "threads",
)  # fmt: skip
"""Options that a reproduction may change, for all of its rows."""


@dataclass(frozen=True, init=False)
class Budget:
    """Options that all rows of a reproduction share. The defaults are the paper's.

    Args:
        recipe: decides the options that are not given: "paper", or "fast", the default of `lipcert train`.
        gamma: used in place of the specification's in every row with certificate regularization.
        options: some of `OPTIONS`, as `TrainConfig` takes them.
    """

    recipe: str
    gamma: float | None
    given: dict[str, Any]

    def __init__(self, *, recipe: str = "paper", gamma: float | None = None, **options: Any) -> None:
        if gamma is not None and gamma <= 0:
            raise ArgumentError(f"gamma: expected a number above 0 for the rows with CR, got {gamma!r}")
        object.__setattr__(self, "recipe", choose("recipe", recipe, RECIPES))
        object.__setattr__(self, "gamma", gamma)
        object.__setattr__(self, "given", {choose("option", n, OPTIONS): v for n, v in options.items()})
        replace(PAPER, **self.given)  # raises for a value out of range, before anything runs

    def config(self, network: Network, seed: int) -> TrainConfig:
        """The training run of one network under this budget."""
        options = self.given | {
            "data": network.dataset,
            "depth": network.depth,
            "conv": network.conv,
            "activation": network.activation,
            "head": network.head,
            "gamma": self.gamma if network.gamma and self.gamma is not None else network.gamma,
            "seed": seed,
            "mirrored": False,  # the paper's networks are not
        }
        if network.conv != "soc":  # the only one with a series; the others keep the option's default
            options["series"] = TrainConfig.series
        if self.recipe == "paper":
            return replace(PAPER, **options)
        from lipcert.training.recipes import apply_recipe  # imports torch, which --help does not need

        return TrainConfig(**apply_recipe(self.recipe, options).options)


def network_of(config: TrainConfig) -> Network:
    """The network that a run trains, in the terms of the paper's tables."""
    gamma = config.gamma if config.loss == "certificate" else 0.0  # which no other loss reads
    return Network(
        config.data, config.depth, config.conv, config.activation, config.head, gamma, config.architecture
    )


FREE = frozenset(
    {"data", "architecture", "depth", "conv", "activation", "head", "gamma", "seed"}
    | {"devices", "nodes", "threads", "checkpoint_every", "tensorboard"}
)
"""Options that name a network, or that affect at most the last digits of a result."""
LENGTH = ("epochs", "minutes", "width", "schedule")
SELECTION = ("held_out", "eval_every")
WORDS = {
    "muon_step": "Muon step {:g}", "lr": "lr {:g}", "series": "{} SOC", "start_from": "started from {}",
    "batch_size": "batch {}", "momentum": "momentum {:g}", "nesterov": "Nesterov",
    "weight_decay": "weight decay {:g}", "loss": "{} loss", "offset": "offset {:g}",
    "augment": "augmentation {}", "crop": "crops padded by {}", "border": "{} borders",
    "image_size": "images of {} pixels",
    "ema": "averaged by {:g}", "precision": "{}", "held_out": "{} held out",
    "eval_every": "evaluated every {} epochs", "mirrored": "mirrored",
}  # fmt: skip
"""Text of a label for the value of an option; other options are shown by name."""


def is_paper_budget(config: TrainConfig) -> bool:
    """Whether a run has the paper's options, except for network, seed and machine."""
    return _apart(config).keys() <= set(SELECTION)


def budget_label(config: TrainConfig, *, series: bool = True) -> str:
    """The budget of a run in one line, with all options that are not the paper's.

    Args:
        config: of the run.
        series: False leaves out that of SOC layers, which BCOP cannot share with its SOC baseline.

    >>> network = Network("cifar10", 5, "soc", "hh1", "lln", 0.0)
    >>> budget_label(Budget(epochs=5, width=16).config(network, seed=0))
    '5 epochs, width 16, step schedule'
    """
    number, unit = (config.epochs, "epoch") if config.minutes is None else (config.minutes, "minute")
    parts = [
        f"{number:g} {unit}{'s' * (number != 1)}",
        f"width {config.width}",
        f"{config.schedule} schedule",
    ]
    apart = {name: value for name, value in _apart(config).items() if series or name != "series"}
    if apart.keys() <= set(SELECTION):
        parts = ["the paper's (200 epochs, width 32)"]
    for name in sorted(apart.keys() - set(LENGTH), key=[*WORDS, *apart].index):
        words = WORDS.get(name, name.replace("_", " ") + " {}")
        parts.append("no crops" if apart[name] == 0 and name == "crop" else words.format(apart[name]))
    return ", ".join(parts)


def _apart(config: TrainConfig) -> dict[str, Any]:
    """Options in which a run differs from the paper, without those that have no effect on it."""
    values = {name: value for name, value in vars(config).items() if name not in FREE}
    apart = {name: value for name, value in values.items() if value != getattr(PAPER, name)}
    # Options that have no effect because of another option.
    unused = {"optimizer", "muon_step"} if config.optimizer == "sgd" else {"optimizer"}
    unused |= {"beta"} if config.loss != "annealing" else set()
    unused |= {"epsilon"} if config.loss != "emma" else set()
    unused |= {"series"} if config.conv != "soc" else set()
    unused |= {"weight_decay"} if config.decay == PAPER_WEIGHT_DECAY.get(config.conv, 0.0) else set()
    if config.optimizer == "muon":
        apart["muon_step"] = config.muon_step
    if config.start_from is not None:
        apart["start_from"] = Path(config.start_from).name
    return {name: value for name, value in apart.items() if name not in unused}
