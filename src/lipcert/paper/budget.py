"""What a reproduction may spend, and how far that is from what the paper spent."""

from dataclasses import dataclass, replace
from pathlib import Path

from lipcert.errors import ArgumentError, choose
from lipcert.kernels.series import SERIES
from lipcert.paper.tables import Network
from lipcert.training.config import TrainConfig

PAPER = TrainConfig(width=32, series="exponential", epochs=200, lr=0.1, schedule="step")
"""The paper's recipe; dataset, network and gamma are per row."""


@dataclass(frozen=True)
class Budget:
    """Options that all rows of a reproduction share. The defaults are the paper's.

    Args:
        epochs: passes over the training images.
        minutes: time per row in place of epochs.
        width: channels of the first stage.
        schedule: of the learning rate; "step" (x0.1 at 1/2 and 3/4) is the paper's.
        lr: highest learning rate.
        nesterov: Nesterov's momentum in place of plain momentum.
        series: polynomial of the SOC layers; "exponential" is the paper's function.
        crop: padding of the random crops; None is the paper's 4, 0 leaves only flips.
        gamma: used in place of the specification's in every row with certificate regularization.
        precision: arithmetic of the training.
        threads: CPU threads per row.
    """

    epochs: int = PAPER.epochs
    minutes: float | None = None
    width: int = PAPER.width
    schedule: str = PAPER.schedule
    lr: float = PAPER.lr
    nesterov: bool = False
    series: str = PAPER.series
    crop: int | None = None
    gamma: float | None = None
    precision: str = PAPER.precision
    threads: int | None = None

    def config(self, network: Network, seed: int) -> TrainConfig:
        """The training run of one network under this budget."""
        choose("series", self.series, SERIES)
        if self.gamma is not None and self.gamma <= 0:
            raise ArgumentError(f"gamma: expected a number above 0 for the rows with CR, got {self.gamma!r}")
        return replace(
            PAPER,
            data=network.dataset,
            depth=network.depth,
            conv=network.conv,
            activation=network.activation,
            head=network.head,
            gamma=self.gamma if network.gamma and self.gamma is not None else network.gamma,
            epochs=self.epochs,
            minutes=self.minutes,
            width=self.width,
            schedule=self.schedule,
            lr=self.lr,
            nesterov=self.nesterov,
            crop=self.crop,
            # Only SOC layers have a series; the others keep the option's default.
            series=self.series if network.conv == "soc" else TrainConfig.series,
            precision=self.precision,
            threads=self.threads,
            seed=seed,
        )


def network_of(config: TrainConfig) -> Network:
    """The network that a run trains, in the terms of the paper's tables."""
    return Network(config.data, config.depth, config.conv, config.activation, config.head, config.gamma)


def is_paper_budget(config: TrainConfig) -> bool:
    """Whether a run spends what the paper spent: everything but network, seed and machine is the paper's."""
    same = replace(
        PAPER,
        data=config.data,
        depth=config.depth,
        conv=config.conv,
        activation=config.activation,
        head=config.head,
        gamma=config.gamma,
        seed=config.seed,
        eval_every=config.eval_every,
        held_out=config.held_out,
        devices=config.devices,
        nodes=config.nodes,
        threads=config.threads,
        checkpoint_every=config.checkpoint_every,
        tensorboard=config.tensorboard,
        muon_step=config.muon_step,  # of Muon, which is not the paper's optimizer
        # The series is an option of SOC layers alone.
        series=PAPER.series if config.conv == "soc" else config.series,
    )
    return config.decay == same.decay and replace(config, weight_decay=None) == same


def budget_label(config: TrainConfig) -> str:
    """One line that says what a run spent; what is not the paper's is named.

    >>> network = Network("cifar10", 5, "soc", "hh1", "lln", 0.0)
    >>> budget_label(Budget(epochs=5, width=16).config(network, seed=0))
    '5 epochs, width 16, step schedule'
    """
    plain = TrainConfig()
    apart = []
    if config.held_out != plain.held_out:
        apart.append(f"{config.held_out} held out")
    if config.eval_every != plain.eval_every:
        apart.append(f"evaluated every {config.eval_every} epochs")
    if is_paper_budget(config):
        return ", ".join(["the paper's (200 epochs, width 32)", *apart])
    number, unit = (config.epochs, "epoch") if config.minutes is None else (config.minutes, "minute")
    length = f"{number:g} {unit}{'s' * (number != 1)}"
    parts = [length, f"width {config.width}", f"{config.schedule} schedule"]
    if config.optimizer == "muon":
        parts.append(f"Muon step {config.muon_step:g}")
    if config.lr != PAPER.lr:
        parts.append(f"lr {config.lr:g}")
    if config.conv == "soc" and config.series != PAPER.series:
        parts.append(f"{config.series} SOC")
    if config.start_from is not None:
        parts.append(f"started from {Path(config.start_from).name}")
    if config.batch_size != plain.batch_size:
        parts.append(f"batch {config.batch_size}")
    if config.momentum != plain.momentum:
        parts.append(f"momentum {config.momentum:g}")
    if config.nesterov:
        parts.append("Nesterov")
    if config.decay != replace(config, weight_decay=None).decay:
        parts.append(f"weight decay {config.decay:g}")
    if config.offset:
        parts.append(f"offset {config.offset:g}")
    if config.augment != plain.augment:
        parts.append(f"augmentation {config.augment}")
    if config.crop is not None:
        parts.append(f"crops padded by {config.crop}" if config.crop else "no crops")
    if config.image_size != plain.image_size:
        parts.append(f"images of {config.image_size} pixels")
    if config.warmup != plain.warmup:
        parts.append(f"warmup {config.warmup:g}")
    if config.ema:
        parts.append(f"averaged by {config.ema:g}")
    if config.precision != plain.precision:
        parts.append(config.precision)
    return ", ".join(parts + apart)


def budget_without_series(config: TrainConfig) -> str:
    """The same as a network without SOC layers states it: what BCOP shares with its SOC baseline."""
    return budget_label(replace(config, conv="bcop"))
