"""Rows as jobs of a Ray cluster; a row whose worker dies is started again elsewhere and resumes."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from lipcert.cluster import RETRIES, connected
from lipcert.errors import LipcertError
from lipcert.runs.run import State
from lipcert.training.jobs import Failure, Job, Train


def run_on_ray(
    jobs: Sequence[Job],
    train: Train,
    address: str = "ray",
    *,
    say: Callable[[str], None] = print,
    environment: Mapping[str, str] | None = None,
) -> tuple[Failure, ...]:
    """Run what is not done on a Ray cluster, as many rows at a time as the cluster has room for.

    A row asks for its `threads` CPUs (1 if unset) and, where there are GPUs, for one. Its folder must be
    reachable under one path from every machine: that is where it finds its checkpoint when another worker
    goes on with it.

    Args:
        jobs: the runs.
        train: the training loop; Ray ships it to the workers.
        address: "ray" starts a cluster on this machine, "ray://host:port" connects to a running one.
        say: called with a message for every row that ends.
        environment: variables for the workers, such as where the data is.

    Raises:
        ArgumentError: the address is not valid, Ray is not installed, or the cluster cannot be reached.
    """
    open_jobs = [job for job in jobs if job.state is not State.DONE]
    say(f"{len(jobs) - len(open_jobs)} of {len(jobs)} rows done before")
    if not open_jobs:
        return ()
    with connected(address) as ray:
        return _run(ray, open_jobs, train, say, environment or {})


def _run(
    ray: ModuleType,
    jobs: Sequence[Job],
    train: Train,
    say: Callable[[str], None],
    environment: Mapping[str, str],
) -> tuple[Failure, ...]:
    gpus = 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0
    # An error of lipcert is an answer and comes back as text; only a lost worker is worth another attempt.
    remote = ray.remote(max_retries=RETRIES, runtime_env={"env_vars": dict(environment)})(_run_job)
    waiting: dict[Any, Job] = {}
    for job in jobs:
        options = remote.options(num_cpus=job.config.threads or 1, num_gpus=gpus, name=job.out.name)
        waiting[options.remote(Job(job.config, job.out.resolve()), train)] = job
    failures = []
    while waiting:
        (finished,), _ = ray.wait(list(waiting), num_returns=1)
        job = waiting.pop(finished)
        try:
            message = ray.get(finished)
        except ray.exceptions.RayError as error:
            message = f"the worker was lost or broke: {error}"
        done = f"[{len(jobs) - len(waiting)}/{len(jobs)}] {job.out.name}"
        say(f"{done}: failed: {message}" if message else f"{done}: done")
        if message:
            failures.append(Failure(job, message))
    return tuple(failures)


def _run_job(job: Job, train: Train) -> str:
    """In the worker: run or go on; returns the message of an error that another attempt would meet again."""
    try:
        # The result of a row whose worker died after the last write is already there.
        if job.state is not State.DONE:
            job.run(train)
    except LipcertError as error:
        return str(error)
    return ""
