"""Every operator in ONNX: what onnxruntime makes of it in float32 is what it computes in float64."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from lipcert import operators as op
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import prove
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.export import export_onnx, load
from lipcert.export.emit import emit
from lipcert.export.graph import Graph
from lipcert.kernels.circular import kernel_spectrum
from lipcert.models.lipconvnet import lipconvnet
from lipcert.nn.bcop import BCOP
from lipcert.nn.cayley import Cayley
from lipcert.nn.contract import ACTIVATIONS, CONVOLUTIONS, LipschitzModule
from lipcert.nn.shape import Flatten
from lipcert.nn.soc import SOC
from lipcert.operators import KINDS, Operator, Shape
from lipcert.operators.elementwise import FUNCTIONS

TOLERANCE = 1e-5
"""A few hundred roundings of 6e-8 each, of numbers up to 8."""


class Given(LipschitzModule):
    """A layer that freezes to the operator it is given."""

    def __init__(self, *parts: Operator) -> None:
        super().__init__()
        self.operator = op.Sequence.of(*parts)

    def freeze(self, input_shape: Shape) -> Operator:
        return self.operator

    def output_shape(self, input_shape: Shape) -> Shape:
        return self.operator.output_shape(input_shape)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def skew(channels: int, inputs: int, outputs: int, size: int, degree: int, bias: bool = True) -> Operator:
    return op.SkewPolynomial(
        numbers(channels * (channels - 1) // 2),
        numbers((size**2 - 1) // 2, channels, channels),
        0.1,
        0.05,
        tuple(1 / math.factorial(j) for j in range(degree + 1)),
        inputs,
        outputs,
        numbers(outputs) if bias else None,
    )


def spectral(inputs: int, outputs: int, height: int, width: int) -> Operator:
    """Of a kernel: what Cayley freezes to has such frequencies, conjugates where they have to be."""
    matrices = kernel_spectrum(numbers(outputs, inputs, 3, 3), height, width)
    stored = torch.view_as_real(matrices) if matrices.is_complex() else matrices
    return op.SpectralConvolution(stored, numbers(outputs), (height, width))


def centred(channels: int) -> Operator:
    """Pixels with both signs, or activations would see one sector only."""
    return op.ChannelAffine(numbers(channels) * 0.1 + 0.5, torch.full((channels,), 0.25).double())


BLOCK = op.Sequence.of(op.CircularConvolution(numbers(4, 4, 3, 3) / 9, None), op.GroupSort(2))
CASES: dict[str, tuple[list[Operator], Shape]] = {
    "affine": ([op.ChannelAffine(numbers(3), numbers(3) + 3)], (3, 2, 2)),
    "affine vectors": ([op.Reshape(), op.ChannelAffine(numbers(12), numbers(12).sign())], (3, 2, 2)),
    "space to depth": ([op.SpaceToDepth()], (3, 4, 6)),
    "reshape": ([op.Reshape((4, 3, 3)), op.Mirror()], (1, 6, 6)),
    "mirror": ([op.Mirror()], (2, 3, 5)),
    "pad": ([op.ChannelPad(5)], (2, 3, 2)),
    "pad by none": ([op.ChannelPad(2)], (2, 3, 2)),
    "pad vectors": ([op.Reshape(), op.ChannelPad(15)], (2, 3, 2)),
    "slice": ([op.ChannelSlice(1, 3)], (4, 3, 2)),
    "slice vectors": ([op.Reshape(), op.ChannelSlice(0, 7)], (4, 3, 2)),
    "gradient step": ([centred(3), op.GradientStep(numbers(5, 4, 3, 3) / 4, numbers(5), 3, 4)], (3, 4, 3)),
    "matrix": ([op.Reshape(), op.Matrix(numbers(5, 12), numbers(5))], (3, 2, 2)),
    "matrix without bias": ([op.Reshape(), op.Matrix(numbers(5, 12), None)], (3, 2, 2)),
    "circular": ([op.CircularConvolution(numbers(5, 2, 3, 3), numbers(5))], (2, 4, 6)),
    "circular, wrapped twice": ([op.CircularConvolution(numbers(2, 3, 5, 5), None)], (3, 1, 2)),
    "circular 1x1": ([op.CircularConvolution(numbers(2, 3, 1, 1), numbers(2))], (3, 3, 2)),
    "convolution": ([op.Convolution(numbers(4, 2, 3, 3), numbers(4), padding=(1, 1))], (2, 4, 5)),
    "convolution, all options": (
        [op.Convolution(numbers(4, 2, 3, 2), None, (2, 1), (2, 1), (1, 2), 2)], (4, 5, 4)
    ),
    "transpose": ([op.Transpose((2, 0, 1))], (2, 3, 4)),
    "repeat": ([op.Repeat((2, 3))], (2, 3, 2)),
    **{
        name: ([centred(3), op.Elementwise(name, 0.3 if name == "leaky relu" else 0.0)], (3, 3, 3))
        for name in FUNCTIONS
    },
    **{
        f"{name} pooling {window}": ([centred(3), op.Pool(name, window, (2, 2), (1, 1))], (3, 5, 6))
        for name in ("average", "max", "norm") for window in ((2, 2), (3, 2))
    },
    "circular, all at once": ([op.CircularConvolution(numbers(4, 3, 5, 5), numbers(4), 2, 3, 2)], (6, 4, 2)),
    "transposed": ([op.TransposedConvolution(numbers(4, 3, 5, 5), numbers(6), 2, 3, 2)], (4, 2, 1)),
    "transposed 1x1": ([op.TransposedConvolution(numbers(4, 3, 1, 1), None, 3)], (4, 2, 3)),
    "frame": ([op.Frame(2)], (2, 3, 4)),
    "cropping": ([op.Frame(-1)], (2, 4, 5)),
    "spectral": ([spectral(3, 5, 4, 6)], (3, 4, 6)),
    "spectral, odd map": ([spectral(3, 2, 5, 3)], (3, 5, 3)),
    "spectral, real": ([spectral(3, 3, 2, 2)], (3, 2, 2)),
    "skew": ([skew(4, 4, 4, 3, 5)], (4, 8, 8)),
    "skew, fewer inputs": ([skew(4, 2, 4, 3, 3)], (2, 9, 8)),
    "skew, fewer outputs": ([skew(4, 4, 3, 3, 3)], (4, 8, 9)),
    "skew, degree 1": ([skew(4, 3, 2, 3, 1)], (3, 8, 8)),
    "skew 1x1": ([skew(4, 4, 4, 1, 4, bias=False)], (4, 3, 3)),
    "skew as a matrix": ([skew(8, 8, 6, 3, 6)], (8, 2, 2)),
    "pairs sorted": ([centred(6), op.GroupSort(2)], (6, 3, 3)),
    "groups sorted": ([centred(6), op.GroupSort(3)], (6, 3, 3)),
    "groups of a vector": ([centred(6), op.Reshape(), op.GroupSort(9)], (6, 3, 3)),
    "householder": ([centred(6), op.Householder(numbers(3) * 3)], (6, 3, 3)),
    "householder at pi/2": (
        [centred(6), op.Householder(torch.full((3,), math.pi / 2).double())],
        (6, 3, 3),
    ),
    "householder of vectors": ([centred(6), op.Reshape(), op.Householder(numbers(27))], (6, 3, 3)),
    "order 2": ([centred(6), op.HouseholderOrder(numbers(3), numbers(2, 1, 3))], (6, 3, 3)),
    "order 5": ([centred(6), op.HouseholderOrder(numbers(3) * 9, numbers(2, 4, 3))], (6, 3, 3)),
    "order 3 of vectors": (
        [centred(2), op.Reshape(), op.HouseholderOrder(numbers(9), numbers(2, 2, 9))],
        (2, 3, 3),
    ),
    "reflections": ([centred(6), op.HouseholderND(numbers(4, 3, 2))], (6, 3, 3)),
    "reflections at tiny normals": ([centred(6), op.HouseholderND(numbers(4, 3, 2) * 1e-200)], (6, 3, 3)),
    "identity": ([op.Sequence(())], (2, 2, 2)),
    "residual": ([op.WeightedSum((op.Sequence(()), BLOCK), (1.0, -0.5))], (4, 4, 4)),
    "three branches": ([op.WeightedSum((BLOCK, op.Mirror(), BLOCK), (0.25, 2.0, 1.0))], (4, 4, 4)),
    "scaled": ([op.WeightedSum((op.Sequence(()),), (-3.0,))], (2, 2, 2)),
    "side by side": ([op.Concatenation((BLOCK, op.ChannelSlice(0, 1), op.Mirror()))], (4, 4, 4)),
    "vectors side by side": (
        [op.Reshape(), op.Concatenation((op.GroupSort(2), op.ChannelSlice(0, 3)))],
        (4, 2, 2),
    ),
    "mirror average": (
        [op.WeightedSum((BLOCK, op.Sequence.of(op.Mirror(), BLOCK, op.Mirror())), (0.5, 0.5))],
        (4, 4, 4),
    ),
    "nested": (
        [
            op.Concatenation(
                (op.WeightedSum((BLOCK, op.Concatenation((op.ChannelSlice(0, 2),) * 2)), (0.5, 0.5)), BLOCK)
            ),
            op.SpaceToDepth(),
        ],
        (4, 4, 4),
    ),
}  # fmt: skip


def some_images(shape: Shape, count: int = 20) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def assert_same_logits(model: nn.Module, shape: Shape, path: Path) -> None:
    network, images = prove(model, shape), some_images(shape)
    export_onnx(network, path)
    np.testing.assert_allclose(
        load(path).logits(images), network.logits(images).numpy(), rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("case", CASES)
def test_every_operator(case: str, tmp_path: Path) -> None:
    parts, shape = CASES[case]
    assert_same_logits(nn.Sequential(Given(*parts), Flatten()), shape, tmp_path / "a.onnx")


def kinds(operator: Operator) -> set[type[Operator]]:
    parts = [*getattr(operator, "parts", ()), *getattr(operator, "branches", ())]
    return {type(operator)}.union(*map(kinds, parts))


def test_no_operator_is_forgotten() -> None:
    assert set(emit.registry) == {object, Thrice, *KINDS.values()}
    tried = set().union(*(kinds(part) for parts, _ in CASES.values() for part in parts))
    assert tried | {KINDS["Proved"]} == set(KINDS.values())


@pytest.mark.parametrize(
    ("case", "node"), [("skew", "Conv"), ("skew, degree 1", "Conv"), ("skew as a matrix", "Gemm")]
)
def test_a_polynomial_is_tried_in_both_forms(case: str, node: str, tmp_path: Path) -> None:
    parts, shape = CASES[case]
    export_onnx(nn.Sequential(Given(*parts), Flatten()), tmp_path / "a.onnx", input_shape=shape)
    found = {used.op_type for used in onnx.load(tmp_path / "a.onnx").graph.node}
    assert found & {"Conv", "Gemm"} == {node}


@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_networks(conv: str, activation: str, head: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = lipconvnet(5, conv, activation, head, 4, 4, 4, in_channels=3)
    with torch.no_grad():  # away from their start, where half of the activations are MaxMin
        for name, parameter in model.named_parameters():
            if "activation" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    assert_same_logits(model, (3, 4, 4), tmp_path / "a.onnx")


@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_stride_1_and_larger_maps(conv: str, tmp_path: Path) -> None:
    model = lipconvnet(10, conv, "hh1", "lln", 4, 4, 16, in_channels=3)
    assert_same_logits(model, (3, 16, 16), tmp_path / "a.onnx")


@pytest.mark.parametrize("layer", [SOC, BCOP, Cayley])
@pytest.mark.parametrize("outputs", [2, 3, 5])
def test_single_layers(layer: type[nn.Module], outputs: int, tmp_path: Path) -> None:
    model = nn.Sequential(layer(3, outputs, 3, bias=outputs == 3), Flatten())
    assert_same_logits(model, (3, 6, 4), tmp_path / "a.onnx")


class Residual(nn.Module):
    """A forward of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = BCOP(2, 2, 3), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.conv(x)
        return self.head(torch.cat([x, -x], dim=1).flatten(1))  # type: ignore[no-any-return]


