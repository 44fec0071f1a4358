"""Progress of a run: a bar on a terminal, plain lines elsewhere, or nothing."""

import sys
import time
from collections import deque
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar


class Progress:
    """What the training loop calls; the methods here do nothing. Calls must be cheap and may not raise."""

    def begin(self, *, step: int, total_steps: int, steps_per_epoch: int, batch_size: int) -> None:
        """The run starts, or goes on, at `step`."""

    def advance(self, *, step: int, loss: float) -> None:
        """`step` steps are done; the loss is the mean of the latest ones."""

    def evaluated(self, *, epoch: float, loss: float, standard: float, certified: float) -> None:
        """The mean loss since the last time; of held-out images standard and certified accuracy at 36/255 (an
        estimate).
        """

    def say(self, message: str) -> None:
        """Print a message."""

    def end(self) -> None:
        """The run has ended, also after an error."""


class Pace:
    """Steps per second over the last ten minutes or so.

    A pause, or other load on the machine, affects it for no longer than that.
    """

    def __init__(self, step: int) -> None:
        self.marks = deque([(time.monotonic(), step)], maxlen=41)

    def at(self, step: int) -> float:
        """The pace when `step` steps are done; call it after every step."""
        now = time.monotonic()
        then, past_step = self.marks[0]
        if now - self.marks[-1][0] >= 15:
            self.marks.append((now, step))
        return max(step - past_step, 1) / max(now - then, 1e-9)


class Silent(Progress):
    """Prints nothing."""


class PlainLines(Progress):
    """One line per evaluation, and one every `interval` seconds between them: for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, *, interval: float = 15.0) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.interval = interval
        self.total_steps = self.steps_per_epoch = self.batch_size = 1
        self.pace = Pace(0)
        self.last_line = time.monotonic()

    def begin(self, *, step: int, total_steps: int, steps_per_epoch: int, batch_size: int) -> None:
        """Remember the size of the run."""
        self.total_steps, self.steps_per_epoch, self.batch_size = total_steps, steps_per_epoch, batch_size
        self.pace = Pace(step)
        self.last_line = time.monotonic()

    def advance(self, *, step: int, loss: float) -> None:
        """Print a line if the last one is old enough."""
        pace, now = self.pace.at(step), time.monotonic()
        if now - self.last_line < self.interval:
            return
        self.last_line = now
        self.say(
            f"step {step}/{self.total_steps}  epoch {step / self.steps_per_epoch:.2f}  loss {loss:.4f}  "
            f"{pace * self.batch_size:.0f} images/s  {clock((self.total_steps - step) / pace)} left"
        )

    def evaluated(self, *, epoch: float, loss: float, standard: float, certified: float) -> None:
        """Print a line."""
        self.say(
            f"epoch {epoch:g}  loss {loss:.4f}  held-out {standard:.2%}, certified at 36/255 {certified:.2%} "
            "(estimate)"
        )

    def say(self, message: str) -> None:
        """Print a line, at once also into a pipe."""
        print(message, file=self.stream, flush=True)


class RichBar(Progress):
    """A bar with loss, held-out accuracies, images per second and the time left."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.bar = Bar(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(
                "loss {task.fields[loss]}  held-out {task.fields[held_out]}  {task.fields[speed]} images/s"
            ),
            TextColumn("{task.fields[left]} left"),
            console=self.console,
        )
        self.task: TaskID | None = None
        self.total_steps = self.steps_per_epoch = self.batch_size = 1
        self.pace = Pace(0)

    def begin(self, *, step: int, total_steps: int, steps_per_epoch: int, batch_size: int) -> None:
        """Show the bar."""
        self.total_steps, self.steps_per_epoch, self.batch_size = total_steps, steps_per_epoch, batch_size
        self.pace = Pace(step)
        self.task = self.bar.add_task(
            "train", total=total_steps, completed=step, epoch="0", loss="-", held_out="-", speed="-", left="-"
        )
        self.bar.start()

    def advance(self, *, step: int, loss: float) -> None:
        """Move the bar."""
        if self.task is not None:
            pace = self.pace.at(step)
            self.bar.update(
                self.task,
                completed=step,
                epoch=f"{step / self.steps_per_epoch:.1f}",
                loss=f"{loss:.3f}",
                speed=f"{pace * self.batch_size:.0f}",
                left=clock((self.total_steps - step) / pace),
            )

    def evaluated(self, *, epoch: float, loss: float, standard: float, certified: float) -> None:
        """Show the new accuracies."""
        if self.task is not None:
            self.bar.update(self.task, held_out=f"{standard:.1%}, certified {certified:.1%}")

    def say(self, message: str) -> None:
        """Print above the bar."""
        self.bar.console.print(message, markup=False, highlight=False)

    def end(self) -> None:
        """Leave the bar as it is and give the terminal back."""
        self.bar.stop()


def clock(seconds: float) -> str:
    """A duration as people write it.

    >>> clock(59.6), clock(3661)
    ('1:00', '1:01:01')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def for_terminal(stream: TextIO | None = None) -> Progress:
    """The bar if `stream` (standard output) is a terminal, plain lines if it is not."""
    stream = sys.stdout if stream is None else stream
    return RichBar(Console(file=stream)) if stream.isatty() else PlainLines(stream)
