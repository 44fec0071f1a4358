"""Devices, precision and processes, all carried by lightning-fabric."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from holdfast.errors import CheckpointError, HoldfastError, TrainingError
from holdfast.training.config import TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISION = {"fp32": "32-true", "bf16-mixed": "bf16-mixed"}


def make_fabric(config: TrainConfig) -> "Fabric":
    """Fabric for the processes of `config`, launched: one per device, on one machine or several.

    With several processes the script is started again for each of them, unless torchrun or SLURM has done so.

    Raises:
        TrainingError: torchrun or SLURM started another number of processes than `config` names.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    processes = config.devices * config.nodes
    _check_world_size(processes)
    if config.threads is not None:
        # The environment too: the processes that Fabric starts would choose their own number otherwise.
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
        torch.set_num_threads(config.threads)
    # Power-iteration buffers follow from the weights, which are equal everywhere: there is nothing to
    # broadcast, and overwriting a buffer between forward and backward would break autograd.
    strategy = DDPStrategy(broadcast_buffers=False) if processes > 1 else "auto"
    try:
        fabric = Fabric(
            accelerator="auto",
            devices=config.devices,
            num_nodes=config.nodes,
            strategy=strategy,
            precision=PRECISION[config.precision],  # type: ignore[arg-type]
        )
        fabric.launch()
    except HoldfastError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(f"devices: cannot start {processes} processes: {reason}") from error
    if fabric.device.type == "cuda":
        # The fastest kernels add in an order that changes from run to run; a resumed run could not be equal.
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    return fabric


def on_rank_zero(fabric: "Fabric", work: Callable[[], None]) -> None:
    """Do `work` in the first process; the others wait, and fail with the same error if it fails."""
    failure: HoldfastError | None = None
    if fabric.global_rank == 0:
        try:
            work()
        except HoldfastError as error:
            failure = error
        except OSError as error:
            failure = CheckpointError(f"cannot write the run: {error}; mend it and go on with --resume")
    message = fabric.broadcast("" if failure is None else str(failure))
    if failure is not None:
        raise failure
    if message:
        raise TrainingError(message)


def sum_over_processes(fabric: "Fabric", values: Tensor) -> list[float]:
    """Entrywise sum of a vector over all processes; waits for all of them."""
    total = fabric.all_reduce(values, reduce_op="sum")
    assert isinstance(total, Tensor)
    return [float(value) for value in total.tolist()]


def _check_world_size(processes: int) -> None:
    for launcher, mark, size in (
        ("torchrun", "TORCHELASTIC_RUN_ID", "WORLD_SIZE"),
        ("SLURM's srun", "SLURM_STEP_ID", "SLURM_NTASKS"),
    ):
        found = os.environ.get(size)
        if mark in os.environ and found is not None and int(found) != processes:
            raise TrainingError(
                f"devices: {launcher} started {found} processes, but devices x nodes is {processes}; "
                "make the two equal"
            )
