"""The training loop; a resumed run ends in the same bits as one that was not interrupted."""

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lipcert.data.batches import Batches
from lipcert.errors import TrainingError
from lipcert.files import BEST, LAST
from lipcert.models.network import Network
from lipcert.models.storage import save
from lipcert.runs.checkpoint import Checkpoint, Position, last_good, restore, write_checkpoint
from lipcert.runs.config import Interval, TrainConfig
from lipcert.runs.metrics import MetricsLog, OnMetrics, import_tensorboard
from lipcert.runs.naming import find_run
from lipcert.runs.summary import RunSummary
from lipcert.training.average import WeightAverage
from lipcert.training.budget import PROBE_SHARE, RESERVE, fitting_steps, measure
from lipcert.training.devices import on_rank_zero, sum_over_processes
from lipcert.training.evaluation import (
    AVERAGED,
    RAW,
    SELECTED_BY,
    better,
    held_out_accuracy,
    highest_score,
    is_as_good,
    selection_score,
)
from lipcert.training.final import Finished, certify_models, report_results
from lipcert.training.interruption import Interrupted, Interruption
from lipcert.training.optimizer import learning_rate_of, make_optimizer
from lipcert.training.parts import Split, augmentation, build_model, load_split, make_loss, seed_everything
from lipcert.training.progress import Progress
from lipcert.training.schedule import learning_rate
from lipcert.training.start import begin_with, refuse_other_split

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DIVERGED = 1e4
"""A loss beyond which training does not recover: such margins need large biases, and steps grow."""


