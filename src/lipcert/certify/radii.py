"""Certificates: model and images to predictions and the radii within which they cannot change."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lipcert.certify.curve import shown
from lipcert.certify.exact import ExactNetwork, exact_network
from lipcert.certify.images import as_batch
from lipcert.certify.rounding import body_error, head_error
from lipcert.errors import ArgumentError, NotProvedError, check_positive, choose
from lipcert.nn.heads import ConstantHead
from lipcert.nn.walk import built_for, device_of, find_head, unwrap_unchanged

if TYPE_CHECKING:
    from lipcert.certify.images import Images

PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
MEASURED_IMAGES, MEASURED_FACTOR = 64, 10
PROOFS = {"float64": "proved, rounding included", "float32": "bound proved, rounding measured"}
"""What radii rest on, by precision."""
LARGEST_RADIUS = 1e6
"""Rounding errors grow with the ball, so no radius beyond this is claimed: far beyond any image."""


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
        lipschitz: proved bound, from pixels to the features in front of the head.
        precision: "float64", whose rounding term is proved, or "float32", whose rounding term is measured.
    """

    prediction: Tensor
    radius: Tensor
    runner_up: Tensor
    margin: Tensor
    rounding: Tensor
    lipschitz: float
    precision: str

    @property
    def proved(self) -> bool:
        """Whether every term of the radius is proved; with float32 the rounding term is measured."""
        return self.precision == "float64"

    def __len__(self) -> int:
        return len(self.prediction)

    def __repr__(self) -> str:
        if not len(self):
            return "Certificates(0 images)"
        # median() of torch takes the lower of the two in the middle, as a radius should.
        certified, median = int((self.radius > 0).sum()), shown(float(self.radius.median()))
        proof = "proved" if self.proved else "measured"
        return f"Certificates({len(self)} images, {certified} certified, median radius {median}, {proof})"


def certify(
    model: nn.Module, images: "Images", *, precision: str = "float64", batch_size: int = 256
) -> Certificates:
    r"""Certify the predictions of a model, each with its own radius in l2.

    .. math:: r = \min_{i \ne l} \frac{f_l(x) - f_i(x) - 2 e_{li}}{L\,\|W_l - W_i\|}

    with l the predicted class, L the proved constant from pixels to features, W the rows of the head and e
    the largest rounding error of f_l - f_i anywhere in the ball. The classifier that this is true of is the
    float64 forward of the frozen model: a copy in which the weights are converted to float64 (exactly, also
    from bfloat16 and float16) and only then orthogonalised. Neither training mode, autocast, TF32 nor an
    earlier forward takes part, and the model is left as it is.

    Guarantee: proved for ``precision="float64"``, under the assumptions of docs/certificates.md. With
    ``precision="float32"`` the classifier is the float32 forward, and e is measured: 20 times (ten for
    safety, two logits) the largest difference of a logit to float64 on the first 64 images, and 2e is taken
    off. A tie has radius 0.

    Args:
        model: an `nn.Sequential` of lipcert's layers that ends in a head.
        images: a tensor (N, C, H, W), float32 or float64 pixels in [0, 1]; or a numpy array, a PIL image or a
            list of such, in which uint8 means 0 to 255 and channels may come last (`certify.images`).
        precision: "float64" or "float32".
        batch_size: images that are in memory at once.

    Raises:
        ArgumentError: images of another rank, size, type or range, or with NaN or infinity among the pixels.
        NotProvedError: a module without a proved bound, by path and name; logits that are not finite.

    Paper: Proposition 1.
    """
    check_positive(batch_size=batch_size)
    choose("precision", precision, PRECISIONS)
    model = unwrap_unchanged(model)
    images = as_batch(images, built_for(model))
    check_images(model, images)
    if not isinstance(model, nn.Sequential) or not isinstance(next(reversed(model), None), nn.Linear):
        find_head(model)
    device = device_of(model)
    with torch.no_grad(), full_precision(device):
        network = exact_network(model, tuple(images.shape[1:]), PRECISIONS[precision])
        head = network.head
        assert head is not None  # find_head has seen it
        logits, norms = _forward(network, head, images, device, batch_size)
        if not bool(logits.isfinite().all()):
            raise NotProvedError(
                "model: its logits are not finite, so nothing can be certified; the weights are damaged"
            )
        distances = head.pair_distance_bounds().cpu()
        if precision == "float32":
            slack = _measured_slack(network, images[:MEASURED_IMAGES], logits, device)
        else:
            slack = _proved_slack(network, head, logits, norms, distances)
    return certify_logits(logits, distances, network.lipschitz, slack, precision)


