"""Devices, precision and processes, by lightning-fabric."""

import gc
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from traceback import clear_frames
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lipcert.errors import CheckpointError, LipcertError, TrainingError
from lipcert.runs.config import TrainConfig
from lipcert.training.interruption import Interrupted, StoppedAtOnce

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PATIENCE = timedelta(days=1)
"""How long a process waits for another: at the end the first one certifies the test set alone."""

PRECISION = {"fp32": "32-true", "bf16-mixed": "bf16-mixed"}


def make_fabric(config: TrainConfig) -> "Fabric":
    """Fabric for the processes of `config`, launched: one per device, on one machine or several.

    With several processes the script is started again for each of them, unless torchrun or SLURM has done so.

    Raises:
        TrainingError: torchrun or SLURM started another number of processes than `config` names, several
            machines are asked for without a launcher, or there are too few devices.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.strategy import Strategy
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    processes = config.devices * config.nodes
    _check_launcher(processes, config.nodes)
    if config.threads is not None:
        # The environment too: the processes that Fabric starts would choose their own number otherwise.
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
        torch.set_num_threads(config.threads)
    # Fabric reports every process group it makes; errors still come through.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    strategy: Strategy | str = "auto"
    if processes > 1:
        strategy = DDPStrategy(gradient_as_bucket_view=True, timeout=PATIENCE, **_leave_buffers_alone())
    try:
        fabric = Fabric(
            # Not "auto", which would take Apple's GPU: that has no float64, and certificates need it.
            accelerator="cuda" if torch.cuda.is_available() else "cpu",
            devices=config.devices,
            num_nodes=config.nodes,
            strategy=strategy,
            precision=PRECISION[config.precision],  # type: ignore[arg-type]
        )
        fabric.launch()
    except LipcertError:
        raise
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise TrainingError(f"devices: cannot start {processes} processes: {reason}") from error
    if fabric.device.type == "cuda":
        # The fastest kernels add in an order that changes from run to run; a resumed run could not be equal.
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    return fabric


def on_rank_zero(fabric: "Fabric", work: Callable[[], None]) -> None:
    """Run `work` in the first process; the others wait, and raise the same error if it fails."""
    failure: Exception | None = None
    if fabric.global_rank == 0:
        try:
            work()
        except LipcertError as error:
            failure = error
        except OSError as error:
            failure = CheckpointError(f"cannot write the run: {error}; repair that and go on with --resume")
        except Exception as error:  # otherwise the other processes would wait for a day
            failure = error
    message = fabric.broadcast("" if failure is None else f"{failure}" or type(failure).__name__)
    if failure is not None:
        raise failure
    if message:
        raise TrainingError(message)


def _leave_buffers_alone() -> dict[str, Any]:
    """The option of DDP under which no process sends its buffers to the others.

    Power-iteration vectors follow from the weights, which are equal everywhere. To send them before every
    forward would cost time, and would change them between forward and backward.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    # torch 2.13 renamed the argument and warns about the old name.
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return {name: False}


def sum_over_processes(fabric: "Fabric", values: Tensor) -> list[float]:
    """Entrywise sum of a vector over all processes; waits for all of them."""
    total = fabric.all_reduce(values, reduce_op="sum")
    assert isinstance(total, Tensor)
    return [float(value) for value in total.tolist()]


LAUNCHERS = (
    ("torchrun", "TORCHELASTIC_RUN_ID", "WORLD_SIZE"),
    ("SLURM's srun", "SLURM_STEP_ID", "SLURM_NTASKS"),
)


def _check_launcher(processes: int, nodes: int) -> None:
    marks = (*(mark for _, mark, _ in LAUNCHERS), "NODE_RANK", "LOCAL_RANK")
    if nodes > 1 and not any(mark in os.environ for mark in marks):
        raise TrainingError(
            f"nodes: nobody has started the processes of {nodes} machines; start them by torchrun or srun "
            "(docs/scale.md)"
        )
    for launcher, mark, size in LAUNCHERS:
        found = os.environ.get(size)
        if mark in os.environ and found is not None and int(found) != processes:
            raise TrainingError(
                f"devices: {launcher} started {found} processes, but devices x nodes is {processes}; "
                "make the two equal"
            )


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore the process-wide settings that training changes: torch's threads and cuDNN's kernels."""
    cudnn = torch.backends.cudnn
    variable, threads = os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()
    deterministic, benchmark = cudnn.deterministic, cudnn.benchmark
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark = deterministic, benchmark
        if variable is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = variable


@contextmanager
def process_group() -> Iterator[None]:
    """Close a process group that is opened inside: at the end of a process its threads may abort it."""
    distributed = torch.distributed
    owned = distributed.is_available() and not distributed.is_initialized()
    try:
        yield
    except Interrupted as interruption:
        if not isinstance(interruption, StoppedAtOnce):
            clear_frames(interruption.__traceback__)  # they hold the model
            _close(owned)
        raise
    # Not after another error: with a process gone, closing would wait for it.
    _close(owned)


def _close(owned: bool) -> None:
    if owned and torch.distributed.is_initialized():
        # First the model: a DDP module that holds the last reference to the group would wait for its threads
        # without releasing the GIL, which they may need to end.
        gc.collect()
        torch.distributed.destroy_process_group()
