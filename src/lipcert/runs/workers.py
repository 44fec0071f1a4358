"""A proved network at work on a Ray cluster, part by part.

A part is a task. Plain tasks are used and not Ray Data: docs/architecture.md has the reasons.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch

from lipcert.certify.network import ProvedNetwork
from lipcert.certify.network_file import from_bytes
from lipcert.cluster import RETRIES, connected
from lipcert.errors import ArgumentError, LipcertError

Part = TypeVar("Part")
Result = TypeVar("Result")
Work = Callable[[ProvedNetwork, Part], Result]


def work_on_ray(
    work: Work[Part, Result], file: Path, parts: Sequence[Part], address: str, *, device: str = "auto"
) -> Iterator[tuple[int, Result]]:
    """Number and result of each part as soon as it is done; as many at a time as there are CPUs, or GPUs.

    A part whose worker is lost is started again elsewhere.

    Args:
        work: called by a worker.
        file: of the proved network, which every worker reads once.
        parts: sent to the workers.
        address: "ray" starts a cluster on this machine, "ray://host:port" connects to a running one.
        device: "auto", or "cpu" to leave GPUs alone.

    Raises:
        ArgumentError: the cluster cannot be reached, or loses the worker of one part again and again.
        LipcertError: what `work` raises.
    """
    with connected(address) as ray:
        gpus = 1.0 if device != "cpu" and ray.cluster_resources().get("GPU", 0) else 0.0
        # Errors of lipcert are returned; only a lost worker is worth another attempt.
        remote = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(_work)
        content = ray.put(file.read_bytes())
        waiting = {remote.remote(work, content, part): number for number, part in enumerate(parts)}
        while waiting:
            (finished,), _ = ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(finished)
            try:
                found = ray.get(finished)
            except ray.exceptions.RayError as error:
                raise ArgumentError(
                    f"cluster: part {number + 1} of {len(parts)} broke, or lost its worker {RETRIES} times "
                    f"({error}); fix that, and run the same command again to go on"
                ) from error
            if isinstance(found, LipcertError):
                raise found
            yield number, found


def _work(work: Work[Part, Result], content: bytes, part: Part) -> Result | LipcertError:
    try:
        return work(_network(content), part)
    except LipcertError as error:
        return error


@lru_cache(maxsize=1)
def _network(content: bytes) -> ProvedNetwork:
    """Read once per worker, on its GPU if it was given one."""
    network = from_bytes(content, Path("the network of this task"))
    return network.to("cuda" if torch.cuda.is_available() else "cpu")
