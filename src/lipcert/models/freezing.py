"""The inference form of a whole network, for where no certificate is needed."""

import copy
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError
from lipcert.kernels.circular import kernel_spectrum
from lipcert.kernels.packed_torus import packed_torus_pays, packed_torus_price
from lipcert.kernels.torus import product_price, torus_pays, torus_size
from lipcert.models.reading import input_shape_of, read_model
from lipcert.models.storage import check_dense
from lipcert.nn.wrappers import unwrap
from lipcert.operators import (
    CircularConvolution,
    Matrix,
    Operator,
    Reshape,
    Sequence,
    Shape,
    SkewPolynomial,
    SpectralConvolution,
)

TRANSFORM = 560
"""What a Fourier transform there and back costs per pixel and channel, in multiplications of a product."""

MATRIX_PRICE = 1.17
"""A multiplication in a packed matrix product, in those of a convolution; where both are oneDNN's."""


class FrozenNetwork(nn.Module):
    """Operators as a module: no parameters, no orthogonalisation, differentiable in its input.

    Attributes:
        operator: the tree.
        input_shape: of one image.
    """

    def __init__(self, operator: Operator, input_shape: Shape) -> None:
        super().__init__()
        self.operator, self.input_shape = operator, input_shape

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise ArgumentError(
                f"x: expected images of shape {self.input_shape}, which the network was frozen for, got "
                f"{tuple(x.shape[1:])}"
            )
        return self.operator.apply(x)

    def _apply(self, change: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `.to`, `.float` and the like do to every tensor."""
        self.operator = self.operator.with_arrays(change)
        return self

    def extra_repr(self) -> str:
        """The operators."""
        return repr(self.operator)


def freeze(model: nn.Module, input_shape: Shape | None = None) -> FrozenNetwork:
    """Same function for images of one shape, from numbers alone, each layer in the form that is fast there.

    The model is left as it is, and later changes of its weights do not reach the frozen copy.

    Args:
        model: as `lipcert.prove` takes it.
        input_shape: shape of one image; by default the one the model was built for.

    Raises:
        NotProvedError: a module or function that is not known, by path and name.
    """
    model = unwrap(model)
    check_dense(model)
    shape = input_shape_of(model, input_shape)
    with torch.inference_mode(mode=False), torch.no_grad():
        evaluated = copy.deepcopy(model).eval().requires_grad_(False)
        operator = read_model(evaluated, shape, lambda operator, shape, path, layer: fastest(operator, shape))
    return FrozenNetwork(operator, shape).eval()


def fastest(operator: Operator, shape: Shape, *, by_torus: bool = True) -> Operator:
    """The same function up to rounding, by one matrix, or one per frequency, where that is cheaper.

    Args:
        operator: without combinators but `Sequence`.
        shape: of its input.
        by_torus: whether whoever runs it knows convolutions on a torus, as `SkewPolynomial` does on CPUs.
    """
    if isinstance(operator, Sequence):
        parts: list[Operator] = []
        for part in operator.parts:
            parts.append(fastest(part, shape, by_torus=by_torus))
            shape = part.output_shape(shape)
        return Sequence.of(*parts)
    if isinstance(operator, SkewPolynomial) and _matrix_is_cheaper(operator, shape, by_torus):
        return _as_matrix(operator, shape)
    if isinstance(operator, CircularConvolution) and _spectrum_is_cheaper(operator, shape):
        spectrum = kernel_spectrum(operator.kernel, *shape[1:])
        spectrum = torch.view_as_real(spectrum) if spectrum.is_complex() else spectrum
        return SpectralConvolution(spectrum, operator.bias, (shape[1], shape[2]))
    return operator


@torch.no_grad()
def _as_matrix(operator: SkewPolynomial, shape: Shape, chunk: int = 512) -> Operator:
    """The matrix over all pixels and channels, found from the side that has fewer vectors."""
    made = operator.output_shape(shape)
    inputs, outputs = prod(shape), prod(made)
    function: Any = operator.linear if inputs <= outputs else operator.adjoint
    side = shape if inputs <= outputs else made
    images = []
    for start in range(0, prod(side), chunk):
        count = min(chunk, prod(side) - start)
        basis = operator.taps.new_zeros(count, prod(side))
        basis[range(count), range(start, start + count)] = 1
        images.append(function(basis.view(count, *side)).flatten(1))
    matrix = torch.cat(images)
    matrix = matrix.T.contiguous() if inputs <= outputs else matrix
    bias = None if operator.bias is None else operator.bias.repeat_interleave(made[1] * made[2])
    return Sequence.of(Reshape(), Matrix(matrix, bias), Reshape(made))


def _matrix_is_cheaper(operator: SkewPolynomial, shape: Shape, by_torus: bool) -> bool:
    """Cost model: multiplications per image of a large batch in float32.

    A matrix costs rows x columns multiplications per image, the series a full convolution per degree but for
    the channels that the first does not read and the last does not write. On a torus that is one and a half
    products of channels per frequency, at the price of transforms at both ends and two of few columns between
    two convolutions. Matrices beyond 2^26 entries (256 MiB in float32) are never worth their memory.
    """
    out, height, width = operator.output_shape(shape)
    entries = prod(shape) * out * height * width
    channels, size, pixels = operator.channels, operator.kernel_size, height * width
    degree = len(operator.coefficients) - 1
    widths = [operator.in_channels, *[channels] * (degree - 1), out]
    products = sum(a * b for a, b in pairwise(widths))
    series: float = products * size**2 * pixels
    on_cpu = operator.taps.device.type == "cpu"
    if by_torus and on_cpu and torus_pays(torch.float32, channels, size, height, width):
        terms = torus_size(size, height, width)
        ends = pixels * (operator.in_channels + out)
        between = 2 * (terms - pixels) * channels * (degree - 1)
        on_torus = terms * (1.5 * products + ends + between)
        series = min(series, product_price(torch.float32) * on_torus)
    if by_torus and on_cpu and packed_torus_pays(torch.float32, channels, size, height, width):
        packed = packed_torus_price(channels, size, height, width) * products / channels
        series = min(series, packed / MATRIX_PRICE)
    return entries <= 2**26 and entries < series


def _spectrum_is_cheaper(operator: CircularConvolution, shape: Shape) -> bool:
    """Cost model: multiplications per image, a complex one counted as four.

    Transforms run far below the rate of products: measured, those of a channel cost `TRANSFORM` per pixel.
    """
    if (operator.stride, operator.dilation, operator.groups) != (1, 1, 1):
        return False
    out, channels, size, _ = operator.kernel.shape
    _, height, width = shape
    frequencies = height * (width // 2 + 1)
    products = frequencies * out * channels * (1 if max(height, width) <= 2 else 4)
    transforms = TRANSFORM * height * width * (out + channels)
    direct = size**2 * height * width * out * channels
    return frequencies * out * channels <= 2**25 and products + transforms < direct
