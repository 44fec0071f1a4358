"""Estimates of how large a zero-padded convolution is, by which layers scale their kernels. None of them
enters a certificate.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.kernels.skew_norms import start_vector, unit

LANCZOS_STEPS = 100


def converged_vector(kernel: Tensor, height: int, width: int) -> Tensor:
    """Right singular vector (1, in, H, W) of the largest singular value, by Lanczos from a fixed start."""
    kernel, shape = at_least_single(kernel.detach()), (1, kernel.shape[1], height, width)
    with without_autocast(kernel):
        basis, diagonal, beside = [start_vector(kernel, *shape).flatten()], [], []
        for _ in range(min(LANCZOS_STEPS, len(basis[0]))):
            image = _transposed(_convolve(basis[-1].view(shape), kernel), kernel).flatten()
            diagonal.append(basis[-1] @ image)
            known = torch.stack(basis)
            vector, length = unit(_without(_without(image, known), known))
            beside.append(length)
            # Once more: of what is left after all that is there was found, rounding is the larger part.
            basis.append(unit(_without(vector, known))[0])
        count = len(diagonal)
        tridiagonal = torch.stack(diagonal).diag()
        for step, length in enumerate(beside[: count - 1]):
            tridiagonal[step, step + 1] = tridiagonal[step + 1, step] = length
        largest = torch.linalg.eigh(tridiagonal).eigenvectors[:, -1]
        return unit(largest @ torch.stack(basis[:count]))[0].view(shape)


def convolution_norm(kernel: Tensor, vector: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Largest singular value, from below, by power iterations from a right vector (1, in, H, W).

    Returns the value, in at least single precision, and the vector to go on from. The derivative of a
    singular value s = <u, K v> is the derivative of that product at fixed u and v.

    Args:
        kernel: (out, in, k, k), k odd.
        vector: where to begin.
        iterations: products with K and with its transpose; at least one.
    """
    with without_autocast(kernel):
        kernel = at_least_single(kernel)
        with torch.no_grad():
            right = vector.to(kernel)
            for _ in range(iterations):
                left, _ = unit(_convolve(right, kernel))
                right, _ = unit(_transposed(left, kernel))
        return (left * _convolve(right, kernel)).sum(), right


def _without(vector: Tensor, basis: Tensor) -> Tensor:
    """The part that is orthogonal to the rows of an orthonormal basis."""
    return vector - basis.T @ (basis @ vector)


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(x, kernel, padding=kernel.shape[-1] // 2)


def _transposed(y: Tensor, kernel: Tensor) -> Tensor:
    return F.conv_transpose2d(y, kernel, padding=kernel.shape[-1] // 2)