class Trainer:
    """One process of a run; `train` makes it and calls `run` and `finish`.

    The images are those that `config` names, unless a split is given.
    """

    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        fabric: "Fabric",
        progress: Progress,
        interruption: Interruption,
        checkpoint: Checkpoint | None = None,
        split: Split | None = None,
        on_metrics: OnMetrics | None = None,
    ) -> None:
        self.config, self.out, self.fabric = config, out, fabric
        self.progress, self.interruption, self.on_metrics = progress, interruption, on_metrics
        self.interval = Interval.parse(config.checkpoint_every)
        if config.tensorboard:
            import_tensorboard()  # or fail before there is a folder
        seed_everything(config.seed)
        split = load_split(config) if split is None else split
        self.images, self.held_out = split.images.to(fabric.device), split.held_out.to(fabric.device)
        self.model = build_model(config, split.images)
        self.started_from: dict[str, Any] | None = None
        if config.start_from is not None and checkpoint is None:
            start = find_run(config.start_from)
            refuse_other_split(start, config, split)
            self.started_from = begin_with(self.model, start, config.start_from)
            head = "its own" if self.started_from["head"] == "taken" else "a new, random"
            progress.say(f"starts from {config.start_from}, with {head} head")
        self.optimizer = make_optimizer(self.model, config, fabric.device)
        self.average = WeightAverage(self.model, config.ema, fabric.device) if config.ema else None
        averaged = self.averaged = None if self.average is None else self.average.model
        self.forward, self.update = fabric.setup(self.model, self.optimizer)
        self.criterion = make_loss(config)
        self.augment = augmentation(config, split.images, config.epochs)
        self.steps_per_epoch = len(self.batches(0))
        # Reading the loss waits for a GPU, and agreeing on it for all processes: do it now and then.
        self.sync_every = 1 if fabric.world_size == 1 and fabric.device.type == "cpu" else 10
        self.unread_loss = torch.zeros((), device=fabric.device)
        if checkpoint is None:
            total = config.epochs * self.steps_per_epoch
            self.position = Position(0, total, 0.0, config.to_dict(), split.fingerprint)
        else:
            if checkpoint.position.data != split.fingerprint:
                raise TrainingError(
                    f"resume: the images of {config.data} are not those this run began with; put them back, "
                    "or start a new run in another folder"
                )
            restore(checkpoint, self.model, self.optimizer, average=averaged)
            self.position = replace(checkpoint.position, config=config.to_dict())
        self._fit_augmentation()
        self.read_step = self.position.step
        self.is_new = checkpoint is None
        self.log: MetricsLog | None = None
        self.certified: Finished | None = None

    def batches(self, epoch: int, start_step: int = 0) -> Batches:
        """The part of this process in the batches of one epoch; a last one that is not full is left out."""
        return Batches(
            self.images,
            self.config.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            shuffle=True,
            drop_last=True,
            augment=self.augment,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            start_step=start_step,
        )

    def _fit_augmentation(self) -> None:
        """Crops may depend on the number of epochs, which a time budget decides."""
        epochs = self.position.total_steps / self.steps_per_epoch
        self.augment = augmentation(self.config, self.images, epochs)

    def run(self) -> None:
        """Do the remaining steps."""
        on_rank_zero(self.fabric, self._open_log)
        if self.is_new and self.config.minutes is not None:
            self._fit_to_budget(self.config.minutes * 60)
            self._fit_augmentation()
        step, total = self.position.step, self.position.total_steps
        self.progress.begin(
            step=step,
            total_steps=total,
            steps_per_epoch=self.steps_per_epoch,
            batch_size=self.config.batch_size,
        )
        if step == total:
            self.progress.say(f"all {total} steps are done")
        self.started = self.saved = time.monotonic()
        self.elapsed_before = self.position.elapsed
        while step < total:
            epoch, start = divmod(step, self.steps_per_epoch)
            self.model.train()
            for images, labels, _ in self.batches(epoch, start):
                self.take_step(images, labels, step)
                step += 1
                at_end = step == total or step % self.steps_per_epoch == 0
                if at_end or step % self.sync_every == 0 or self._is_saved_at(step):
                    self._synchronise(step)
                if step == total:
                    break

        asked = torch.tensor([float(self.interruption.requested)], device=self.fabric.device)
        if sum_over_processes(self.fabric, asked)[0]:
            raise Interrupted(f"interrupted; all steps are done, {how_to_resume(self.out)}")

    def _open_log(self) -> None:
        self.log = MetricsLog(
            self.out,
            after_step=self.position.step,
            tensorboard=self.config.tensorboard,
            on_metrics=self.on_metrics,
        )

    def _write_log(self, record: dict[str, Any]) -> None:
        assert self.log is not None, "only the first process writes"
        self.log.write(record)

    def take_step(self, images: Tensor, labels: Tensor, step: int) -> None:
        """One step of gradient descent on a batch, `step` steps after the first."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(
                self.config.schedule,
                step,
                self.position.total_steps,
                lr=group["initial_lr"],
                warmup=self.config.warmup,
            )
        self.update.zero_grad(set_to_none=True)
        progress = step / self.position.total_steps
        loss: Tensor = self.criterion(self.model, self.forward(images), labels, progress)
        self.fabric.backward(loss)
        self.update.step()
        if self.average is not None:
            self.average.update(self.model, step + 1)
        self.unread_loss += loss.detach()

    def _synchronise(self, step: int) -> None:
        """Share loss and flags among all processes; then evaluate, save or stop if that is due."""
        is_due = self.interval.seconds is not None and time.monotonic() - self.saved >= self.interval.seconds
        flags = torch.tensor([float(self.interruption.requested), float(is_due)], device=self.fabric.device)
        told = torch.cat([self.unread_loss[None], flags])
        loss_sum, stops, dues = sum_over_processes(self.fabric, told)
        loss_sum /= self.fabric.world_size
        steps = step - self.read_step
        self.unread_loss.zero_()
        self.read_step = step
        if not loss_sum / steps < DIVERGED:  # or not a number
            raise TrainingError(
                f"step {step}: the loss is {loss_sum / steps}{last_good(self.out)}; try a smaller lr (it is "
                f"{self.config.lr:g}), a schedule with a warmup or precision fp32 (it is "
                f"{self.config.precision})"
            )
        past, count = self.position.losses
        elapsed = self.elapsed_before + time.monotonic() - self.started
        self.position = replace(
            self.position, step=step, elapsed=elapsed, losses=(past + loss_sum, count + steps)
        )
        self.progress.advance(step=step, loss=loss_sum / steps)
        if self._is_evaluated_at(step):
            self._evaluate()
        stopping = stops > 0 and step < self.position.total_steps
        if dues > 0 or stopping or self._is_saved_at(step):
            self.save_checkpoint()
        if stopping:
            total = self.position.total_steps
            raise Interrupted(f"interrupted; step {step} of {total} is saved, {how_to_resume(self.out)}")

    def _is_saved_at(self, step: int) -> bool:
        return step == self.position.total_steps or (
            self.interval.steps is not None and step % self.interval.steps == 0
        )

    def _is_evaluated_at(self, step: int) -> bool:
        return (
            step == self.position.total_steps or step % (self.steps_per_epoch * self.config.eval_every) == 0
        )

    def _evaluate(self) -> None:
        """Measure the held-out images, keep the best model, write a record; always before a checkpoint."""
        found = self._measure_held_out()
        chosen = better(found)
        step, epoch = self.position.step, self.position.step / self.steps_per_epoch
        best = self.position.best
        is_best = is_as_good(found[chosen], best)
        total, count = self.position.losses
        record: dict[str, Any] = {
            "kind": "epoch",
            "step": step,
            "epoch": epoch,
            "loss": total / count,
            "lr": learning_rate_of(self.optimizer),
            "images_per_second": self._speed(),
            "elapsed": self.position.elapsed,
            "held_out": found[RAW],
            "best": is_best,
        }
        if AVERAGED in found:
            record |= {"held_out_average": found[AVERAGED], "better": chosen}
        if is_best:
            on_rank_zero(self.fabric, lambda: save(self._models()[chosen], self.out / BEST))
            highest = max(selection_score(found[chosen]), 0 if best is None else highest_score(best))
            best = {"step": step, "epoch": epoch, "weights": chosen, "selected_by": SELECTED_BY}
            best |= {"highest_score": highest} | found[chosen]
        on_rank_zero(self.fabric, lambda: self._write_log(record))
        self.position = replace(self.position, best=best, losses=(0.0, 0), latest=record)
        self.progress.evaluated(
            epoch=epoch,
            loss=total / count,
            standard=found[chosen]["standard"],
            certified=found[chosen]["certified"]["36/255"],
        )

    def _models(self) -> dict[str, Network]:
        """The model, and that with averaged weights if the run keeps one."""
        return {RAW: self.model} | ({} if self.averaged is None else {AVERAGED: self.averaged})

    def _measure_held_out(self) -> dict[str, dict[str, Any]]:
        """Accuracies of each model on the held-out images."""
        if self.average is not None:
            self.average.update_buffers(self.model)
        return {
            name: held_out_accuracy(model, self.held_out, self.config.batch_size, self.fabric)
            for name, model in self._models().items()
        }

    def _speed(self) -> float:
        """Training images per second of the whole run so far, evaluations included."""
        return self.position.step * self.config.batch_size / max(self.position.elapsed, 1e-9)

    def save_checkpoint(self) -> None:
        """Write the state of the run; the last good one stays if that fails."""
        state = (self.out, self.model, self.optimizer, self.position)
        on_rank_zero(self.fabric, lambda: write_checkpoint(*state, average=self.averaged))
        self.saved = time.monotonic()

    def _fit_to_budget(self, seconds: float) -> None:
        """Measure the time of a step, fix the number of steps, and save it before the first step."""
        start = time.monotonic()
        images, labels, _ = next(iter(self.batches(0)))

        def step() -> None:
            self.take_step(images, labels, 0)
            self.unread_loss.item()

        self.model.train()
        share, agree = PROBE_SHARE * seconds, self.fabric.broadcast
        times = measure(self.model, self.optimizer, step, self._measure_held_out, share, agree)
        if self.average is not None:
            self.average.reset(self.model)
        self.unread_loss.zero_()
        spent = time.monotonic() - start
        left = (1 - RESERVE) * seconds - spent
        total = fitting_steps(left, *times, self.steps_per_epoch * self.config.eval_every)
        total = self.fabric.broadcast(total)
        self.position = replace(self.position, total_steps=total, elapsed=spent)
        self.save_checkpoint()
        self.progress.say(
            f"{seconds / 60:g} minutes: {total} steps ({total / self.steps_per_epoch:.2f} epochs) at "
            f"{times[0]:.3f} s each"
        )

    def finish(self) -> RunSummary:
        """Save the last model, read the test set for the first time, write certificates and summary."""
        latest, best = self.position.latest, self.position.best
        assert latest is not None
        assert best is not None
        test: dict[str, dict[str, Any]] = {}

        def certify_on_test_images() -> None:
            save(self.model, self.out / LAST)
            models = {"last": (LAST, latest["step"]), "best": (BEST, best["step"])}
            same = best["step"] == latest["step"] and best.get("weights", RAW) == RAW
            if same:
                del models["last"]
            found, self.certified = certify_models(
                self.config, self.out, models, self.steps_per_epoch, self.fabric.device, self.progress.say
            )
            test.update(last=found["best" if same else "last"], best=found["best"])

        on_rank_zero(self.fabric, certify_on_test_images)
        summary = RunSummary(
            out=str(self.out),
            steps=self.position.step,
            epochs=self.position.step / self.steps_per_epoch,
            elapsed=self.position.elapsed,
            images_per_second=self._speed(),
            loss=latest["loss"],
            held_out=latest["held_out"],
            best=best,
            test=self.fabric.broadcast(test),
        )
        on_rank_zero(self.fabric, lambda: report_results(summary, self.out, self.log, self.progress.say))
        return summary


def how_to_resume(out: Path) -> str:
    """The command that goes on with the run in `out`, for a message."""
    return f"go on with: lipcert train --out {shlex.quote(str(out))} --resume"
