"""A connection to a Ray cluster: one that is started on this machine, or one that runs elsewhere."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from lipcert.errors import ArgumentError, import_extra

RETRIES = 10
"""How often a task may lose its worker (machine gone, out of memory, killed) before it counts as failed."""


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """Connect to Ray and yield the package; the connection is closed at the end of the block.

    Args:
        address: "ray" starts a cluster on this machine, "ray://host:port" connects to a running one.

    Raises:
        ArgumentError: the address is not valid, Ray is not installed, or the cluster cannot be reached.
    """
    if address != "ray" and not address.startswith("ray://"):
        raise ArgumentError(f"cluster: expected 'ray' or an address 'ray://host:port', got {address!r}")
    ray = import_extra("ray", "cluster", "cluster")
    if ray.is_initialized():
        yield ray
        return
    where: dict[str, Any] = {"address": address}
    if address == "ray":  # "local" starts a new one, even if a killed cluster left files behind
        where = {"address": "local", "include_dashboard": False}
    try:
        with warnings.catch_warnings(action="ignore"):  # the error below has the reason
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        with suppress(RuntimeError):
            ray.shutdown()
        raise ArgumentError(f"cluster: cannot reach {address!r} ({error}); is the cluster up?") from error
    try:
        yield ray
    finally:
        ray.shutdown()