def test_a_traced_model(tmp_path: Path) -> None:
    assert_same_logits(Residual(), (2, 4, 4), tmp_path / "a.onnx")


@dataclass(frozen=True, eq=False, repr=False)
class Twice(op.Mirror):
    """An operator of somebody else's; its parent's ONNX form would be wrong."""

    def apply(self, x: Tensor) -> Tensor:
        return 2 * x

    def lipschitz_bound(self, input_shape: Shape) -> float:
        return 2.0


class Thrice(Twice):
    """What is written for it below is wrong."""


@emit.register
def _thrice(operator: Thrice, graph: Graph, x: str, shape: Shape) -> str:
    return graph.add("Mul", [x, graph.numbers(3.0)])


@pytest.mark.parametrize(
    ("operator", "error", "message"),
    [
        (Twice(), ArgumentError, "network: Twice has no ONNX form; let the layer freeze to operators"),
        (Thrice(), NotProvedError, "its ONNX form differs by .* from the network in float64"),
    ],
)
def test_operators_that_cannot_be_exported(
    operator: Operator, error: type[Exception], message: str, tmp_path: Path
) -> None:
    parts = (operator, op.Reshape(), op.Matrix(torch.eye(2, 4).double(), None))
    shapes = ((1, 2, 2), (1, 2, 2), (4,))
    proved = [op.Proved.of(part, "x", "X", shape) for part, shape in zip(parts, shapes, strict=True)]
    with pytest.raises(error, match=message):
        export_onnx(ProvedNetwork(op.Sequence(tuple(proved)), (1, 2, 2), ("a", "b")), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
