"""The norm by which a layer divides its kernel, carried from training step to training step."""

import torch
from torch import Tensor

from lipcert.kernels.conv_norms import converged_vector, convolution_norm
from lipcert.nn.carried import CarriesVector

TRAINING_ITERATIONS = 2


class KernelNorm(CarriesVector):
    """Estimated norm of a kernel on zero-padded maps of one size.

    In training a few power iterations from where the last step ended; in evaluation, and at the first step,
    by Lanczos from a fixed start, so that the result is a function of the kernel alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.vector = torch.empty(0)

    def forward(self, kernel: Tensor, height: int, width: int, *, training: bool) -> Tensor:
        """The estimate for maps of height x width, differentiable in the kernel."""
        carried = training and self.vector.shape == (1, kernel.shape[1], height, width)
        start = self.vector if carried else converged_vector(kernel, height, width)
        norm, vector = convolution_norm(kernel, start, TRAINING_ITERATIONS if carried else 1)
        if training:
            self.carry(vector)
        return norm
