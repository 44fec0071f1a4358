"""A step of gradient descent on a convex potential of a convolution."""

import torch.nn.functional as F
from torch import Tensor

from lipcert.kernels.channels import with_channels


def gradient_step(x: Tensor, kernel: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    """The step x - V^T relu(V x + b) on maps (N, in, H, W), V zero-padded by a kernel (hidden, c, k, k).

    Zeros are added to fewer than c channels, and the first `outputs` channels of the result are kept; what
    would meet zeros or be dropped is not computed.

    >>> import torch
    >>> gradient_step(torch.tensor([[[[-1.0]], [[3.0]]]]), torch.eye(2).view(2, 2, 1, 1), None, 2).flatten()
    tensor([-1.,  0.])
    """
    padding = kernel.shape[-1] // 2
    hidden = F.relu(F.conv2d(x, kernel[:, : x.shape[1]], bias, padding=padding))
    back = F.conv_transpose2d(hidden, kernel[:, :outputs], padding=padding)
    return with_channels(x, outputs) - back
