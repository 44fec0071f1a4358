"""Learning-rate schedules: pure functions of the step, so that resuming needs nothing but the step."""

import math


def learning_rate(schedule: str, step: int, total_steps: int, *, lr: float, warmup: float = 0.1) -> float:
    """Learning rate of step `step` (0, ..., total_steps - 1); `schedule` is one that `TrainConfig` takes.

    With t = step / total_steps and w = `warmup`:

    - "step", the paper's: lr, then lr / 10 from t = 1/2, then lr / 100 from t = 3/4.
    - "onecycle": a line from lr / (w T) up to lr over the first w T steps, then a line to zero.
    - "cosine": the same rise, then lr (1 + cos(pi s)) / 2 with s the fraction of the fall that is behind.

    The fall ends at zero one step after the last, so the last step still learns.

    >>> [round(learning_rate("step", k, 8, lr=0.1), 4) for k in range(8)]
    [0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    >>> [round(learning_rate("onecycle", k, 8, lr=1.0, warmup=0.25), 3) for k in range(8)]
    [0.5, 1.0, 1.0, 0.833, 0.667, 0.5, 0.333, 0.167]
    """
    if schedule == "step":
        # Integers, so that the drops fall on the exact step for every total.
        return lr * 0.1 ** ((2 * step >= total_steps) + (4 * step >= 3 * total_steps))
    rise = round(warmup * total_steps)
    if step < rise:
        return lr * (step + 1) / rise
    fall = (step - rise) / (total_steps - rise)
    return lr * (1 - fall) if schedule == "onecycle" else lr * 0.5 * (1 + math.cos(math.pi * fall))
