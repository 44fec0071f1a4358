"""How many steps fit into a time budget, from a few timed steps that are undone afterwards."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from lipcert.nn.carried import complete_state

PROBE_SHARE = 0.03
"""Share of the budget that the measurement may take."""

RESERVE = 0.02
"""Share of the budget kept back for checkpoints and for what the measurement missed."""

WARM_STEPS, MIN_STEPS, MAX_STEPS = 2, 3, 50


def fitting_steps(
    seconds: float, step_seconds: float, evaluation_seconds: float, steps_between_evaluations: int
) -> int:
    """Number of steps whose time, with that of the evaluations among them and one at the end, is `seconds`.

    >>> fitting_steps(100.0, 0.125, 4.0, 32)
    384
    """
    left = seconds - evaluation_seconds
    return max(1, int(left / (step_seconds + evaluation_seconds / steps_between_evaluations)))


def measure(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[], None],
    evaluate: Callable[[], object],
    seconds: float,
    agree: Callable[[int], int],
) -> tuple[float, float]:
    """Seconds of one training step (median) and of one evaluation, leaving model and generator as they were.

    Args:
        model: put back to its state after the measurement, buffers included.
        optimizer: has not stepped yet; its state is emptied again.
        step: does one training step and waits until it is done.
        evaluate: does one evaluation and waits until it is done.
        seconds: how long the steps may take.
        agree: makes every process do the first one's number of steps, since a step waits for all of them.
    """
    before = {name: value.clone() for name, value in complete_state(model).items()}
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        warm = [_timed(step) for _ in range(WARM_STEPS)]
        count = agree(min(MAX_STEPS, max(MIN_STEPS, int(seconds / warm[-1]))))
        times = [_timed(step) for _ in range(count)]
        evaluation = _timed(evaluate)
    model.load_state_dict(before)
    optimizer.zero_grad(set_to_none=True)
    optimizer.state.clear()
    return statistics.median(times), evaluation


def _timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start