def certify_logits(
    logits: Tensor,
    distances: Tensor,
    lipschitz: float,
    slack: Tensor | None = None,
    precision: str | None = None,
) -> Certificates:
    """Certificates from logits that are known already.

    Args:
        logits: (N, K).
        distances: (K, K), proved bounds on the distances between the rows of the head.
        lipschitz: proved bound on the constant of everything in front of the head.
        slack: (N, K), what is subtracted from the margin of the prediction to each class; None for exact
            logits.
        precision: in which the logits were computed; None is float64 for logits in float64, and for all
            others float32, whose rounding nobody has proved.

    Raises:
        NotProvedError: logits that are not finite, or a bound that is not positive.
    """
    if not bool(logits.isfinite().all()):
        raise NotProvedError(
            "model: its logits are not finite, so nothing can be certified; the weights are damaged"
        )
    if not 0 < lipschitz < math.inf:
        raise NotProvedError(f"lipschitz: expected a positive bound, got {lipschitz}")
    if precision is None:
        precision = "float64" if logits.dtype == torch.float64 else "float32"
    logits, distances = logits.detach().cpu().double(), distances.detach().cpu().double()
    slack = torch.zeros_like(logits) if slack is None else slack
    prediction = logits.argmax(dim=1)
    margins = logits.gather(1, prediction[:, None]) - logits
    if not bool(margins.isfinite().all()):
        raise NotProvedError("model: the differences of its logits overflow; the weights are damaged")
    limits = _limits(margins, slack, distances[prediction], lipschitz).scatter(
        1, prediction[:, None], math.inf
    )
    if bool(limits.isnan().any()) or bool(slack.isnan().any()):
        raise NotProvedError(
            "model: the bound on its rounding error overflows, so nothing can be certified; the weights are "
            "damaged"
        )
    radius, runner_up = limits.min(dim=1)
    margin, rounding = (t.gather(1, runner_up[:, None])[:, 0] for t in (margins, slack))
    if logits.shape[1] == 1:
        runner_up, margin, rounding = (
            torch.full_like(t, v) for t, v in ((runner_up, -1), (margin, math.inf), (rounding, 0))
        )
    else:
        radius = radius.clamp(max=LARGEST_RADIUS)
    return Certificates(prediction, radius.clamp(min=0), runner_up, margin, rounding, lipschitz, precision)


def _limits(margins: Tensor, slack: Tensor, distances: Tensor, lipschitz: float) -> Tensor:
    """(margin - slack) / (distance * L), rounded down; where the distance is 0, infinite with its sign."""
    # The margin's own rounding is relative to the margin. Difference and two quotients: three roundings of
    # half an eps, outweighed by four whole ones; one more step down makes the inequality strict, so that not
    # even a tie is within the radius.
    eps = torch.finfo(torch.float64).eps
    left = margins - eps * margins - slack
    safe = left * (1 - torch.sign(left) * 5 * eps)
    limits = safe / distances.masked_fill(distances == 0, 1) / lipschitz
    limits = torch.where(distances == 0, torch.where(safe > 0, math.inf, -math.inf), limits)
    return limits.nextafter(torch.full_like(limits, -math.inf))


