"""The second implementation: operators, constants and rounding, against the first and against the truth."""

import ast
import hashlib
import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lipcert.certify.independent
from lipcert import operators as op
from lipcert.certify.independent import Leaf, Network, derive_constants, evaluate, read_network
from lipcert.certify.independent.norms import circular_norm_bound, norm_bound
from lipcert.certify.independent.skew import modulus_bound, skew_norm_bound, skew_taps
from lipcert.certify.independent.tree import Combinator, output_shape
from lipcert.certify.network import ProvedNetwork
from lipcert.certify.prove import _prove
from lipcert.errors import CheckpointError
from lipcert.kernels.series import SERIES
from lipcert.models.reading import read_model
from lipcert.operators import Operator, Shape
from tests.operators.cases import Frozen

GAP = 1e-3
"""By how much a derived constant may exceed the package's; where rows of a map are strips it is 1e-4."""


def randn(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) * scale


def skew(
    c: int = 4,
    size: int = 3,
    n_in: int | None = None,
    n_out: int | None = None,
    *,
    coefficients=None,
    norm=1.8,
) -> op.SkewPolynomial:
    coefficients = coefficients or SERIES["wide"].evaluation[3].coefficients
    taps = randn((size**2 - 1) // 2, c, c)
    return op.SkewPolynomial(
        randn(c * (c - 1) // 2), taps, 0.9 * norm / (c * size), norm / (c * size), coefficients,
        n_in or c, n_out or c, randn(n_out or c),
    )  # fmt: skip


LEAVES: dict[str, tuple[Callable[[], Operator], Shape]] = {
    "ChannelAffine": (lambda: op.ChannelAffine(randn(3), randn(3).abs() + 0.1), (3, 4, 5)),
    "SpaceToDepth": (op.SpaceToDepth, (3, 4, 6)),
    "Reshape": (op.Reshape, (3, 4, 5)),
    "Reshape-to": (lambda: op.Reshape((6, 5, 2)), (3, 4, 5)),
    "Mirror": (op.Mirror, (3, 4, 5)),
    "ChannelPad": (lambda: op.ChannelPad(7), (3, 4, 5)),
    "ChannelSlice": (lambda: op.ChannelSlice(1, 3), (4, 2, 3)),
    "Matrix": (lambda: op.Matrix(randn(5, 12), randn(5)), (12,)),
    "Matrix-tall": (lambda: op.Matrix(randn(12, 5), None), (5,)),
    "Circular": (lambda: op.CircularConvolution(randn(3, 4, 3, 3), randn(3)), (4, 4, 5)),
    "Circular-wraps": (lambda: op.CircularConvolution(randn(4, 2, 5, 5), None), (2, 2, 3)),
    "Circular-1x1": (lambda: op.CircularConvolution(randn(4, 2, 1, 1), None), (2, 2, 3)),
    "Convolution": (lambda: op.Convolution(randn(3, 4, 3, 3), randn(3), padding=(1, 1)), (4, 4, 5)),
    "Convolution-options": (
        lambda: op.Convolution(randn(4, 3, 3, 2), None, (2, 1), (2, 0), (1, 2), 2),
        (6, 5, 4),
    ),
    "Convolution-strips": (lambda: op.Convolution(randn(3, 5, 3, 3), None, padding=(1, 1)), (5, 15, 14)),
    "Convolution-strips-wide": (
        lambda: op.Convolution(randn(2, 3, 2, 5), None, (1, 2), (1, 2), (2, 1)),
        (3, 12, 33),
    ),
    "Convolution-1x1": (lambda: op.Convolution(randn(6, 2, 1, 1), randn(6), groups=2), (4, 3, 2)),
    "Transpose": (lambda: op.Transpose((2, 0, 1)), (3, 4, 5)),
    "Repeat": (lambda: op.Repeat((2, 3)), (3, 2, 2)),
    "relu": (lambda: op.Elementwise("relu"), (3, 2, 2)),
    "leaky relu": (lambda: op.Elementwise("leaky relu", -1.5), (3, 2, 2)),
    "abs": (lambda: op.Elementwise("abs"), (5,)),
    "tanh": (lambda: op.Elementwise("tanh"), (3, 2, 2)),
    "sigmoid": (lambda: op.Elementwise("sigmoid"), (5,)),
    "softplus": (lambda: op.Elementwise("softplus"), (3, 2, 2)),
    "average": (lambda: op.Pool("average", (3, 2), (2, 1), (1, 0)), (3, 5, 4)),
    "max": (lambda: op.Pool("max", (3, 3), (2, 2), (1, 1)), (3, 6, 5)),
    "norm": (lambda: op.Pool("norm", (2, 2), (2, 2), (0, 0)), (3, 4, 5)),
    "norm-overlapping": (lambda: op.Pool("norm", (2, 3), (1, 1), (1, 1)), (3, 4, 4)),
    "Circular-strided": (lambda: op.CircularConvolution(randn(3, 4, 3, 3), randn(3), 2), (4, 4, 6)),
    "Circular-1x1-strided": (lambda: op.CircularConvolution(randn(3, 2, 1, 1), None, 3), (2, 6, 3)),
    "Circular-dilated": (lambda: op.CircularConvolution(randn(3, 4, 3, 3), randn(3), 1, 2), (4, 5, 4)),
    "Circular-groups": (lambda: op.CircularConvolution(randn(6, 2, 3, 3), None, 1, 1, 3), (6, 3, 4)),
    "Circular-all": (lambda: op.CircularConvolution(randn(4, 3, 5, 5), randn(4), 2, 3, 2), (6, 4, 2)),
    "Transposed": (lambda: op.TransposedConvolution(randn(4, 3, 3, 3), randn(3), 2), (4, 2, 3)),
    "Transposed-1x1": (lambda: op.TransposedConvolution(randn(4, 3, 1, 1), randn(3), 3), (4, 2, 1)),
    "Transposed-all": (lambda: op.TransposedConvolution(randn(4, 3, 5, 5), randn(6), 2, 3, 2), (4, 2, 1)),
    "Frame": (lambda: op.Frame(2), (2, 1, 3)),
    "Frame-crops": (lambda: op.Frame(-1), (2, 3, 4)),
    "Spectral": (lambda: op.SpectralConvolution(randn(4 * 3, 3, 2, 2), randn(3), (4, 5)), (2, 4, 5)),
    "Spectral-even": (lambda: op.SpectralConvolution(randn(3 * 3, 2, 3, 2), None, (3, 4)), (3, 3, 4)),
    "Spectral-real": (lambda: op.SpectralConvolution(randn(2 * 2, 2, 3), randn(2), (2, 2)), (3, 2, 2)),
    "Skew": (skew, (4, 4, 5)),
    "Skew-channels": (lambda: skew(6, 3, 3, 5), (3, 5, 2)),
    "Skew-1x1": (lambda: skew(6, 1, norm=1.0), (6, 3, 2)),
    "Skew-5x5": (lambda: skew(3, 5, coefficients=(0.5, 0.9, -0.3)), (3, 6, 3)),
    "Skew-larger-than-map": (lambda: skew(4, 5), (4, 2, 1)),
    "Skew-one-channel": (lambda: skew(1, 3), (1, 3, 3)),
    "GroupSort": (lambda: op.GroupSort(4), (8, 3, 2)),
    "MaxMin": (lambda: op.GroupSort(2), (6,)),
    "Householder": (lambda: op.Householder(randn(3, scale=9)), (6, 3, 2)),
    "HouseholderOrder-2": (lambda: op.HouseholderOrder(randn(3), randn(2, 1, 3)), (6, 3, 2)),
    "HouseholderOrder-4": (lambda: op.HouseholderOrder(randn(3, scale=4), randn(2, 3, 3, scale=3)), (6,)),
    "HouseholderND": (lambda: op.HouseholderND(randn(2, 4, 3)), (12, 3, 2)),
}
"""A name -> an operator with random numbers, and the shape of its inputs."""


def proved_tree(tree: Operator, shape: Shape) -> Operator:
    """The tree with proved leaves, for inputs of any shape."""
    return read_model(Frozen(tree), shape, _prove)


def saved(operator: Operator, shape: Shape, path: Path) -> tuple[ProvedNetwork, Network]:
    """The network of an operator, flattened at the end, proved, and the same read by the second reader."""
    tree = proved_tree(op.Sequence.of(operator, op.Reshape()), shape)
    (count,) = tree.output_shape(shape)
    proved = ProvedNetwork(tree, shape, tuple(map(str, range(count))))
    proved.save(path / "net.proved.safetensors")
    return proved, read_network(path / "net.proved.safetensors")


def largest_slope(operator: Operator, shape: Shape) -> float:
    """Largest norm of dense Jacobians at a few points."""
    points = torch.randn(5, *shape, dtype=torch.float64)
    slopes = []
    for point in points:
        jacobian = torch.autograd.functional.jacobian(lambda x: operator.apply(x[None])[0].flatten(), point)
        slopes.append(float(np.linalg.norm(jacobian.reshape(len(jacobian), -1).numpy(), 2)))
    return max(slopes)


@pytest.mark.parametrize("name", LEAVES)
def test_every_operator_is_the_same_function_with_its_own_bound(name: str, tmp_path: Path) -> None:
    make, shape = LEAVES[name]
    for _ in range(3):
        operator = make()
        proved, network = saved(operator, shape, tmp_path)
        constants = derive_constants(network)
        x = torch.randn(6, *shape, dtype=torch.float64)
        found = evaluate(network, constants, x.numpy())
        expected = operator.apply(x).flatten(1).numpy()
        size = np.abs(expected).max() + 1
        np.testing.assert_allclose(found.logits, expected, rtol=0, atol=1e-13 * size)
        # The distance of two computed values is at most the sum of their errors.
        apart = np.linalg.norm(found.logits - expected, axis=1)
        theirs = proved.operator.rounding_error(shape)
        allowed = found.error + theirs.relative * np.linalg.norm(x.flatten(1), axis=1) + theirs.absolute
        assert (apart <= allowed).all()
        assert (found.error < 1e-11 * size).all()
        slope, derived, stated = largest_slope(operator, shape), constants.leaves[0], network.leaves[0].stated
        assert slope <= derived * (1 + 1e-12)
        assert derived <= stated * (1 + GAP) + 1e-14
        assert found.gains[0] <= derived


def test_rounding_of_this_implementation_is_covered(tmp_path: Path) -> None:
    """Large numbers that cancel: the error of the computed sum is seen against the exact one."""
    weight = torch.tensor([[1.0, 1.0, -1.0, 1e-3]], dtype=torch.float64)
    _, network = saved(op.Matrix(weight, torch.tensor([1e9], dtype=torch.float64)), (4,), tmp_path)
    x = np.array([[1e12 + 1 / 3, 0.1, 1e12, 0.7]])
    found = evaluate(network, derive_constants(network), x)
    exact = sum(Fraction(a) * Fraction(b) for a, b in zip(x[0].tolist(), weight[0].tolist(), strict=True))
    off = abs(float(Fraction(float(found.logits[0, 0])) - exact - 10**9))
    assert 0 < off <= found.error[0] < 1e-2


def trees(depth: int, width: int) -> st.SearchStrategy[Operator]:
    """Operators that take and make vectors of `width` numbers."""
    seeds = st.integers(0, 2**31)

    def seeded(make: Callable[[], Operator]) -> st.SearchStrategy[Operator]:
        def build(seed: int) -> Operator:
            torch.manual_seed(seed)
            return make()

        return seeds.map(build)

    maps = op.Reshape((width // 4, 2, 2))
    flat = op.Reshape()
    leaf = st.one_of(
        seeded(lambda: op.Matrix(randn(width, width, scale=0.3), randn(width))),
        seeded(lambda: op.Householder(randn(width // 2))),
        seeded(lambda: op.HouseholderND(randn(1, 4, width // 4))),
        seeded(lambda: op.Sequence.of(maps, skew(width // 4), op.Mirror(), flat)),
        seeded(
            lambda: op.Sequence.of(
                maps, op.CircularConvolution(randn(width // 4, width // 4, 3, 3), None), flat
            )
        ),
        seeded(lambda: op.Sequence.of(op.ChannelSlice(0, width // 2), op.ChannelPad(width))),
        st.just(op.Sequence(())),
    )
    if not depth:
        return leaf
    part, weights = trees(depth - 1, width), st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 1.7])
    half = trees(depth - 1, width // 2) if width > 8 else None
    kinds = [
        leaf,
        st.tuples(part, part).map(lambda parts: op.Sequence.of(*parts)),
        st.tuples(part, part, weights, weights).map(lambda t: op.WeightedSum((t[0], t[1]), (t[2], t[3]))),
    ]
    if half is not None:
        first, second = op.ChannelSlice(0, width // 2), op.ChannelSlice(width // 2, width)
        kinds.append(
            st.tuples(half, half).map(
                lambda t: op.Concatenation((op.Sequence.of(first, t[0]), op.Sequence.of(second, t[1])))
            )
        )
    return st.one_of(kinds)


@given(trees(3, 16), st.booleans())
def test_random_trees(tmp_path_factory: pytest.TempPathFactory, tree: Operator, with_head: bool) -> None:
    torch.manual_seed(0)
    whole = op.Sequence.of(tree, op.Matrix(randn(5, 16), randn(5))) if with_head else tree
    proved, network = saved(whole, (16,), tmp_path_factory.mktemp("tree"))
    constants = derive_constants(network)
    x = torch.randn(4, 16, dtype=torch.float64)
    found = evaluate(network, constants, x.numpy())
    expected = whole.apply(x).numpy()
    np.testing.assert_allclose(found.logits, expected, rtol=1e-10, atol=1e-10)
    mine, theirs = constants.pairs, proved.pair_bounds.numpy()
    assert (mine <= theirs * (1 + GAP) + 1e-13).all()
    assert constants.lipschitz <= proved.lipschitz * (1 + GAP) + 1e-13
    for point in x:
        jacobian = torch.autograd.functional.jacobian(lambda z: whole.apply(z[None])[0], point).numpy()
        slopes = np.linalg.norm(jacobian[:, None] - jacobian, axis=2)
        assert (slopes <= mine * (1 + 1e-12) + 1e-13).all()


def test_constants_of_branches(tmp_path: Path) -> None:
    """Cases in which the rules of the combinators are exact."""
    sorted_apart = [op.Sequence.of(op.ChannelSlice(k, k + 2), op.GroupSort(2)) for k in (2, 0)]
    _, network = saved(op.Concatenation(tuple(sorted_apart)), (4,), tmp_path)
    assert derive_constants(network).lipschitz == pytest.approx(1, rel=1e-12)
    twice = op.Concatenation((op.Sequence(()), op.Sequence(())))
    _, network = saved(op.Sequence.of(twice, op.Matrix(torch.eye(6).double(), None)), (3,), tmp_path)
    constants = derive_constants(network)
    assert constants.lipschitz == pytest.approx(math.sqrt(2), rel=1e-12)
    difference = op.WeightedSum((op.Sequence(()), op.Matrix(-2 * torch.eye(3).double(), None)), (1.0, -3.0))
    _, network = saved(difference, (3,), tmp_path)
    assert derive_constants(network).pairs[0, 1] == pytest.approx(7 * math.sqrt(2), rel=1e-12)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5)])
@pytest.mark.parametrize("factor", [1.0, 1e-200, 1e150])
def test_norms_of_matrices(shape: tuple[int, int], factor: float) -> None:
    for complex_part in (0.0, 1j):
        stack = (randn(3, *shape) + complex_part * randn(3, *shape)).numpy()
        truth = max(np.linalg.norm(m, 2) for m in stack)
        assert truth <= norm_bound(stack * factor) / factor <= truth * (1 + 1e-11)


def dense(taps: np.ndarray, height: int, width: int, *, around: bool = False) -> np.ndarray:
    """The matrix of a convolution, pixel by pixel."""
    size, c, o = math.isqrt(len(taps)), taps.shape[2], taps.shape[1]
    matrix = np.zeros((height, width, o, height, width, c))
    for y, x, t in np.ndindex(height, width, len(taps)):
        ny, nx = y + t // size - size // 2, x + t % size - size // 2
        if around:
            matrix[y, x, :, ny % height, nx % width] += taps[t]
        elif 0 <= ny < height and 0 <= nx < width:
            matrix[y, x, :, ny, nx] += taps[t]
    return matrix.reshape(height * width * o, -1)


@pytest.mark.parametrize(("height", "width"), [(3, 4), (1, 1), (2, 5), (4, 4)])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_norms_of_circular_convolutions(size: int, height: int, width: int) -> None:
    kernel = randn(3, 2, size, size).numpy()
    truth = np.linalg.norm(
        dense(kernel.transpose(2, 3, 0, 1).reshape(-1, 3, 2), height, width, around=True), 2
    )
    assert truth * (1 - 1e-14) <= circular_norm_bound(kernel, height, width) <= truth * (1 + 1e-11)


@pytest.mark.parametrize("way", ["dense", "strips", "circles"])
@pytest.mark.parametrize(("height", "width"), [(3, 6), (6, 3), (1, 5), (5, 5)])
@pytest.mark.parametrize("size", [3, 5])
def test_norms_of_skew_convolutions(
    size: int, height: int, width: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "dense":
        monkeypatch.setattr("lipcert.certify.independent.skew.DENSE", 0)
    if way == "circles":
        monkeypatch.setattr("lipcert.certify.independent.skew.EXACT_PRODUCTS", 0)
    operator = skew(3, size)
    taps = skew_taps({name: np.asarray(getattr(operator, name)) for name in
                      ("centre", "taps", "centre_factor", "factor")})  # fmt: skip
    matrix = dense(taps, height, width)
    assert (matrix == -matrix.T).all()
    truth = np.linalg.norm(matrix, 2)
    found = skew_norm_bound(taps, height, width)
    assert truth <= found
    # A circle around rows is a larger operator, by some 10% on maps as small as these.
    assert found <= truth * {"dense": 1 + 1e-11, "strips": 1 + 5e-4, "circles": 1.25}[way]


@pytest.mark.parametrize("coefficients", [(1.0, 1.0), (0.0, 1e200, 0.0, 1e200)])
@pytest.mark.parametrize(("tap", "factor"), [(1e300, 1e300), (1e300, 1e7), (1e200, 1.0)])
@pytest.mark.parametrize("side", [3, 17])
def test_numbers_that_overflow_are_no_bound_and_no_crash(
    coefficients: tuple[float, ...], tap: float, factor: float, side: int
) -> None:
    values = {
        "centre": np.zeros(6), "taps": np.full((4, 4, 4), tap), "centre_factor": 1.0, "factor": factor,
        "coefficients": coefficients, "in_channels": 4, "out_channels": 4, "bias": None,
    }  # fmt: skip
    shape = (4, side, side)
    layer = Leaf(0, "SkewPolynomial", values, "layer", "Layer", shape, 1.0)
    end = Leaf(1, "Reshape", {"shape": None}, "end", "Layer", shape, 1.0)
    classes = tuple(map(str, range(4 * side**2)))
    network = Network(Combinator("Sequence", (layer, end)), shape, classes, 1.0, "")
    constants = derive_constants(network)
    assert not constants.leaves[0] < 1e200
    found = evaluate(network, constants, np.ones((2, *shape)))
    assert not (found.error < 1e100).any()


@pytest.mark.parametrize("size", [1e308, 1e-300, 1.0])
@pytest.mark.parametrize("stride", [1, 2])
def test_circular_convolutions_of_huge_numbers(size: float, stride: int) -> None:
    kernel = np.full((2, 2, 3, 3), 1.0)
    expected = circular_norm_bound(kernel, 4, 4, stride)
    with np.errstate(over="ignore"):
        found = circular_norm_bound(kernel * size, 4, 4, stride)
    assert found == (math.inf if size == 1e308 else pytest.approx(expected * size, rel=1e-12))


@pytest.mark.parametrize(
    ("kind", "values", "shape"),
    [
        ("HouseholderOrder", {"theta": np.zeros(2), "widths": np.zeros((2, 0, 2))}, (4,)),
        ("HouseholderND", {"vectors": np.ones((0, 2, 2))}, (4,)),
        ("Pool", {"function": "average", "window": (2**14,) * 2, "stride": (2**14,) * 2,
                  "padding": (2**13,) * 2}, (1, 8, 8)),
        ("Convolution", {"kernel": np.ones((1, 1, 2, 2)), "bias": None, "stride": (1, 1), "groups": 1,
                         "padding": (2**40,) * 2, "dilation": (2**41,) * 2}, (1, 8, 8)),
    ],
)  # fmt: skip
def test_operators_of_odd_sizes_are_refused(
    kind: str, values: dict[str, object], shape: tuple[int, ...]
) -> None:
    leaf = Leaf(0, kind, values, "layer", "Layer", shape, 1.0)
    with pytest.raises(ValueError, match=f"a {kind} whose numbers do not fit inputs of shape"):
        output_shape(leaf, shape)


def test_the_residual_of_a_factorisation_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor that is wrong, as if LAPACK had a fault, gives a larger bound and never a false one."""
    monkeypatch.setattr("lipcert.certify.independent.skew.DENSE", 0)
    operator = skew(3, 3)
    taps = skew_taps({name: np.asarray(getattr(operator, name)) for name in
                      ("centre", "taps", "centre_factor", "factor")})  # fmt: skip
    truth = np.linalg.norm(dense(taps, 4, 4), 2)
    monkeypatch.setattr("lipcert.certify.independent.skew._norm_estimate", lambda *_: truth * 0.9)
    faulty = np.linalg.cholesky

    def forgiving(matrix: np.ndarray) -> np.ndarray:
        whole = np.tril(matrix) + np.tril(matrix, -1).conj().T
        return faulty(matrix + max(0, 1e-3 - np.linalg.eigvalsh(whole)[0]) * np.eye(len(matrix)))

    monkeypatch.setattr(np.linalg, "cholesky", forgiving)
    assert truth <= skew_norm_bound(taps, 4, 4)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=9), st.floats(0, 3))
def test_modulus_of_polynomials(coefficients: list[float], rho: float) -> None:
    y = np.linspace(0, rho, 20001)
    truth = np.abs(np.polyval(coefficients[::-1], 1j * y)).max()
    found = modulus_bound(coefficients, rho)
    size = sum(abs(c) * rho**j for j, c in enumerate(coefficients))
    assert truth <= found + 1e-15 * size
    assert found**2 <= truth**2 + 1e-5 * size**2 + 1e-300


def test_modulus_between_the_points_of_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """On four intervals nothing but the bound on the second derivative sees the maximum."""
    monkeypatch.setattr("lipcert.certify.independent.skew.GRID", 4)
    for coefficients in ([1.0, 0.0, 1.3], [0.2, 0.7, -0.4, 0.9], [1.0, 1.0, 0.5, 1 / 6, 1 / 24]):
        for rho in np.linspace(0.1, 3, 40):
            truth = np.abs(np.polyval(coefficients[::-1], 1j * np.linspace(0, rho, 2001))).max()
            assert truth <= modulus_bound(coefficients, float(rho))


@pytest.mark.parametrize("beyond", [1.0, 1.5])
@pytest.mark.parametrize("name", ["isometric", "wide", "exponential"])
def test_modulus_of_our_own_polynomials(name: str, beyond: float) -> None:
    series = SERIES[name].evaluation[3]
    y = np.linspace(0, beyond * series.radius, 10**6)
    truth = np.abs(np.polyval(series.coefficients[::-1], 1j * y)).max()
    assert truth <= modulus_bound(series.coefficients, beyond * series.radius) <= truth * (1 + 1e-9)
    assert truth < 1 + 1e-12 or beyond > 1


def test_nothing_of_the_package_is_shared() -> None:
    folder = Path(next(iter(lipcert.certify.independent.__path__)))
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in ("torch", "safetensors", "scipy"), path
                own = name.startswith("lipcert.certify.independent") or name == "lipcert.errors"
                assert own or not name.startswith("lipcert"), path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tree = op.Sequence(
        (op.Matrix(randn(4, 4), None), op.Matrix(torch.eye(4).double(), torch.zeros(4).double()))
    )
    saved(tree, (4,), tmp_path)
    return tmp_path / "net.proved.safetensors"


def rewrite(path: Path, change: Callable[[dict], None]) -> None:
    """Change the description in a file, and give it the hash that fits."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    description = json.loads(header["__metadata__"]["lipcert-proved"])
    description["sha256"] = "0" * 64
    change(description)
    header["__metadata__"]["lipcert-proved"] = json.dumps(description)
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + content[start:]
    digest = hashlib.sha256(content).hexdigest()
    path.write_bytes(content.replace(b"0" * 64, digest.encode(), 1))


def test_files_of_another_content_are_refused(file: Path) -> None:
    content = file.read_bytes()
    rewrite(file, lambda d: None)
    assert read_network(file).classes == ("0", "1", "2", "3")
    for place in (len(content) - 1, content.index(b"Frozen"), content.index(b'"dtype') + 11):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"hash does not fit|not a proved network"):
            read_network(file)
    for damaged in (b"", content[:40], content + b"x", content[:-1], b"\xff" * 8 + content[8:]):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a proved network"):
            read_network(file)
    with pytest.raises(CheckpointError, match="not a proved network"):
        read_network(file.parent / "none")


def first(description: dict) -> dict:
    return description["operator"]["parts"][0]


def insert(description: dict, operator: dict) -> None:
    description["operator"]["parts"].insert(0, first(description) | {"operator": operator})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="lipcert proved network 9"), "expected the format"),
        (lambda d: d.update(sha256=7), "it has no hash"),
        (lambda d: d.update(classes=["a"]), "1 classes for outputs of shape"),
        (lambda d: d.update(input_shape=[4, 4]), "stated for inputs of shape"),
        (lambda d: d.update(input_shape=[2**40]), "stated for inputs of shape"),
        (lambda d: d.update(lipschitz=math.nan), "expected float"),
        (lambda d: d.update(lipschitz=10**400), "too large"),
        (lambda d: d.update(classes="0123"), "expected strs, got '0123'"),
        (lambda d: insert(d, {"kind": "Reshape", "shape": []}), "whose numbers do not fit"),
        (lambda d: first(d).update(lipschitz="1"), "expected float, got '1'"),
        (lambda d: first(d).update(lipschitz=True), "expected float, got True"),
        (lambda d: first(d).update(more=1), "Proved with fields"),
        (lambda d: first(d)["operator"].update(kind="Sequence"), "a stated constant of a whole Sequence"),
        (lambda d: first(d)["operator"].update(kind="Mystery"), "Mystery"),
        (lambda d: d["operator"]["parts"].__setitem__(0, first(d)["operator"]), "without a proved constant"),
        (lambda d: first(d)["operator"].update(bias={"array": 0}), "not a proved network"),
        (lambda d: first(d)["operator"].update(weight={"array": 1}), "not a proved network"),
        (lambda d: d["operator"]["parts"].pop(1), "no operator has the arrays"),
        (lambda d: insert(d, {"kind": "Reshape", "shape": [2**30, 2**30]}), "whose numbers do not fit"),
        (lambda d: insert(d, {"kind": "ChannelPad", "channels": 2**40}), "empty or too large"),
        (lambda d: insert(d, {"kind": "GroupSort", "group": 3}), "whose numbers do not fit"),
        (lambda d: insert(d, {"kind": "ChannelSlice", "start": -1, "stop": 3}), "whose numbers do not fit"),
    ],
)
def test_networks_that_do_not_fit_themselves_are_refused(
    file: Path, change: Callable[[dict], None], message: str
) -> None:
    rewrite(file, change)
    with pytest.raises(CheckpointError) as error:
        read_network(file)
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)
