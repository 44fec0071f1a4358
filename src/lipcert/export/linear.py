"""Convolutions, matrices, rearrangements and all else that is linear, as plain ONNX operators."""

import torch
from torch import Tensor

from lipcert.export.emit import emit
from lipcert.export.graph import Graph
from lipcert.operators import (
    ChannelAffine,
    ChannelPad,
    ChannelSlice,
    CircularConvolution,
    Convolution,
    Frame,
    GradientStep,
    Matrix,
    Mirror,
    Repeat,
    Reshape,
    Shape,
    SkewPolynomial,
    SpaceToDepth,
    SpectralConvolution,
    Transpose,
    TransposedConvolution,
)


@emit.register
def _channel_affine(operator: ChannelAffine, graph: Graph, x: str, shape: Shape) -> str:
    centred = graph.add("Sub", [x, graph.per_channel(operator.mean, shape)])
    return graph.add("Div", [centred, graph.per_channel(operator.std, shape)])


@emit.register
def _reshape(operator: Reshape, graph: Graph, x: str, shape: Shape) -> str:
    return graph.reshape(x, operator.output_shape(shape))


@emit.register
def _space_to_depth(operator: SpaceToDepth, graph: Graph, x: str, shape: Shape) -> str:
    """`pixel_unshuffle`; the ONNX operator SpaceToDepth orders the channels otherwise."""
    channels, height, width = shape
    blocks = graph.reshape(x, [channels, height // 2, 2, width // 2, 2])
    blocks = graph.add("Transpose", [blocks], {"perm": [0, 1, 3, 5, 2, 4]})
    return graph.reshape(blocks, operator.output_shape(shape))


@emit.register
def _mirror(operator: Mirror, graph: Graph, x: str, shape: Shape) -> str:
    return graph.add("Gather", [x, graph.integers(range(shape[2] - 1, -1, -1))], {"axis": 3})


@emit.register
def _transpose(operator: Transpose, graph: Graph, x: str, shape: Shape) -> str:
    return graph.add("Transpose", [x], {"perm": [0, *(axis + 1 for axis in operator.order)]})


@emit.register
def _repeat(operator: Repeat, graph: Graph, x: str, shape: Shape) -> str:
    channels, height, width = shape
    blocks = graph.reshape(x, [channels, height, 1, width, 1])
    rows, columns = operator.block
    blocks = graph.add("Tile", [blocks, graph.integers([1, 1, 1, rows, 1, columns])])
    return graph.reshape(blocks, operator.output_shape(shape))


@emit.register
def _channel_pad(operator: ChannelPad, graph: Graph, x: str, shape: Shape) -> str:
    return _with_channels(graph, x, shape, operator.channels)


@emit.register
def _channel_slice(operator: ChannelSlice, graph: Graph, x: str, shape: Shape) -> str:
    return graph.cut(x, 1, operator.start, operator.stop)


@emit.register
def _frame(operator: Frame, graph: Graph, x: str, shape: Shape) -> str:
    margin, (_, height, width) = operator.margin, shape
    if margin > 0:
        return graph.add("Pad", [x, graph.integers([0, 0, margin, margin] * 2)])
    return graph.cut(graph.cut(x, 2, -margin, height + margin), 3, -margin, width + margin)


@emit.register
def _matrix(operator: Matrix, graph: Graph, x: str, shape: Shape) -> str:
    return graph.add("Gemm", [x, *_weights(graph, operator.weight, operator.bias)], {"transB": 1})


@emit.register
def _skew_polynomial(operator: SkewPolynomial, graph: Graph, x: str, shape: Shape) -> str:
    """p(A) x by Horner's rule, v_d = c_d x and v_j = A v_{j+1} + c_j x; the bias rides on the last step."""
    channels, padding = operator.channels, operator.kernel_size // 2
    *lower, highest = operator.coefficients
    kernel = graph.numbers(operator.kernel())
    y, width = graph.add("Mul", [x, graph.numbers(highest)]), operator.in_channels
    for power in reversed(range(len(lower))):
        rows = channels if power else operator.out_channels
        part = graph.cut(kernel, 0, 0, rows) if rows < channels else kernel
        part = graph.cut(part, 1, 0, width) if width < channels else part
        bias = [] if power or operator.bias is None else [graph.numbers(operator.bias)]
        y, width = graph.add("Conv", [y, part, *bias], {"pads": [padding] * 4}), rows
        term = graph.add("Mul", [x, graph.numbers(lower[power])])
        y = graph.add("Add", [y, _with_channels(graph, term, shape, rows)])
    return y


@emit.register
def _convolution(operator: Convolution, graph: Graph, x: str, shape: Shape) -> str:
    attributes = {
        "strides": operator.stride,
        "pads": operator.padding * 2,
        "dilations": operator.dilation,
        "group": operator.groups,
    }
    return graph.add("Conv", [x, *_weights(graph, operator.kernel, operator.bias)], attributes)


@emit.register
def _gradient_step(operator: GradientStep, graph: Graph, x: str, shape: Shape) -> str:
    pads = {"pads": [operator.kernel.shape[-1] // 2] * 4}
    kernel, outputs = operator.kernel, operator.out_channels
    hidden = graph.add("Conv", [x, *_weights(graph, kernel[:, : shape[0]], operator.bias)], pads)
    active = graph.add("Relu", [hidden])
    back = graph.add("ConvTranspose", [active, graph.numbers(kernel[:, :outputs])], pads)
    return graph.add("Sub", [_with_channels(graph, x, shape, outputs), back])


@emit.register
def _circular(operator: CircularConvolution, graph: Graph, x: str, shape: Shape) -> str:
    x = _wrapped(graph, x, shape, operator.dilation * (operator.kernel.shape[-1] // 2))
    steps = {"strides": [operator.stride] * 2, "dilations": [operator.dilation] * 2, "group": operator.groups}
    return graph.add("Conv", [x, *_weights(graph, operator.kernel, operator.bias)], steps)


@emit.register
def _transposed(operator: TransposedConvolution, graph: Graph, x: str, shape: Shape) -> str:
    _, height, width = operator.output_shape(shape)
    reach = operator.dilation * (operator.kernel.shape[-1] // 2)
    margin = -(-reach // operator.stride)
    x = _wrapped(graph, x, shape, margin)
    steps = {"strides": [operator.stride] * 2, "dilations": [operator.dilation] * 2, "group": operator.groups}
    # A single tap leaves pixels that nothing reaches, behind the last one that is written.
    steps["output_padding"] = [0 if reach else operator.stride - 1] * 2
    y = graph.add("ConvTranspose", [x, *_weights(graph, operator.kernel, operator.bias)], steps)
    first = operator.stride * margin + reach
    return graph.cut(graph.cut(y, 2, first, first + height), 3, first, first + width)


@emit.register
def _spectral(operator: SpectralConvolution, graph: Graph, x: str, shape: Shape) -> str:
    """One matrix per frequency between two Fourier transforms, which are products with constant matrices.

    A real map of n = H * W pixels has F = H * (W // 2 + 1) frequencies; of a frequency and its conjugate only
    one is kept, and the way back counts it twice. Real matrices act on the real parts alone.
    """
    (inputs, height, width), made = shape, operator.output_shape(shape)
    matrices = operator.matrices()
    count = 2 if matrices.is_complex() else 1
    frequencies = len(matrices)
    there, back = (graph.numbers(m) for m in _fourier(height, width, count))
    flat = graph.reshape(x, [inputs, height * width])
    # (N, C, 2F) -> (2, F, C, N): real parts, then imaginary parts, of every frequency.
    parts = graph.reshape(graph.add("MatMul", [flat, there]), [inputs, count, frequencies])
    parts = graph.add("Transpose", [parts], {"perm": [2, 3, 1, 0]})
    y = graph.add("MatMul", [graph.numbers(matrices.real), parts])
    if matrices.is_complex():
        turned = graph.add("MatMul", [graph.numbers(matrices.imag), parts])
        # i (a + ib) = -b + ia: the parts change places, and the new first one its sign.
        swapped = graph.add("Gather", [turned, graph.integers([1, 0])], {"axis": 0})
        signs = graph.numbers(torch.tensor([-1.0, 1.0], device="cpu").view(2, 1, 1, 1))
        y = graph.add("Add", [y, graph.add("Mul", [swapped, signs])])
    y = graph.add("Transpose", [y], {"perm": [3, 2, 0, 1]})
    y = graph.add("MatMul", [graph.reshape(y, [made[0], count * frequencies]), back])
    y = graph.reshape(y, made)
    return y if operator.bias is None else graph.add("Add", [y, graph.per_channel(operator.bias, made)])


def _fourier(height: int, width: int, parts: int) -> tuple[Tensor, Tensor]:
    """Matrices of `rfft2`, (H W, parts F), and of `irfft2`, (parts F, H W).

    Two parts are the real parts and the imaginary parts; one part is the real ones.
    """
    half = width // 2 + 1
    pixels = torch.eye(height * width, dtype=torch.float64, device="cpu").view(-1, height, width)
    forward = torch.fft.rfft2(pixels).flatten(1)
    units = torch.eye(height * half, dtype=torch.float64, device="cpu").view(-1, height, half)
    zeros = torch.zeros_like(units)
    both = [torch.complex(units, zeros), torch.complex(zeros, units)][:parts]
    back = torch.cat([torch.fft.irfft2(part, s=(height, width)).flatten(1) for part in both])
    return torch.cat([forward.real, forward.imag][:parts], dim=1), back


def _wrapped(graph: Graph, x: str, shape: Shape, margin: int) -> str:
    """Maps with what wraps around them."""
    if not margin:
        return x
    # An index wraps as often as it has to; the wrapping mode of Pad is too young for many runtimes.
    for axis, side in ((2, shape[1]), (3, shape[2])):
        places = [place % side for place in range(-margin, side + margin)]
        x = graph.add("Gather", [x, graph.integers(places)], {"axis": axis})
    return x


def _weights(graph: Graph, weight: Tensor, bias: Tensor | None) -> list[str]:
    return [graph.numbers(weight)] + ([] if bias is None else [graph.numbers(bias)])


def _with_channels(graph: Graph, x: str, shape: Shape, wanted: int) -> str:
    """Drop the last channels, or add channels of zeros."""
    if wanted <= shape[0]:
        return x if wanted == shape[0] else graph.cut(x, 1, 0, wanted)
    none = [0] * len(shape)
    return graph.add("Pad", [x, graph.integers([0, *none, 0, wanted - shape[0], *none[1:]])])