def _forward(
    network: ExactNetwork, head: ConstantHead, images: Tensor, device: torch.device, batch_size: int
) -> tuple[Tensor, list[Tensor]]:
    """Logits (N, K) and the norms (N,) of what enters each layer and the head, in float64 on the CPU."""
    logits = torch.empty(len(images), head.num_classes, dtype=torch.float64, device="cpu")
    norms = [
        torch.empty(len(images), dtype=torch.float64, device="cpu") for _ in range(len(network.layers) + 1)
    ]
    for start in range(0, len(images), batch_size):
        span = slice(start, start + batch_size)
        x = images[span].to(device, head.weight.dtype)
        for norm, proved in zip(norms, network.layers, strict=False):
            norm[span] = _norm(x)
            x = proved.layer(x)
        norms[-1][span] = _norm(x)
        logits[span] = head(x).double().cpu()
    return logits, norms


def _norm(x: Tensor) -> Tensor:
    """(N,): the computed norm, and what entries below 2^-511 contribute, whose squares vanish."""
    flat = x.flatten(1).double()
    norm: Tensor = torch.linalg.vector_norm(flat, dim=1) + math.sqrt(flat.shape[1]) * 2.0**-510
    return norm.cpu()


def _proved_slack(
    network: ExactNetwork, head: ConstantHead, logits: Tensor, norms: list[Tensor], distances: Tensor
) -> Tensor:
    """Twice the rounding error of every logit difference: once at the image, once at a point of the ball."""
    ideal = certify_logits(logits, distances, network.lipschitz)
    layers = [(proved.bound, proved.error) for proved in network.layers]
    error, size = body_error(layers, norms, ideal.radius.clamp(max=LARGEST_RADIUS))
    return 2 * head_error(head, ideal.prediction, error, size, distances)


def _measured_slack(network: ExactNetwork, images: Tensor, logits: Tensor, device: torch.device) -> Tensor:
    """Forty times the largest difference between float32 and float64 logits on some images.

    Ten for safety, two logits, two points.
    """
    if not len(images):
        return torch.zeros_like(logits)
    exact = network.classifier().double()(images.to(device, torch.float64))
    difference = (exact.cpu() - logits[: len(images)]).abs().max()
    return torch.full_like(logits, float(2 * 2 * MEASURED_FACTOR * difference))


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, and no reduced precision inside float32 products (TF32, bfloat16), whatever is set.

    The switches are the process's own: with several threads the first one in sets them, the last one out puts
    them back.
    """
    switches = _precision_switches()
    with _SWITCHES:
        _inside.append([read() for read, _, _ in switches] if not _inside else _inside[0])
        for _, write, plain in switches:
            write(plain)
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        with _SWITCHES:
            before = _inside.pop()
            if not _inside:
                for (_, write, _), value in zip(switches, before, strict=True):
                    write(value)


_SWITCHES = threading.Lock()
_inside: list[list[Any]] = []
"""One entry per `full_precision` that is entered: what was set before the first of them."""


def _precision_switches() -> list[tuple[Callable[[], Any], Callable[[Any], None], Any]]:
    """What decides on float32 products in torch: how to read it, how to set it, its value for plain float32.

    From torch 2.9 on every library has a switch, and torch refuses to mix them with the older ones.
    """

    def attribute(place: object, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        return lambda: getattr(place, name), lambda value: setattr(place, name, value)

    backends: Any = torch.backends
    if hasattr(backends, "fp32_precision"):
        places = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)
        return [(*attribute(place, "fp32_precision"), "ieee") for place in places]
    matmul = (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    return [(*matmul, "highest"), (*attribute(backends.cudnn, "allow_tf32"), False)]


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
    expected = built_for(model)
    if expected is not None and tuple(images.shape[1:]) != tuple(expected):
        raise ArgumentError(
            f"images: expected images of shape {tuple(expected)}, which the model was built for, "
            f"got {tuple(images.shape[1:])}"
        )
    if not bool(images.isfinite().all()):
        raise ArgumentError("images: expected finite pixels, got NaN or infinity")
    if images.numel() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
        raise ArgumentError(
            f"images: expected raw pixels in [0, 1], got {float(images.min()):g} to {float(images.max()):g}; "
            "do not normalise them, the model does"
        )
