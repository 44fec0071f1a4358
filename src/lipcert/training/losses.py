"""Losses: cross entropy with a margin, and three ways to ask for radii beyond it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.errors import ArgumentError
from lipcert.nn.heads import find_head
from lipcert.nn.normalize import Normalize


class MarginLoss(nn.Module):
    """What all losses share: an offset on the true logit, and a temperature.

    Args:
        offset: subtracted from the true class's logit, which asks for a margin of that size.
        temperature: divides the logits, and multiplies the loss. Below 1 only images near the margin matter.

    Shape:
        model: any network that ends in a head, also inside DDP, fabric or torch.compile; logits (N, K);
        labels (N,); progress: share of the training that is behind. Returns a scalar in float32 or better,
        whatever precision the logits came in.
    """

    def __init__(self, *, offset: float = 0.0, temperature: float = 1.0) -> None:
        super().__init__()
        check_number("offset", offset)
        check_number("temperature", temperature, above=True)
        self.offset, self.temperature = float(offset), float(temperature)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(N,): -log p of the true class, p the softmax of the shifted logits over the temperature."""
        if self.offset:
            logits = logits - self.offset * F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        if self.temperature != 1:
            logits = logits / self.temperature
        return F.cross_entropy(logits, labels, reduction="none")

    def forward(self, model: nn.Module, logits: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:
        """The loss of a batch, from the logits that `model` returned for it."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return self.of_single(model, logits, labels, progress)

    def of_single(self, model: nn.Module, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """The same on logits in at least single precision."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The arguments."""
        names = ("gamma", "beta", "epsilon", "offset", "temperature")
        shown = {name: getattr(self, name, None) for name in names}
        usual = {"offset": 0.0, "temperature": 1.0}
        return ", ".join(f"{n}={v:g}" for n, v in shown.items() if v is not None and v != usual.get(n))


class CertificateLoss(MarginLoss):
    r"""Cross entropy - gamma * relu(certificate of the true label), averaged over the batch.

    .. math:: \ell(f(x), y) - \gamma\,\mathrm{relu}\Big(s \min_{i \ne y} \frac{f_y - f_i}{\|W_y - W_i\|}\Big)

    For orthonormal rows every distance is sqrt(2) and this is the paper's M_f / sqrt(2). The certificate is
    the radius that `certify` states, in pixels, as far as the body is 1-Lipschitz: s is the smallest std of
    the model's `Normalize`, and 1 without one. The paper leaves open on which side of the normalisation it
    means; in pixels gamma = 0.5 has the effect that its tables show, on the normalised scale four times as
    much. Misclassified images have certificate 0 after the relu and feel the cross entropy alone. Infinite
    certificates (one class, rows that coincide) cannot grow and count as 0.

    Args:
        gamma: weight of the certificate, at least 0; 0 is plain cross entropy.
        offset: subtracted from the true class's logit inside the cross entropy, which asks for a margin.
        temperature: divides the logits inside the cross entropy, and multiplies it.

    Shape:
        See `MarginLoss`.

    >>> from lipcert.nn.heads import ConstantHead
    >>> model = nn.Sequential(ConstantHead(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), None))
    >>> loss = CertificateLoss(gamma=0.5)(model, torch.tensor([[2.0, -8.0]]), torch.tensor([0]))
    >>> round(loss.item(), 4)
    -1.0

    Paper: section "Certificate Regularization".
    """

    def __init__(self, gamma: float, *, offset: float = 0.0, temperature: float = 1.0) -> None:
        super().__init__(offset=offset, temperature=temperature)
        check_number("gamma", gamma)
        self.gamma = float(gamma)

    def of_single(self, model: nn.Module, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Cross entropy less the certificates."""
        loss = self.temperature * self.cross_entropy(logits, labels).mean()
        if not self.gamma:
            return loss
        certificate = find_head(model).certificate(logits, labels)
        radius = F.relu(certificate.masked_fill(certificate.isinf(), 0)).mean()
        scale = pixels_per_feature(model)
        return loss - self.gamma * (radius if scale is None else radius * scale)


class AnnealingLoss(MarginLoss):
    r"""Logit annealing: -T (1 - p)^beta log p, which lets go of images that are certain already.

    Args:
        beta: how fast, at least 0; 0 is the cross entropy with offset and temperature.
        offset: subtracted from the true class's logit.
        temperature: divides the logits.

    Shape:
        See `MarginLoss`.

    >>> loss = AnnealingLoss(2.0)(nn.Identity(), torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    >>> round(loss.item(), 4)  # (1/2)^2 log 2
    0.1733

    Reference: B.-H. Lai et al., Enhancing certified robustness via block reflector orthogonal layers and
    logit annealing loss, ICML 2025.
    """

    def __init__(self, beta: float = 5.0, *, offset: float = 0.0, temperature: float = 1.0) -> None:
        super().__init__(offset=offset, temperature=temperature)
        check_number("beta", beta)
        self.beta = float(beta)

    def of_single(self, model: nn.Module, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """The annealed cross entropy."""
        entropy = self.cross_entropy(logits, labels)
        # 1 - p by expm1: the difference would cancel where p is nearly 1, and its power has no slope at 0.
        rest = -torch.expm1(-entropy)
        return self.temperature * (rest.clamp_min(torch.finfo(rest.dtype).tiny) ** self.beta * entropy).mean()


class EMMALoss(MarginLoss):
    r"""Efficient margin maximisation: every rival's logit is raised by what it could gain within a radius.

    .. math:: f_i + \min(\max(c_i, 0), \epsilon_t)\,\|W_y - W_i\|, \qquad c_i = (f_y - f_i) / \|W_y - W_i\|,

    then cross entropy. So each rival is asked for its own certificate, up to :math:`\epsilon_t`, which rises
    in a line from a tenth of `epsilon` to all of it. The c_i carry no gradient.

    Args:
        epsilon: radius that is asked for at the end, in pixels.
        offset: subtracted from the true class's logit.
        temperature: divides the logits.

    Shape:
        See `MarginLoss`.

    Reference: K. Hu et al., Unlocking deterministic robustness certification on ImageNet, NeurIPS 2023.
    """

    def __init__(self, epsilon: float, *, offset: float = 0.0, temperature: float = 1.0) -> None:
        super().__init__(offset=offset, temperature=temperature)
        check_number("epsilon", epsilon)
        self.epsilon = float(epsilon)

    def of_single(self, model: nn.Module, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Cross entropy of the raised logits."""
        distances = find_head(model).pair_distances()[labels].to(logits)
        radius = (0.1 + 0.9 * progress) * self.epsilon
        scale = pixels_per_feature(model)
        most = distances.detach() * radius if scale is None else distances.detach() * (radius / scale)
        gaps = (logits.gather(1, labels[:, None]) - logits).detach()
        share = torch.minimum(gaps.clamp_min(0), most) / distances.detach().clamp_min(1e-30)
        return self.temperature * self.cross_entropy(logits + share * distances, labels).mean()


def pixels_per_feature(model: nn.Module) -> Tensor | None:
    """Pixels that one unit in front of a 1-Lipschitz body stands for: the smallest std; None if it is 1."""
    scale = None
    for layer in model.modules():
        if isinstance(layer, Normalize):
            scale = layer.std.min() if scale is None else scale * layer.std.min()
    return scale


def check_number(name: str, value: object, *, above: bool = False) -> None:
    """Refuse all but finite numbers of at least 0, or above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf or (above and not value):  # type: ignore[operator]
        least = "above 0" if above else "of at least 0"
        raise ArgumentError(f"{name}: expected a finite number {least}, got {value!r}")
