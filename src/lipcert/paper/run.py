"""From rows to runs: one job per distinct network and seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from lipcert.paper.budget import Budget, network_of
from lipcert.paper.tables import Network
from lipcert.runs.config import TrainConfig
from lipcert.training.jobs import Job


def folder_name(config: TrainConfig) -> str:
    """Name of a run's folder: the network, what is spent on it, and the seed.

    >>> network = Network("cifar10", 5, "soc", "hh1", "lln", 0.5)
    >>> folder_name(Budget(epochs=5, width=16).config(network, seed=1))
    'cifar10-lipconvnet5-soc-hh1-lln-cr0.5-w16-5epochs-step-exponential-seed1'
    """
    length = f"{config.epochs}epochs" if config.minutes is None else f"{config.minutes:g}min"
    optimizer = ["muon"] if config.optimizer == "muon" else []
    parts = [network_of(config).key, f"w{config.width}", length, *optimizer, config.schedule]
    parts += [] if config.series == TrainConfig.series else [config.series]
    parts += [] if config.crop is None else [f"crop{config.crop}"]
    return "-".join([*parts, f"seed{config.seed}"])


def plan(networks: Iterable[Network], budget: Budget, seeds: Sequence[int], out: Path) -> tuple[Job, ...]:
    """The jobs that make `networks`, each distinct network once per seed, in order."""
    configs = (budget.config(network, seed) for network in dict.fromkeys(networks) for seed in seeds)
    return tuple(Job(config, out / folder_name(config)) for config in dict.fromkeys(configs))
