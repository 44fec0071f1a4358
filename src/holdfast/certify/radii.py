"""Certificates: model and images to predictions and the radii within which they cannot change."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.certify.bounds import body_upper_bound
from holdfast.errors import ArgumentError, NotProvedError
from holdfast.functional.margins import pair_certificates
from holdfast.nn.walk import device_of, input_shape_of, split_head, unwrap


@dataclass(frozen=True)
class Certificates:
    """What is certified about N images; all tensors are on the CPU, floating point ones in float64.

    Attributes:
        prediction: (N,), the predicted class.
        radius: (N,), in pixel units: no image at an l2 distance of at most this is classified otherwise. 0
            where nothing is certified, infinite for a classifier of one class.
        runner_up: (N,), the class that limits the radius; -1 if there is one class.
        margin: (N,), logit of the prediction minus that of the runner-up.
        lipschitz: proved bound, from pixels to the features in front of the head.
    """

    prediction: Tensor
    radius: Tensor
    runner_up: Tensor
    margin: Tensor
    lipschitz: float

    def __len__(self) -> int:
        return len(self.prediction)


def certify(model: nn.Module, images: Tensor, *, batch_size: int = 256) -> Certificates:
    r"""Certify the predictions of a model, each with its own radius in l2.

    .. math:: r = \min_{i \ne l} \frac{f_l(x) - f_i(x)}{L\,\|W_l - W_i\|}

    with l the predicted class, L the proved constant from pixels to features and W the rows of the head. A
    classifier is its float64 forward in evaluation mode: the model is copied into float64, so that neither
    autocast nor TF32, training mode nor an earlier forward takes part, and is itself left as it is.

    Guarantee: L and the distances are upper bounds, the division rounds down. A tie has radius 0.

    Args:
        model: an `nn.Sequential` of holdfast's layers that ends in a head.
        images: (N, C, H, W), float32 or float64 pixels in [0, 1].
        batch_size: images that are in memory at once.

    Raises:
        ArgumentError: images of another rank, size, type or range, or with NaN or infinity among the pixels.
        NotProvedError: a module without a proved bound, by path and name; logits that are not finite.

    Paper: Proposition 1.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ArgumentError(f"batch_size: expected a positive integer, got {batch_size!r}")
    model = unwrap(model)
    check_images(model, images)
    exact = copy.deepcopy(model).double().eval().requires_grad_(False)
    body, head = split_head(exact)
    device = device_of(exact)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        lipschitz = body_upper_bound(body, tuple(images.shape[1:]))
        logits = torch.empty(len(images), head.num_classes, dtype=torch.float64)
        for start in range(0, len(images), batch_size):
            part = images[start : start + batch_size].to(device, torch.float64)
            logits[start : start + batch_size] = head(body(part))
        distances = head.pair_distance_bounds().cpu()
    return certify_logits(logits, distances, lipschitz)


def certify_logits(logits: Tensor, distances: Tensor, lipschitz: float) -> Certificates:
    """Certificates from logits that are known already.

    Args:
        logits: (N, K).
        distances: (K, K), proved bounds on the distances between the rows of the head.
        lipschitz: proved bound on the constant of everything in front of the head.

    Raises:
        NotProvedError: logits that are not finite, or a bound that is not positive.
    """
    if not bool(logits.isfinite().all()):
        raise NotProvedError(
            "model: its logits are not finite, so nothing can be certified; the weights are damaged"
        )
    if not lipschitz > 0:
        raise NotProvedError(f"lipschitz: expected a positive bound, got {lipschitz}")
    logits, distances = logits.detach().cpu().double(), distances.detach().cpu().double()
    prediction = logits.argmax(dim=1)
    limits, runner_up = pair_certificates(logits, prediction, distances).min(dim=1)
    # Difference, quotient, quotient: three roundings of at most half an eps each, outweighed by two whole
    # ones and by one more for this product itself.
    radius = (limits / lipschitz * (1 - 3 * torch.finfo(torch.float64).eps)).clamp(min=0)
    margin = logits.gather(1, prediction[:, None])[:, 0] - logits.gather(1, runner_up[:, None])[:, 0]
    if logits.shape[1] == 1:
        runner_up, margin = torch.full_like(runner_up, -1), torch.full_like(margin, math.inf)
    return Certificates(prediction, radius, runner_up, margin, lipschitz)


def check_images(model: nn.Module, images: Tensor) -> None:
    """Refuse, with one sentence, whatever is not a batch of images that the model can be certified on."""
    if not isinstance(images, Tensor):
        raise ArgumentError(f"images: expected a torch.Tensor, got {type(images).__name__}")
    if images.dim() != 4:
        hint = "; add the batch axis with images[None]" if images.dim() == 3 else ""
        raise ArgumentError(f"images: expected a batch (N, C, H, W), got shape {tuple(images.shape)}{hint}")
    if images.dtype not in (torch.float32, torch.float64):
        hint = "images.float()" if images.is_floating_point() else "images.float() / 255"
        raise ArgumentError(
            f"images: expected float32 or float64 pixels in [0, 1], got {images.dtype}; use {hint}"
        )
    if hasattr(model, "config"):
        expected = input_shape_of(model)
        if tuple(images.shape[1:]) != expected:
            raise ArgumentError(
                f"images: expected images of shape {expected}, which the model was built for, "
                f"got {tuple(images.shape[1:])}"
            )
    if not bool(images.isfinite().all()):
        raise ArgumentError("images: expected finite pixels, got NaN or infinity")
    if images.numel() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise ArgumentError(
            f"images: expected raw pixels in [0, 1], got {float(images.min()):g} to {float(images.max()):g}; "
            "do not normalise them, the model does"
        )
