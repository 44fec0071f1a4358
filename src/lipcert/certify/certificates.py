"""Certificates: from logits, pair bounds and rounding errors to radii."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipcert.certify.curve import shown
from lipcert.errors import NotProvedError
from lipcert.operators.operator import LARGEST_RADIUS


@dataclass(frozen=True)
class Certificates:
    """What is certified about N images; all tensors are on the CPU, floating point ones in float64.

    Attributes:
        prediction: (N,), the predicted class.
        radius: (N,), in pixel units: no image at an l2 distance of at most this is classified otherwise. 0
            where nothing is certified, infinite for a classifier of one class.
        runner_up: (N,), the class that limits the radius; -1 if there is one class.
        margin: (N,), logit of the prediction minus that of the runner-up.
        rounding: (N,), what was subtracted from that margin for the rounding of the forward pass, at the
            image and anywhere in the ball.
        lipschitz: proved bound, from pixels to the features in front of the last matrix.
        proved: whether every term of the radius is proved; False where a rounding term was measured.
    """

    prediction: Tensor
    radius: Tensor
    runner_up: Tensor
    margin: Tensor
    rounding: Tensor
    lipschitz: float
    proved: bool = True

    def __len__(self) -> int:
        return len(self.prediction)

    def __repr__(self) -> str:
        if not len(self):
            return "Certificates(0 images)"
        # median() of torch takes the lower of the two in the middle, as a radius should.
        certified, median = int((self.radius > 0).sum()), shown(float(self.radius.median()))
        proof = "proved" if self.proved else "measured"
        return f"Certificates({len(self)} images, {certified} certified, median radius {median}, {proof})"


def join(parts: Sequence[Certificates]) -> Certificates:
    """The certificates that one network gave to several sets of images, as one."""
    if len(parts) == 1:
        return parts[0]
    return Certificates(
        torch.cat([part.prediction for part in parts]),
        torch.cat([part.radius for part in parts]),
        torch.cat([part.runner_up for part in parts]),
        torch.cat([part.margin for part in parts]),
        torch.cat([part.rounding for part in parts]),
        parts[0].lipschitz,
        all(part.proved for part in parts),
    )


def certificates_from(
    logits: Tensor, pair_bounds: Tensor, slack: Tensor, lipschitz: float, *, proved: bool = True
) -> Certificates:
    r"""Certificates from logits that are known.

    .. math:: r = \min_{i \ne l} \frac{f_l(x) - f_i(x) - \text{slack}}{D_{li}}

    Args:
        logits: (N, K).
        pair_bounds: (K, K), proved Lipschitz constants of the differences f_i - f_j.
        slack: (N,), what rounding may take from a margin: twice the error of a difference of logits, once at
            the image and once at a point of the ball.
        lipschitz: for the record.
        proved: whether `slack` is.

    Raises:
        NotProvedError: logits, margins or slack that are not numbers.
    """
    logits, pair_bounds, slack = (t.detach().cpu().double() for t in (logits, pair_bounds, slack))
    prediction = logits.argmax(dim=1) if logits.numel() else logits.new_zeros(len(logits), dtype=torch.int64)
    margins = logits.gather(1, prediction[:, None]) - logits
    if not bool(margins.isfinite().all()) or bool(slack.isnan().any()):
        raise NotProvedError(
            "model: its logits, or the bound on their rounding, are not finite, so nothing can be certified; "
            "the weights are damaged"
        )
    limits = _limits(margins, slack[:, None], pair_bounds[prediction])
    radius, runner_up = limits.scatter(1, prediction[:, None], math.inf).min(dim=1)
    margin = margins.gather(1, runner_up[:, None])[:, 0]
    if logits.shape[1] == 1:
        runner_up, margin, slack = (
            torch.full_like(t, v) for t, v in ((runner_up, -1), (margin, math.inf), (slack, 0))
        )
    else:
        radius = radius.clamp(max=LARGEST_RADIUS)
    return Certificates(prediction, radius.clamp(min=0), runner_up, margin, slack, lipschitz, proved)


def _limits(margins: Tensor, slack: Tensor, steepness: Tensor) -> Tensor:
    """(margin - slack) / steepness, rounded down; where the steepness is 0, infinite with its sign."""
    # The margin's own rounding is relative to the margin. Difference and quotient: two roundings of half an
    # eps, outweighed by five whole ones; one more step down makes the inequality strict, so that not even a
    # tie is within the radius.
    eps = torch.finfo(torch.float64).eps
    left = margins - eps * margins - slack
    safe = left * (1 - torch.sign(left) * 5 * eps)
    limits = safe / steepness.masked_fill(steepness == 0, 1)
    limits = torch.where(steepness == 0, torch.where(safe > 0, math.inf, -math.inf), limits)
    return limits.nextafter(torch.full_like(limits, -math.inf))
