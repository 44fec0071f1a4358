"""Estimates of how large a skew convolution is, by which SOC scales its kernel. None of them enters a
certificate.

The derivative of the largest singular value s = <v, A u> is the derivative of that product at fixed u and v.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from lipcert.kernels.functions import OfWeights
from lipcert.kernels.precision import without_autocast
from lipcert.kernels.skew import Pivot, SkewOperator
from lipcert.kernels.taps import kernel_from_taps

CONVERGED_ITERATIONS = 200
TRAINING_ITERATIONS = 4
"""Per training step, from where the last one ended. With one, the estimate of a kernel that moves fast can be
several times too small, p(A) leaves its interval, and a run with few channels or a large lr explodes."""


def start_vector(like: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """A unit vector that is the same in every process and at every call."""
    vector: Tensor = _Drawn.apply(seed, shape)  # type: ignore[no-untyped-call]
    return vector.to(like.device, like.dtype)


class _Drawn(OfWeights):
    """A seeded draw. `torch.vmap` refuses random numbers, but passes by a function that no batch reaches."""

    @staticmethod
    def forward(seed: int, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        vector = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        vector /= torch.linalg.vector_norm(vector)
        return vector

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[int, tuple[int, ...]], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, None]:
        return None, None


@torch.no_grad()
def operator_norm_estimate(
    operator: SkewOperator, vector: Tensor, iterations: int, *, stop_early: bool = True
) -> Pivot:
    """Largest singular value of the convolution on its own maps, by power iteration from `vector` (1, c, H,
    W).

    Returns left, right and the estimate <left, A right>, from below; left is the vector to go on from. The
    estimate carries no gradient: `SkewOperator.scaled` takes the three as its pivot.

    Args:
        operator: the convolution.
        vector: where to start.
        iterations: at most so many.
        stop_early: end when the estimate no longer changes, for which an accelerator has to be waited for.
    """
    right = vector.to(operator.taps.dtype).contiguous(memory_format=torch.channels_last)
    previous = None
    for step in range(iterations):
        left, length = unit(operator(right))
        if step + 1 == iterations or (stop_early and settled(length, previous)):
            break
        previous, right = length, left
    return left, right, length


def kernel_norm_estimate(
    taps: Tensor, vectors: Tensor, iterations: int, *, stop_early: bool = True
) -> tuple[Tensor, Tensor]:
    """Smallest of the spectral norms of the kernel's four matrix reshapes, each by power iteration.

    The reshapes are c x ck^2, ck^2 x c, ck x ck with height beside outputs, and ck x ck with width beside
    outputs. For a skew kernel the first two are each other's transpose up to signs and order, and so are the
    last two: two norms are enough. k times the smallest is at least the operator norm (Singla and Feizi,
    2021).

    Args:
        taps: (T, c, c), centre first.
        vectors: (c k^2 + c k,), the two right vectors one after the other.
        iterations: power iterations for each, at most.
        stop_early: as in `operator_norm_estimate`.
    """
    with without_autocast(taps):
        kernel = kernel_from_taps(taps.to(torch.promote_types(taps.dtype, torch.float32)))
        c, size = kernel.shape[0], kernel.shape[-1]
        flat = kernel.reshape(c, -1)
        square = kernel.permute(0, 2, 1, 3).reshape(c * size, c * size)
        norms, rights = [], []
        starts = vectors[: c * size**2], vectors[c * size**2 :]
        for matrix, start in zip((flat, square), starts, strict=True):
            with torch.no_grad():
                right, previous = start.to(matrix.dtype), None
                for _ in range(iterations):
                    left, _ = unit(matrix @ right)
                    right, length = unit(matrix.T @ left)
                    if stop_early and settled(length, previous):
                        break
                    previous = length
            norms.append(left @ (matrix @ right))
            rights.append(right)
        return torch.minimum(*norms), torch.cat(rights)


def unit(vector: Tensor) -> tuple[Tensor, Tensor]:
    """The vector at unit length, and its length; a vector of zeros stays one."""
    length = torch.linalg.vector_norm(vector, dtype=torch.promote_types(vector.dtype, torch.float32))
    return vector / torch.where(length > 0, length, 1.0).to(vector.dtype), length


def settled(length: Tensor, previous: Tensor | None) -> bool:
    """Whether two estimates in a row agree to a few units in the last place."""
    if previous is None:
        return False
    return bool((length - previous).abs() <= 4 * torch.finfo(length.dtype).eps * length)


def kernel_norm_vectors(like: Tensor, channels: int, size: int, *, seed: int = 0) -> Tensor:
    """Starting vectors for `kernel_norm_estimate`, unit length each."""
    return start_vector(like, channels * size**2 + channels * size, seed=seed) * sqrt(2)
