"""Matrices, and the rounding of sums of products."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.packed import Packed, packed_linear, packing_pays
from lipcert.operators.operator import Operator, RoundingError, Shape
from lipcert.proofs.distances import pair_distance_bounds
from lipcert.proofs.rounding import TINY, frobenius_upper_bound, gamma, product_up, sqrt_up, sum_up
from lipcert.proofs.spectral import matrix_norm_upper_bound


@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Operator):
    """y = W x + b on vectors.

    Args:
        weight: (outputs, inputs).
        bias: (outputs,) or None.

    >>> import torch
    >>> Matrix(torch.tensor([[0.0, 2.0]]), None).apply(torch.tensor([[1.0, 3.0]]))
    tensor([[6.]])
    """

    weight: Tensor
    bias: Tensor | None

    def __post_init__(self) -> None:
        if self.weight.dim() != 2 or not self.weight.numel():
            raise ArgumentError(f"weight: expected (outputs, inputs), got shape {tuple(self.weight.shape)}")
        check_bias(self.bias, len(self.weight))

    def apply(self, x: Tensor) -> Tensor:
        """W x + b."""
        if packing_pays(x, self.weight):
            packed = self._make("packed", lambda: Packed(self.weight))
            return packed_linear(x, self.weight, self.bias, packed)
        return F.linear(x, self.weight, self.bias)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(outputs,)."""
        if tuple(input_shape) != (self.weight.shape[1],):
            raise self._refuse(f"vectors of {self.weight.shape[1]} numbers", input_shape)
        return (self.weight.shape[0],)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """Largest singular value, rounded up."""
        self.output_shape(input_shape)
        return self._make("norm", lambda: matrix_norm_upper_bound(self.weight))

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """An inner product of n terms is off by gamma_n |w| |z|, whatever the order of summation."""
        norm = self.lipschitz_bound(input_shape)
        return affine_error(self.weight.unsqueeze(-1), self.bias, self.weight.shape[1], 1, norm)

    def pair_bounds(self, input_shape: Shape) -> Tensor:
        """Distances between the rows, rounded up: Proposition 1 of the paper."""
        self.output_shape(input_shape)
        return pair_distance_bounds(self.weight).cpu()

    def feature_bound(self, input_shape: Shape) -> float:
        """1: its input are the features."""
        self.output_shape(input_shape)
        return 1.0


def check_bias(bias: Tensor | None, outputs: int) -> None:
    """Refuse a bias that is not one number per output channel."""
    if bias is not None and tuple(bias.shape) != (outputs,):
        raise ArgumentError(f"bias: expected {outputs} numbers, got shape {tuple(bias.shape)}")


def add_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """Maps plus one number per channel; a map that nobody differentiates is changed in place."""
    if bias is None:
        return y
    column = bias.view(1, -1, 1, 1)
    return y + column if y.requires_grad else y.add_(column)


def affine_error(taps: Tensor, bias: Tensor | None, terms: int, pixels: int, norm: float) -> RoundingError:
    """Error of W z + b, `terms` products per entry, W given as (out, in, taps) and bounded by `norm`.

    Of a convolution in groups it is (groups, out, in, taps).

    A library may begin the sum with the bias, which then takes part in the rounding of every term.
    """
    product = product_up(gamma(terms + 4), absolute_norm_upper_bound(taps))
    relative = sum_up(product, product_up(gamma(2), sum_up(norm, product)))
    return RoundingError(relative, sum_up(product_up(gamma(terms + 4), bias_norm(bias, pixels)), TINY))


def bias_norm(bias: Tensor | None, pixels: int) -> float:
    """Length of a bias that is added at so many pixels."""
    if bias is None:
        return 0.0
    return product_up(frobenius_upper_bound(bias.double().unsqueeze(0)), sqrt_up(pixels))


def absolute_norm_upper_bound(taps: Tensor) -> float:
    r"""Bound on the norm of the operator whose entries are the sizes of those of (..., out, in, taps).

    :math:`\| |W| \| \le \sqrt{\|W\|_1 \|W\|_\infty}`, the largest absolute column and row sums; padding of
    either kind only drops or moves entries of a row.
    """
    size = taps.double().abs()
    rows, columns = float(size.sum(dim=(-2, -1)).max()), float(size.sum(dim=(-3, -1)).max())
    slack = sum_up(1.0, gamma(2 * max(size.shape[-3:-1]) * size.shape[-1]))
    return product_up(sqrt_up(product_up(rows, columns)), slack)
