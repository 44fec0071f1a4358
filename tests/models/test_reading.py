"""From modules to operators: layers by path and shape, traced forwards, and refusals by name."""

import copy
import math
import re
from collections.abc import Callable, Iterator
from typing import Self

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lipcert as lc
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.models.reading import input_shape_of, read_model
from lipcert.nn import LipschitzModule
from lipcert.operators import GroupSort, Matrix, Operator, Sequence, Shape, WeightedSum
from tests.contracts.dense import dense_jacobian


def read(model: nn.Module, shape: Shape) -> Operator:
    with torch.no_grad():
        return read_model(model.double().eval(), shape, lambda operator, *_: operator)


def places(model: nn.Module, shape: Shape) -> list[tuple[str, str, Shape]]:
    found = []

    def place(operator: Operator, shape: Shape, path: str, layer: str) -> Operator:
        found.append((path, layer, shape))
        return operator

    read_model(model, shape, place)
    return found


class Function(nn.Module):
    """A module whose forward is any function of its layers."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def test_layers_come_with_path_and_shape() -> None:
    model = nn.Sequential(nn.Sequential(lc.Flatten()), nn.Sequential(), lc.NormalizedLinear(12, 2))
    assert places(model, (3, 2, 2)) == [
        ("0.0", "Flatten", (3, 2, 2)),
        ("2", "NormalizedLinear", (12,)),
    ]


def test_a_single_layer_is_a_model() -> None:
    assert places(lc.MaxMin(), (4,)) == [("model", "MaxMin", (4,))]


def test_a_layer_that_stands_twice_runs_twice() -> None:
    act = lc.MaxMin()
    assert [path for path, *_ in places(nn.Sequential(act, lc.Flatten(), act), (4,))] == ["0", "1", "2"]


def test_a_plain_linear_layer_is_a_matrix() -> None:
    linear = nn.Linear(4, 2).double()
    operator = read(nn.Sequential(lc.Flatten(), linear), (1, 2, 2))
    x = torch.randn(3, 1, 2, 2, dtype=torch.float64)
    torch.testing.assert_close(operator.apply(x), linear(x.flatten(1)))
    assert isinstance(operator, Sequence)
    assert isinstance(operator.parts[-1], Matrix)
    assert operator.parts[-1].weight.data_ptr() != linear.weight.data_ptr()


@pytest.mark.parametrize("module", [nn.Identity(), nn.Dropout(0.5), nn.Flatten(), nn.Flatten(-3)], ids=repr)
def test_modules_of_torch_that_change_no_number(module: nn.Module) -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    assert torch.equal(read(nn.Sequential(module), (3, 2, 2)).apply(x), module.eval()(x))


@pytest.mark.parametrize("padding", ["valid", "same", 0, (2, 1)], ids=repr)
def test_the_padding_of_a_plain_convolution(padding: str | int | tuple[int, int]) -> None:
    module = nn.Conv2d(2, 3, 3, padding=padding, dilation=2).double()  # type: ignore[arg-type]
    x = torch.randn(2, 2, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(read(nn.Sequential(module), (2, 6, 5)).apply(x), module(x))


@pytest.mark.parametrize(
    ("size", "dilation"), [(2, 1), (4, 1), ((3, 2), 1), ((2, 3), (3, 2)), (4, 3), ((1, 4), (1, 5))], ids=repr
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_the_padding_of_an_even_kernel_differs_from_side_to_side(
    size: int | tuple[int, int], dilation: int | tuple[int, int]
) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 4, size, padding="same", dilation=dilation, groups=2)  # type: ignore[arg-type]
    model = nn.Sequential(convolution, nn.Flatten()).double()
    images = torch.rand(2, 2, 6, 5, dtype=torch.float64)
    proved = lc.prove(model, (2, 6, 5))
    with torch.no_grad():
        torch.testing.assert_close(proved.logits(images), model(images), rtol=0, atol=1e-14)
    norm = float(torch.linalg.matrix_norm(dense_jacobian(proved.operator.apply, (2, 6, 5)), 2))
    assert norm * (1 - 1e-12) <= proved.operator.lipschitz_bound((2, 6, 5)) <= 1.01 * norm


@pytest.mark.parametrize("kind", ["spectral_norm", "orthogonal", "weight_norm"])
@pytest.mark.parametrize("layer", [nn.Conv2d(1, 4, 2), nn.Linear(2, 4)], ids=repr)
def test_a_parametrized_layer_says_how_it_becomes_a_plain_one(layer: nn.Module, kind: str) -> None:
    model = nn.Sequential(nn.Identity(), copy.deepcopy(layer), nn.Flatten())
    getattr(nn.utils.parametrizations, kind)(model[1])
    name = type(layer).__name__
    expected = rf"^1: {name} has a parametrized weight, .* torch.nn.utils.parametrize.remove_parametrizations"
    with pytest.raises(NotProvedError, match=expected):
        lc.prove(model, (1, 2, 2))
    nn.utils.parametrize.remove_parametrizations(model[1], "weight")
    images = torch.rand(2, 1, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        plain = nn.Sequential(model[1], nn.Flatten()).double()
        if name == "Conv2d":
            assert torch.equal(lc.prove(plain, (1, 2, 2)).logits(images), plain(images))


@pytest.mark.parametrize(
    "module",
    [
        nn.PixelShuffle(0),
        nn.PixelUnshuffle(0),
        nn.AdaptiveAvgPool2d(0),
        nn.AdaptiveAvgPool2d((1, 1, 1)),
        nn.Upsample(),
        nn.Upsample(None, math.inf),
        nn.LeakyReLU("steep"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_settings_that_no_module_can_run_with_are_refused_by_path(module: nn.Module) -> None:
    with pytest.raises(ArgumentError, match=rf"^0: {re.escape(repr(module))} has a setting that it cannot"):
        read(nn.Sequential(module), (2, 4, 4))


def test_a_side_alone_in_a_tuple_stands_for_both() -> None:
    module, x = nn.MaxPool2d((2,)), torch.randn(2, 2, 4, 6, dtype=torch.float64)
    assert torch.equal(read(module, (2, 4, 6)).apply(x), module(x))


def test_maps_beyond_all_memory_are_refused_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"^2: Upsample makes \(1, 64000, 64000\), more than"):
        read(nn.Sequential(*(nn.Upsample(scale_factor=40) for _ in range(3))), (1, 1, 1))


def test_unknown_modules_are_refused_by_path_and_name() -> None:
    model = nn.Sequential(nn.Sequential(lc.Flatten(), nn.GELU()))
    with pytest.raises(NotProvedError, match=r"^0\.1: GELU has no proved bound; use a layer of lipcert"):
        read(model, (3, 2, 2))


def test_a_subclass_of_a_known_module_is_another_module() -> None:
    class Linear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 100 * super().forward(x)

    with pytest.raises(NotProvedError, match=r"model: .* in Linear has no proved bound"):
        read(Linear(2, 2), (2,))


class Doubling(nn.Module):
    """Computes another function than its forward."""

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * x

    def forward(self, x: Tensor) -> Tensor:
        return x


class Backwards(nn.Sequential):
    """The forward of a Sequential, with the children in another order."""

    def __iter__(self) -> Iterator[nn.Module]:
        return reversed(list(super().__iter__()))


class Chance(nn.Module):
    """Keeps what depends on the mode in training mode."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def train(self, mode: bool = True) -> Self:
        return super().train(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def test_a_module_with_another_way_to_be_called_is_refused() -> None:
    with pytest.raises(NotProvedError, match=r"^0: Doubling has a __call__ of its own"):
        read(nn.Sequential(Doubling()), (2, 3, 3))


def test_the_children_of_a_sequence_run_in_the_order_that_it_gives_them() -> None:
    inner = Backwards(nn.Conv2d(2, 2, 1), nn.ReLU())
    model, x = nn.Sequential(inner, nn.ReLU()).double(), torch.randn(2, 2, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(read(model, (2, 3, 3)).apply(x), model(x))


@pytest.mark.parametrize("inner", [nn.BatchNorm2d(2), nn.Dropout(), nn.Dropout2d()], ids=repr)
def test_what_evaluation_mode_leaves_in_training_mode_is_refused(inner: nn.Module) -> None:
    with pytest.raises(NotProvedError, match=r"^0\.inner: it stays in training mode"):
        read(nn.Sequential(Chance(inner)).eval(), (2, 3, 3))


def test_layers_that_do_not_fit_are_named_by_path() -> None:
    with pytest.raises(ArgumentError, match=r"^1: NormalizedLinear: expected vectors of 5 features"):
        read(nn.Sequential(lc.Flatten(), lc.NormalizedLinear(5, 2)), (1, 2, 2))


def test_a_layer_of_ones_own_has_to_freeze_to_operators() -> None:
    class Mine(LipschitzModule):
        def freeze(self, input_shape: Shape) -> Operator:
            return lc.MaxMin()  # type: ignore[return-value]

    with pytest.raises(NotProvedError, match="model: Mine freezes to MaxMin, no operator"):
        read(Mine(), (4,))


def test_what_a_layer_of_ones_own_freezes_to_is_what_counts() -> None:
    class Mine(LipschitzModule):
        def freeze(self, input_shape: Shape) -> Operator:
            return GroupSort(2)

    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(read(Mine(), (4,)).apply(x), lc.MaxMin()(x))


def test_hooks_and_patched_methods_take_no_part() -> None:
    model, x = nn.Sequential(lc.MaxMin()), torch.randn(3, 4, dtype=torch.float64)
    model[0].register_forward_hook(lambda module, given, made: 2 * made)
    model[0].forward = lambda x: 3 * x  # type: ignore[method-assign]
    assert torch.equal(read(model, (4,)).apply(x), lc.MaxMin()(x))


TRACED: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], float]] = {
    "residual": (lambda m, x: 0.5 * (x + m.a(x)), 1.0),
    "average": (lambda m, x: 0.5 * m.a(x) + 0.5 * m.b(x), 1.0),
    "difference": (lambda m, x: m.a(x) - m.b(x), 2.0),
    "negative": (lambda m, x: -m.a(x), 1.0),
    "quotient": (lambda m, x: m.a(x) / 4, 0.25),
    "offset": (lambda m, x: 1 - m.a(x + 0.5), 1.0),
    "chain of residuals": (lambda m, x: _residual(m.b, _residual(m.a, x)), 1.0),
    "in place": (lambda m, x: _in_place(m.a(x), m.b(x)), 2.0),
    "concatenation": (lambda m, x: torch.cat([m.a(x), x], dim=1), math.sqrt(2)),
    "flat": (lambda m, x: torch.flatten(m.a(x), 1), 1.0),
    "twice": (lambda m, x: m.a(m.a(x)), 1.0),
}


