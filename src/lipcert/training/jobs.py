"""Several training runs, one after another: skipped when done, resumed when begun."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lipcert.errors import ArgumentError, LipcertError, TrainingError
from lipcert.runs.config import TrainConfig
from lipcert.runs.run import Run, State
from lipcert.training.progress import Progress


class Train(Protocol):
    """The training loop, as far as a job needs it."""

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
        """Train, or resume a killed run under the options it began with."""
        begun = self.state is State.BEGUN
        train(Run.at(self.out).config if begun else self.config, self.out, resume=begun, progress=progress)


@dataclass(frozen=True)
class Failure:
    """A job that stopped with an error; the others went on."""

    job: Job
    message: str
    error: Exception | None = None


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


def raise_first(failures: Sequence[Failure], total: int) -> None:
    """Raise a TrainingError that counts the failures among `total` jobs and names the first, if any."""
    if failures:
        first = failures[0]
        raise TrainingError(
            f"{len(failures)} of {total} runs failed; the first is {first.job.out.name}: {first.message}"
        ) from first.error
