"""Convolutions, matrices and everything else that is linear, as plain ONNX operators."""

import torch

from lipcert.export.graph import Graph
from lipcert.export.layers import emit
from lipcert.nn.frozen_circular import CircularConv2d, FrozenLinear, SpectralConv2d
from lipcert.nn.frozen_skew import FrozenMatrix, FrozenSeries
from lipcert.nn.heads import ConstantHead
from lipcert.nn.lipschitz import Shape
from lipcert.nn.normalize import Normalize
from lipcert.nn.shape import Flatten


@emit.register
def _normalize(layer: Normalize, graph: Graph, x: str, shape: Shape) -> str:
    centred = graph.add("Sub", [x, graph.numbers(layer.mean)])
    return graph.add("Div", [centred, graph.numbers(layer.std)])


@emit.register
def _flatten(layer: Flatten, graph: Graph, x: str, shape: Shape) -> str:
    return graph.add("Flatten", [x], {"axis": 1})


@emit.register(FrozenLinear)
@emit.register(ConstantHead)
def _linear(layer: FrozenLinear | ConstantHead, graph: Graph, x: str, shape: Shape) -> str:
    return _product(graph, x, layer.weight, layer.bias)


@emit.register
def _matrix(layer: FrozenMatrix, graph: Graph, x: str, shape: Shape) -> str:
    flat = graph.add("Flatten", [x], {"axis": 1})
    return graph.reshape(_product(graph, flat, layer.matrix, layer.bias), layer.makes)


@emit.register
def _series(layer: FrozenSeries, graph: Graph, x: str, shape: Shape) -> str:
    """p(A) x by Horner's rule, as `FrozenSeries` runs it; the bias rides on the last convolution."""
    x, (inputs, *_) = _space_to_depth(graph, x, shape, layer.stride)
    channels, size = layer.kernel.shape[0], layer.kernel.shape[-1]
    kernel = graph.numbers(layer.kernel)
    degree = len(layer.coefficients) - 1
    y, width = x, inputs
    for power in range(degree - 1, -1, -1):
        rows = channels if power else layer.out_channels
        part = graph.cut(kernel, 0, 0, rows) if rows < channels else kernel
        part = graph.cut(part, 1, 0, width) if width < channels else part
        operands = [y, part]
        if power == 0 and degree > 1 and layer.bias is not None:
            operands.append(graph.numbers(layer.bias))
        y, width = graph.add("Conv", operands, {"pads": [size // 2] * 4}), rows
        if power == degree - 1:
            y = graph.add("Mul", [y, graph.numbers(layer.coefficients[degree])])
        term = graph.add("Mul", [x, graph.numbers(layer.coefficients[power])])
        y = graph.add("Add", [y, _with_channels(graph, term, inputs, rows)])
    if degree == 1 and layer.bias is not None:
        y = graph.add("Add", [y, graph.numbers(layer.bias.view(1, -1, 1, 1))])
    return y


@emit.register
def _circular(layer: CircularConv2d, graph: Graph, x: str, shape: Shape) -> str:
    x, (_, height, width) = _space_to_depth(graph, x, shape, layer.stride)
    padding = layer.kernel.shape[-1] // 2
    if padding:
        # An index wraps as often as it has to; the wrapping mode of Pad is too young for many runtimes.
        for axis, side in ((2, height), (3, width)):
            places = [place % side for place in range(-padding, side + padding)]
            x = graph.add("Gather", [x, graph.integers(places)], {"axis": axis})
    bias = [] if layer.bias is None else [graph.numbers(layer.bias)]
    return graph.add("Conv", [x, graph.numbers(layer.kernel), *bias])


@emit.register
def _spectral(layer: SpectralConv2d, graph: Graph, x: str, shape: Shape) -> str:
    """One matrix per frequency between two Fourier transforms, which are products with constant matrices.

    A real map of n = H * W pixels has F = H * (W // 2 + 1) frequencies; of a frequency and its conjugate only
    one is kept, and the way back counts it twice.
    """
    x, (inputs, height, width) = _space_to_depth(graph, x, shape, layer.stride)
    there, back = _fourier(height, width)
    frequencies = there.shape[1] // 2
    outputs, pixels = layer.out_channels, height * width
    flat = graph.reshape(x, [inputs, pixels])
    # (N, C, 2F) -> (2, F, C, N): real parts, then imaginary parts, of every frequency.
    parts = graph.reshape(graph.add("MatMul", [flat, graph.numbers(there)]), [inputs, 2, frequencies])
    parts = graph.add("Transpose", [parts], {"perm": [2, 3, 1, 0]})
    matrices = layer.matrices()
    real = graph.add("MatMul", [graph.numbers(matrices.real), parts])
    if matrices.is_complex():
        turned = graph.add("MatMul", [graph.numbers(matrices.imag), parts])
        # i (a + ib) = -b + ia: the parts change places, and the new first one its sign.
        swapped = graph.add("Gather", [turned, graph.integers([1, 0])], {"axis": 0})
        signs = graph.numbers(torch.tensor([-1.0, 1.0], device="cpu").view(2, 1, 1, 1))
        real = graph.add("Add", [real, graph.add("Mul", [swapped, signs])])
    y = graph.add("Transpose", [real], {"perm": [3, 2, 0, 1]})
    y = graph.add("MatMul", [graph.reshape(y, [outputs, 2 * frequencies]), graph.numbers(back)])
    y = graph.reshape(y, [outputs, height, width])
    return y if layer.bias is None else graph.add("Add", [y, graph.numbers(layer.bias.view(1, -1, 1, 1))])


def _fourier(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices of `rfft2`, (H W, 2F), and of `irfft2`, (2F, H W), on pairs (real parts, imaginary parts)."""
    half = width // 2 + 1
    pixels = torch.eye(height * width, dtype=torch.float64, device="cpu").view(-1, height, width)
    forward = torch.fft.rfft2(pixels).flatten(1)
    there = torch.cat([forward.real, forward.imag], dim=1)
    units = torch.eye(height * half, dtype=torch.float64, device="cpu").view(-1, height, half)
    zeros = torch.zeros_like(units)
    both = [torch.complex(units, zeros), torch.complex(zeros, units)]
    back = torch.cat([torch.fft.irfft2(part, s=(height, width)).flatten(1) for part in both])
    return there, back


def _product(graph: Graph, x: str, weight: torch.Tensor, bias: torch.Tensor | None) -> str:
    operands = [x, graph.numbers(weight)] + ([] if bias is None else [graph.numbers(bias)])
    return graph.add("Gemm", operands, {"transB": 1})


def _space_to_depth(graph: Graph, x: str, shape: Shape, stride: int) -> tuple[str, Shape]:
    """`pixel_unshuffle`; the operator SpaceToDepth orders the channels otherwise."""
    if stride == 1:
        return x, shape
    channels, height, width = shape[0], shape[1] // stride, shape[2] // stride
    blocks = graph.reshape(x, [channels, height, stride, width, stride])
    blocks = graph.add("Transpose", [blocks], {"perm": [0, 1, 3, 5, 2, 4]})
    made = (channels * stride**2, height, width)
    return graph.reshape(blocks, made), made


def _with_channels(graph: Graph, x: str, channels: int, wanted: int) -> str:
    """Drop the last channels, or add channels of zeros."""
    if wanted <= channels:
        return x if wanted == channels else graph.cut(x, 1, 0, wanted)
    return graph.add("Pad", [x, graph.integers([0, 0, 0, 0, 0, wanted - channels, 0, 0])])