def _residual(layer: nn.Module, x: Tensor) -> Tensor:
    return 0.5 * x + 0.5 * layer(x)


def _in_place(first: Tensor, second: Tensor) -> Tensor:
    first += second
    return first


@pytest.mark.parametrize("name", TRACED)
def test_a_forward_of_ones_own_is_traced(name: str) -> None:
    function, bound = TRACED[name]
    model = Function(function, a=lc.BCOP(2, 2, 3), b=lc.Cayley(2, 2, 3)).double().eval()
    operator, shape = read(model, (2, 3, 3)), (2, 3, 3)
    x = torch.randn(4, *shape, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(operator.apply(x), model(x), rtol=0, atol=1e-13)
    assert operator.output_shape(shape) == tuple(operator.apply(x).shape[1:])
    found = operator.lipschitz_bound(shape)
    norm = float(torch.linalg.matrix_norm(dense_jacobian(model, shape), 2))
    assert norm * (1 - 1e-13) <= found <= bound * (1 + 1e-4)


def test_a_traced_layer_has_its_path() -> None:
    inner = Function(lambda m, x: x + m.a(x), a=lc.MaxMin())
    found = places(nn.Sequential(lc.Flatten(), inner), (4, 1, 1))
    assert ("1.a", "MaxMin", (4,)) in found


def test_a_chain_of_residual_blocks_stays_a_chain() -> None:
    """2^20 paths from the input to the output, and an operator of twenty parts."""
    layers = {f"layer{k}": lc.MaxMin() for k in range(20)}

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        for k in range(20):
            x = _residual(model.get_submodule(f"layer{k}"), x)
        return x

    operator = read(Function(forward, **layers), (4,))
    assert isinstance(operator, Sequence)
    assert [type(part) for part in operator.parts] == [WeightedSum] * 20


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: x * m.a(x), "a product of two activations in Function has no proved bound"),
        (lambda m, x: F.gelu(m.a(x)), "the function gelu in Function has no proved bound"),
        (lambda m, x: m.a(x).exp(), "the function exp in Function has no proved bound"),
        (lambda m, x: x if x.sum() > 0 else m.a(x), "its forward cannot be traced"),
        (lambda m, x: torch.cat([x, x], dim=2), "a concatenation along another axis than the channels"),
        (lambda m, x: x + torch.cat([x, x], dim=1), r"a sum of shapes \(2, 3, 3\) and \(4, 3, 3\)"),
        (lambda m, x: 1 / m.a(x), "the function .*div in Function has no proved bound"),
        (
            lambda m, x: x.flatten(2),
            "a flattening of other axes than all but the batch in Function has no proved bound; use torch",
        ),
        (lambda m, x: torch.ones(2, 2), "an output that is not one batch made from the input in Function"),
    ],
    ids=["product", "gelu", "method", "condition", "axis", "shapes", "reciprocal", "flatten", "constant"],
)
def test_what_cannot_be_bounded_is_refused(function: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(NotProvedError, match=message):
        read(Function(function, a=lc.BCOP(2, 2, 1)), (2, 3, 3))


@pytest.mark.parametrize(
    "shape", [(3, 8, 8), [3, 8, 8], torch.Size((3, 8, 8)), torch.tensor([3, 8, 8])], ids=repr
)
def test_the_shape_of_an_image(shape: Shape) -> None:
    assert input_shape_of(nn.Flatten(), shape) == (3, 8, 8)
    assert input_shape_of(lc.lipconvnet(5, width=2, image_size=4)) == (3, 4, 4)
