"""`train`: one run from its options to its certificates."""

import os
from pathlib import Path

from lipcert.machine import has_bf16
from lipcert.runs.config import TrainConfig
from lipcert.runs.metrics import OnMetrics
from lipcert.runs.summary import RunSummary
from lipcert.training.devices import make_fabric, on_rank_zero, process_group, restored_settings
from lipcert.training.final import Finished
from lipcert.training.interruption import Interrupted, Interruption
from lipcert.training.progress import Progress, Silent
from lipcert.training.run_folder import describe_run, find_start
from lipcert.training.trainer import Trainer, how_to_resume


def train(
    config: TrainConfig,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: Progress | None = None,
    on_metrics: OnMetrics | None = None,
) -> RunSummary:
    """Train a network as `config` says and write everything to the folder `out`.

    Guarantee: the weights depend on `config`, the data and the weights it starts from, if any. A run that
    was killed and resumed ends in the same bits as one that was not, on the same kind of machine with the
    same number of threads. A run with a time budget fixes its number of steps before the first one and keeps
    it when it is resumed.

    Selection uses held-out training images; the test set is read once, after the last step.

    Args:
        config: the options.
        out: folder of the run; made if it is not there.
        resume: go on with the run that `out` holds.
        progress: reports to the user; by default nothing is printed.
        on_metrics: called as `on_metrics(step, numbers)` for each line of metrics.jsonl, in the first process
            alone. `numbers` is flat: {"loss": 0.31, "held_out/standard": 0.97, ...}. What it raises ends the
            run, which can be resumed.

    Raises:
        ArgumentError: `config` asks for what does not exist, or `out` holds a run and `resume` is False.
        CheckpointError: there is nothing to resume, a checkpoint is damaged, or a file cannot be written.
        TrainingError: an option changed since the run began, or the loss is huge or not a number.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint has been written.
    """
    return train_and_certify(config, out, resume=resume, progress=progress, on_metrics=on_metrics)[0]


@restored_settings()
@process_group()
def train_and_certify(
    config: TrainConfig,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: Progress | None = None,
    on_metrics: OnMetrics | None = None,
) -> tuple[RunSummary, Finished | None]:
    """As `train`; the first process also returns the best model, proved, with its certificates."""
    out, progress = Path(out), Silent() if progress is None else progress
    fabric = make_fabric(config)
    if fabric.global_rank:
        progress = Silent()
    elif config.precision == "bf16-mixed" and fabric.device.type == "cpu" and not has_bf16():
        progress.say("this processor has no bf16 instructions: precision fp32 would be several times faster")
    checkpoint = find_start(config, out, resume=resume, fabric=fabric)
    interruption = Interruption()
    try:
        trainer = Trainer(config, out, fabric, progress, interruption, checkpoint, on_metrics=on_metrics)
        # Only now: an option that no model or dataset takes leaves no folder behind.
        on_rank_zero(
            fabric, lambda: describe_run(config, out, checkpoint, trainer.started_from, resume=resume)
        )
        with interruption:
            trainer.run()
            # The state is whole and saved: from here on the first signal acts at once.
            interruption.requested = True
            try:
                return trainer.finish(), trainer.certified
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted; all steps are done, {how_to_resume(out)}") from None
    finally:
        progress.end()
