"""From rows to runs: one job per distinct network and seed, skipped when done, resumed when begun."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lipcert.errors import ArgumentError, LipcertError
from lipcert.paper.budget import Budget, network_of
from lipcert.paper.tables import Network
from lipcert.runs.config import TrainConfig
from lipcert.runs.run import Run, State
from lipcert.training.progress import Progress


class Train(Protocol):
    """The training loop, as far as a reproduction needs it."""

    def __call__(
        self, config: TrainConfig, out: Path, *, resume: bool = False, progress: Progress | None = None
    ) -> object:
        """Train to the end, or go on where a killed run stopped; leaves `summary.json` in `out`."""


@dataclass(frozen=True)
class Job:
    """One training run and its folder."""

    config: TrainConfig
    out: Path

    @property
    def state(self) -> State:
        """Read from the folder; raises if it holds a run with other options."""
        run, wanted = Run.at(self.out), self.config
        if run.state is not State.NEW:
            # Where a run is computed does not make it another run.
            here = replace(run.config, devices=wanted.devices, nodes=wanted.nodes, threads=wanted.threads)
            if changes := here.changes(wanted):
                raise ArgumentError(
                    f"out: {self.out} holds a run with other options ({'; '.join(changes)}); "
                    "choose another --out or remove that folder"
                )
        return run.state

    def run(self, train: Train, progress: Progress | None = None) -> None:
        """Train, or go on with what a killed process left, under the options it began with."""
        begun = self.state is State.BEGUN
        train(Run.at(self.out).config if begun else self.config, self.out, resume=begun, progress=progress)


@dataclass(frozen=True)
class Failure:
    """A job that stopped with an error; the others went on."""

    job: Job
    message: str
    error: Exception | None = None


def folder_name(config: TrainConfig) -> str:
    """Name of a run's folder: the network, what is spent on it, and the seed.

    >>> network = Network("cifar10", 5, "soc", "hh1", "lln", 0.5)
    >>> folder_name(Budget(epochs=5, width=16).config(network, seed=1))
    'cifar10-lipconvnet5-soc-hh1-lln-cr0.5-w16-5epochs-step-exponential-seed1'
    """
    length = f"{config.epochs}epochs" if config.minutes is None else f"{config.minutes:g}min"
    parts = [network_of(config).key, f"w{config.width}", length, config.schedule]
    parts += [] if config.series == TrainConfig.series else [config.series]
    parts += [] if config.crop is None else [f"crop{config.crop}"]
    return "-".join([*parts, f"seed{config.seed}"])


def plan(networks: Iterable[Network], budget: Budget, seeds: Sequence[int], out: Path) -> tuple[Job, ...]:
    """The jobs that make `networks`, each distinct network once per seed, in order."""
    configs = (budget.config(network, seed) for network in dict.fromkeys(networks) for seed in seeds)
    return tuple(Job(config, out / folder_name(config)) for config in dict.fromkeys(configs))


def run_in_order(
    jobs: Sequence[Job],
    train: Train,
    *,
    progress: Callable[[], Progress | None] = lambda: None,
    say: Callable[[str], None] = print,
) -> tuple[Failure, ...]:
    """Run what is not done, one job after another; a job that fails is reported and the next one begins."""
    states = [job.state for job in jobs]  # all, before the first hour is spent
    failures = []
    for number, (job, state) in enumerate(zip(jobs, states, strict=True), start=1):
        place = f"[{number}/{len(jobs)}] {job.out.name}"
        if state is State.DONE:
            say(f"{place}: done before")
            continue
        say(f"{place}: {'goes on' if state is State.BEGUN else 'begins'}")
        try:
            job.run(train, progress())
        except Exception as error:  # no room for this row on the GPU, say: the next one may fit
            reason = str(error).partition("\n")[0]
            message = str(error) if isinstance(error, LipcertError) else f"{type(error).__name__}: {reason}"
            failures.append(Failure(job, message, error))
            say(f"{place}: failed: {message}")
    return tuple(failures)
