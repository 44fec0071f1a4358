"""Rows on a real local Ray: a killed worker's row resumes, a failing row is named, done rows are skipped."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lipcert.errors import ArgumentError, TrainingError
from lipcert.files import CONFIG, SUMMARY
from lipcert.paper.budget import Budget
from lipcert.paper.cluster import run_on_ray
from lipcert.paper.run import plan
from lipcert.paper.tables import tables
from lipcert.runs.config import TrainConfig
from lipcert.runs.run import State
from lipcert.training.jobs import Job
from lipcert.training.progress import Progress

pytest.importorskip("ray", reason="needs the extra `cluster`")

STEPS = 4
BAD_SEED = 13


def train_in_steps(
    config: TrainConfig, out: Path, *, resume: bool = False, progress: Progress | None = None
) -> None:
    """Stands in for the training loop: four steps, a checkpoint after each, and a pause to be killed in."""
    if config.seed == BAD_SEED:
        raise TrainingError("the loss is not finite")
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG).write_text(config.to_toml())
    with (out / "log").open("a") as log:
        log.write(f"starts pid={os.getpid()} data={os.environ.get('LIPCERT_DATA')} resume={resume}\n")
    checkpoint = out / "checkpoint"
    done = int(checkpoint.read_text()) if resume and checkpoint.exists() else 0
    for step in range(done + 1, STEPS + 1):
        checkpoint.write_text(str(step))
        with (out / "log").open("a") as log:
            log.write(f"step {step}\n")
        if step == 2 and not resume and config.seed == 0:
            (out / "waits").write_text(str(os.getpid()))
            time.sleep(120)  # the test kills this process here
    (out / SUMMARY).write_text("{}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        root = str(Path(__file__).parents[2])
        ray.init(
            "local",  # whatever a run that was killed left behind in /tmp
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": root}},
        )
        yield
        ray.shutdown()


def jobs_of(tmp_path: Path, seeds: list[int]) -> tuple[Job, ...]:
    row = tables()["cifar10-main"].select(["5-cr"])[0]
    return plan([row.network], Budget(epochs=1, threads=1), seeds, tmp_path)


@pytest.mark.slow
def test_a_row_whose_worker_is_killed_resumes_on_another(cluster: None, tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, [0, 1])

    def kill_the_first() -> None:
        waits = jobs[0].out / "waits"
        while not waits.exists() or not waits.read_text():
            time.sleep(0.05)
        os.kill(int(waits.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first, daemon=True)
    killer.start()
    said: list[str] = []
    assert run_on_ray(jobs, train_in_steps, say=said.append, environment={"LIPCERT_DATA": "/there"}) == ()
    killer.join(timeout=1)
    assert [job.state for job in jobs] == [State.DONE, State.DONE]
    first, second = ((job.out / "log").read_text().splitlines() for job in jobs)
    assert [line for line in first if line.startswith("step")] == [f"step {n}" for n in range(1, STEPS + 1)]
    starts = [line for line in first if line.startswith("starts")]
    assert [line.split("resume=")[1] for line in starts] == ["False", "True"]
    assert starts[0].split()[1] != starts[1].split()[1]  # another process
    assert sum(line.startswith("starts") for line in second) == 1
    assert all("data=/there" in line for line in starts)
    assert said[-1].startswith("[2/2]")


@pytest.mark.slow
def test_an_error_of_one_row_does_not_stop_the_others(cluster: None, tmp_path: Path) -> None:
    bad, good = jobs_of(tmp_path, [BAD_SEED, 2])
    (failure,) = run_on_ray([bad, good], train_in_steps, say=lambda _: None)
    assert (failure.job, failure.message) == (bad, "the loss is not finite")
    assert good.state is State.DONE


def test_when_all_rows_are_done_no_cluster_is_needed(tmp_path: Path) -> None:
    (job,) = jobs_of(tmp_path, [1])
    train_in_steps(job.config, job.out)
    assert run_on_ray([job], train_in_steps, "ray://nowhere:1", say=lambda _: None) == ()


def test_the_address_is_checked(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match="cluster: expected 'ray' or an address 'ray://host:port', got 'slurm'"
    ):
        run_on_ray(jobs_of(tmp_path, [1]), train_in_steps, "slurm", say=lambda _: None)
