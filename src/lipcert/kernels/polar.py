r"""Polar factors of large matrices in training: a rational function in place of eigenvalues.

The polar factor of a wide W is H = G^(-1/2) W with G = W W^T. Zolotarev's best rational function

.. math:: r(x) = \sum_j a_j / (x + c_j) \approx x^{-1/2}

takes three Cholesky factors, each a twentieth of the price of the eigenvalues, and its own gradient takes
little more than what the forward pass has. The singular values of r(G / s) W / sqrt(s) are within
`TRAINING_ERROR` of 1 up to a condition number of `LARGEST_CONDITION`. Beyond it small ones fall below 1, none
exceeds 1 by more. Evaluation and proofs have no such limit: they use `polar_factor`.

Reference: Y. Nakatsukasa and R. W. Freund, Computing fundamental matrix decompositions accurately via the
matrix sign function in two iterations, SIAM Review 58, 2016.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.blocks import gram
from lipcert.kernels.functions import OfWeights, rows_together
from lipcert.kernels.orthogonalize import start_vectors
from lipcert.kernels.precision import without_autocast, working_dtype

FACTORS = (0.0886145549, 0.264890623, 2.13595988)
POLES = (0.00378722708, 0.0912870929, 2.20037858)
"""Of r on [1/120, 1], where |r(x) sqrt(x) - 1| is at most 1.6e-3; at 1.1 it is 3.9e-3."""

TRAINING_ERROR = 4e-3
LARGEST_CONDITION = 10
"""The error of the singular values in training, and up to which ratio of singular values of W it holds."""

POWER_STEPS = 8
MARGIN = 1.1
"""Products that estimate the largest eigenvalue of G, from below, and s over the estimate."""


def training_polar_factor(matrix: Tensor) -> Tensor:
    """The polar factor to `TRAINING_ERROR`, up to a condition number of `LARGEST_CONDITION`.

    Under autocast the products of the gradient run in its precision, as those of the layer behind it do.

    Args:
        matrix: (m, n), real.
    """
    dtype = working_dtype(matrix)
    with without_autocast(matrix):
        wide = matrix.shape[0] <= matrix.shape[1]
        result: Tensor = _Factor.apply(matrix if wide else matrix.T, dtype)[0]  # type: ignore[no-untyped-call]
        return result if wide else result.T


def polar_product(x: Tensor, matrix: Tensor) -> Tensor:
    """Rows x times the transpose of `training_polar_factor(matrix)`, which is not formed.

    y = (x W^T) r(G): solves for as many vectors as x has rows. In the gradient of G these are two factors of
    low rank.

    Args:
        x: (p, in).
        matrix: W, (out, in), out <= in, real.
    """
    with without_autocast(matrix):
        result: Tensor = _Product.apply(x, matrix)[0]  # type: ignore[no-untyped-call]
        return result


def _resolvents(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factors of G + s c_j I, and a_j sqrt(s) with the last two axes of a matrix."""
    square = gram(matrix)
    vector = start_vectors(len(square), 1, square.dtype, square.device)[:, 0]
    for _ in range(POWER_STEPS):
        vector = square @ torch.nn.functional.normalize(vector, dim=0)
    # Zero has no polar factor; this one is zero.
    scale = (MARGIN * torch.linalg.vector_norm(vector)).clamp_min(1e-20)
    stack = square.repeat(len(POLES), 1, 1)
    for part, pole in zip(stack, POLES, strict=True):
        part.diagonal().add_(pole * scale)
    weights = torch.stack([factor * scale.sqrt() for factor in FACTORS])
    return torch.linalg.cholesky_ex(stack).L, weights[:, None, None]


class _Factor(OfWeights):
    """H = S W with S = r(G), and S, the inverses R_j and their weights w_j for the gradient."""

    @staticmethod
    def forward(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lower, weights = _resolvents(matrix)
        inverses = torch.cholesky_inverse(lower)
        root = (weights * inverses).sum(0)
        return root @ matrix, root.to(dtype), inverses.to(dtype), weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(inputs[0], *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None]:
        # dS = -sum of w_j R_j dG R_j with dG = dW W^T + W dW^T.
        matrix, root, inverses, weights = ctx.saved_tensors
        with without_autocast(grad):
            low, grad = matrix.to(root.dtype), grad.to(root.dtype)
            inner = grad @ low.T
            inner = (inner + inner.T) * -weights.to(root.dtype)
            outer = torch.mm(_side_by_side(inverses), (inner @ inverses).flatten(0, 1))
            result = (root @ grad).to(matrix.dtype) + outer @ low
        return result, None


class _Product(torch.autograd.Function):
    """x W^T r(G), with the Cholesky factors, their weights, and the solutions R_j W x^T."""

    @staticmethod
    def forward(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lower, weights = _resolvents(matrix)
        solutions = _solve(lower, matrix @ x.to(matrix.dtype).T)
        return (weights * solutions).sum(0).T.to(x.dtype), lower, weights, solutions

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        x, matrix, lower, weights, solutions = ctx.saved_tensors
        with without_autocast(grad):
            weighted = weights * _solve(lower, grad.T.to(matrix.dtype))
            total = weighted.sum(0)
            outer = torch.mm(_side_by_side(weighted).to(x.dtype), _side_by_side(solutions).T.to(x.dtype))
            result = torch.mm(total.to(x.dtype), x).to(matrix.dtype)
            result -= torch.mm(outer + outer.T, matrix.to(x.dtype))
            return torch.mm(total.T, matrix).to(x.dtype), result

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], x: Tensor, matrix: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        """A batch of batches is a larger batch."""
        return rows_together(_Product, info, in_dims, x, matrix)


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    """(L_j L_j^T)^-1 B for every L of a stack."""
    return torch.cholesky_solve(right.expand(len(lower), *right.shape), lower)


def _side_by_side(stack: Tensor) -> Tensor:
    """(j, n, p) -> (n, j p)."""
    return stack.transpose(0, 1).flatten(1)
