"""Certificate regularisation: cross entropy minus a share of what is certified."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.errors import ArgumentError
from lipcert.nn.heads import find_head
from lipcert.nn.normalize import Normalize


class CertificateLoss(nn.Module):
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

    Shape:
        model: any network that ends in a head, also inside DDP, fabric or torch.compile; logits (N, K);
        labels (N,). Returns a scalar in float32 or better, whatever precision the logits came in.

    >>> from lipcert.nn.heads import ConstantHead
    >>> model = nn.Sequential(ConstantHead(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), None))
    >>> loss = CertificateLoss(gamma=0.5)(model, torch.tensor([[2.0, -8.0]]), torch.tensor([0]))
    >>> round(loss.item(), 4)
    -1.0

    Paper: section "Certificate Regularization".
    """

    def __init__(self, gamma: float, *, offset: float = 0.0) -> None:
        super().__init__()
        for name, value in (("gamma", gamma), ("offset", offset)):
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ArgumentError(f"{name}: expected a finite number of at least 0, got {value!r}")
        self.gamma, self.offset = float(gamma), float(offset)

    def forward(self, model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, from the logits that `model` returned for it."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        shifted = logits - self.offset * F.one_hot(labels, logits.shape[1]) if self.offset else logits
        loss = F.cross_entropy(shifted, labels)
        if not self.gamma:
            return loss
        certificate = find_head(model).certificate(logits, labels)
        radius = F.relu(certificate.masked_fill(certificate.isinf(), 0)).mean()
        for layer in model.modules():
            if isinstance(layer, Normalize):
                radius = radius * layer.std.min()
        return loss - self.gamma * radius

    def extra_repr(self) -> str:
        """The arguments."""
        return f"gamma={self.gamma:g}" + (f", offset={self.offset:g}" if self.offset else "")
