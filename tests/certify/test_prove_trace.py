"""Proofs of modules with a forward of their own: the operators compute what the module does, and hold."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.errors import ArgumentError, LipcertError, NotProvedError
from lipcert.operators import Sequence, WeightedSum
from tests.operators.cases import dense_jacobian, jacobian_error

SHAPE = (2, 2, 2)


class Own(nn.Module):
    """A module whose forward is given."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def linear(outputs: int = 8, inputs: int = 8) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def parts() -> dict[str, nn.Module]:
    return {
        "conv": lc.SOC(2, 2, 3),
        "act": lc.MaxMin(),
        "inner": linear(),
        "head": linear(3),
        "wide": linear(3, 16),
    }


def _used_three_times(m: Any, y: Tensor, x: Tensor) -> Tensor:
    return m.wide(torch.cat([y, y + x], 1).flatten(1)) + m.head(y.flatten(1))  # type: ignore[no-any-return]


FORWARDS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "residual": lambda m, x: m.head((0.5 * x + 0.5 * m.act(m.conv(x))).flatten(1)),
    "nested residuals": lambda m, x: m.head((x + m.conv(x + m.act(m.conv(x)))).flatten(1)),
    "concatenation": lambda m, x: m.wide(torch.cat((x, m.conv(x)), dim=1).flatten(1)),
    "concatenation of vectors": lambda m, x: m.wide(torch.cat([x.flatten(1), m.inner(x.flatten(1))], 1)),
    "scalar parameter": lambda m, x: m.head((x + m.gain * m.conv(x)).flatten(1)),
    "scalar buffer": lambda m, x: m.head((m.shift + x).flatten(1)) * m.gain,
    "division": lambda m, x: m.head(torch.flatten(x, start_dim=1) / 3),
    "difference": lambda m, x: m.head(m.inner(x.flatten(1))) - m.head(m.inner(-x.flatten(1, -1))),
    "number minus maps": lambda m, x: m.head((1 - m.conv(x)).flatten(1)),
    "functions of torch": lambda m, x: m.head(torch.sub(torch.mul(x, 2), torch.neg(m.conv(x))).flatten(1)),
    "one value used three times": lambda m, x: _used_three_times(m, m.conv(x), x),
    "shared layer": lambda m, x: m.head(m.act(m.conv(m.act(m.conv(x)))).flatten(1)),
    "constants in a loop": lambda m, x: m.head(sum(k * m.conv(x) for k in range(1, 4)).flatten(1)),  # type: ignore[union-attr]
}


def module(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = Own(FORWARDS[name], gain=nn.Parameter(torch.tensor(-0.75)), **parts())
    model.register_buffer("shift", torch.tensor([0.5]))
    return model


@pytest.mark.parametrize("name", FORWARDS)
def test_what_is_proved_computes_what_the_module_does(name: str) -> None:
    model = module(name)
    proved = lc.prove(model, SHAPE)
    images = torch.rand(6, *SHAPE)
    with torch.no_grad():
        expected = model.double().eval()(images.double())
    torch.testing.assert_close(proved.logits(images), expected, rtol=0, atol=1e-12)
    bound = proved.operator.lipschitz_bound(SHAPE)
    for _ in range(3):
        jacobian = dense_jacobian(proved.operator, SHAPE)
        norm = float(torch.linalg.matrix_norm(jacobian, 2))
        assert norm <= bound + jacobian_error(proved.operator, jacobian, SHAPE)
        steepness = torch.linalg.vector_norm(jacobian[:, None] - jacobian[None], dim=2)
        assert (steepness <= proved.pair_bounds + 1e-12).all()
    assert (proved.certify(images).radius > 0).all()


def test_a_residual_of_halves_costs_nothing() -> None:
    turn = lc.OrthogonalLinear(8, 8)
    model = Own(
        lambda m, x: m.head(0.5 * x.flatten(1) + 0.5 * m.turn(x.flatten(1))), turn=turn, head=linear(3)
    )
    assert lc.prove(model, SHAPE).lipschitz <= 1 + 1e-6


def test_paths_go_through_nested_modules() -> None:
    block = Own(lambda m, x: x + m.layers(x), layers=nn.Sequential(lc.SOC(2, 2, 3), lc.MaxMin()))
    outer = Own(lambda m, x: m.head(m.block(x).flatten(1)), block=block, head=linear(3))
    proved = lc.prove(nn.Sequential(lc.Normalize((0.5, 0.5), 0.25), outer), SHAPE)
    found = [layer.path for layer in proved.layers if layer.layer != "function"]
    assert found == ["0", "1.block.layers.0", "1.block.layers.1", "1.head"]


def test_a_chain_of_residual_blocks_stays_a_chain() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for block in m.blocks:
            x = 0.5 * x + 0.5 * block(x)
        return m.head(x)  # type: ignore[no-any-return]

    blocks = nn.ModuleList(nn.Sequential(lc.OrthogonalLinear(8, 8), lc.MaxMin()) for _ in range(30))
    model = Own(forward, blocks=blocks, head=linear(3))
    begin = time.perf_counter()
    proved = lc.prove(model, SHAPE)
    found = proved.certify(torch.rand(4, *SHAPE))
    assert time.perf_counter() - begin < 20, "2^30 paths would take a little longer"
    assert isinstance(proved.operator, Sequence)
    assert sum(isinstance(part, WeightedSum) for part in proved.operator.parts) == 30
    assert len(proved.layers) == 2 + 60
    assert proved.lipschitz <= 1 + 1e-6
    assert (found.rounding < 1e-9).all()


def test_a_graph_whose_tree_would_explode_is_refused_at_once() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        a = b = x.flatten(1)
        for _ in range(40):
            a, b = m.act(a) + m.act(b), m.act(a) - m.act(b)
        return m.head(a + b)  # type: ignore[no-any-return]

    begin = time.perf_counter()
    with pytest.raises(
        NotProvedError, match=r"^model: a graph of too many branches in Own has no proved bound"
    ):
        lc.prove(Own(forward, act=lc.MaxMin(), head=linear(3)), SHAPE)
    assert time.perf_counter() - begin < 10


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "product": (lambda m, x: x * m.conv(x), "a product of two activations in Own has no proved bound"),
    "square": (lambda m, x: x * x, "a product of two activations in Own has no proved bound"),
    "sine": (
        lambda m, x: torch.sin(x),
        "the function sin in Own has no proved bound; use a layer of lipcert",
    ),
    "method": (lambda m, x: x.exp(), "the function exp in Own has no proved bound"),
    "power": (lambda m, x: x**2, "the function pow in Own has no proved bound"),
    "matrix product": (lambda m, x: x @ x, "the function matmul in Own has no proved bound"),
    "quotient of activations": (lambda m, x: x / x, "the function div in Own has no proved bound"),
    "number over activations": (lambda m, x: 1 / x, "the function .*div in Own has no proved bound"),
    "slices": (lambda m, x: x[:, :1], "the function getitem in Own has no proved bound"),
    "in place": (lambda m, x: x.add_(1), "the function add_ in Own has no proved bound"),
    "sum with a factor": (
        lambda m, x: torch.add(x, x, alpha=3),
        "the function add in Own has no proved bound",
    ),
    "control flow": (
        lambda m, x: x if x.sum() > 0 else -x,
        r"Own has no proved bound, and its forward cannot be traced \(symbolically traced variables",
    ),
    "loop over data": (lambda m, x: sum(row for row in x), ".* its forward cannot be traced"),
    "numpy": (lambda m, x: torch.from_numpy(x.numpy()), ".* its forward cannot be traced"),
    "several outputs": (
        lambda m, x: (x, m.conv(x)),
        "an output that is not one batch made from the input in Own has no proved bound",
    ),
    "shapes that do not add": (
        lambda m, x: x.flatten(1) + m.head(x.flatten(1)),
        r"a sum of shapes \(3,\) and \(8,\) in Own has no proved bound; make them equal",
    ),
    "shapes that do not join": (
        lambda m, x: torch.cat([x, x.flatten(1)], 1),
        r"a concatenation of shapes \(2, 2, 2\) and \(8,\) in Own",
    ),
    "concatenation of rows": (
        lambda m, x: torch.cat([x, x], 2),
        "a concatenation along another axis than the ch",
    ),
    "tensor of several numbers": (
        lambda m, x: x * m.inner.bias,
        "the tensor inner.bias in Own has no proved bound",
    ),
    "layer with options": (
        lambda m, x: m.conv(x, 2),
        "a call of conv with other arguments than one batch in Own",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bound_is_refused_by_path_name_and_reason(name: str) -> None:
    function, message = REFUSED[name]
    model = nn.Sequential(nn.Sequential(nn.Identity(), Own(function, **parts())), lc.Flatten(), linear(3))
    with pytest.raises(NotProvedError, match=rf"^0\.1: {message}"):
        lc.prove(model, SHAPE)


def test_unknown_modules_inside_a_forward_are_refused_by_path() -> None:
    model = nn.Sequential(
        Own(lambda m, x: m.net(x), net=nn.Sequential(nn.Identity(), nn.ReLU())), lc.Flatten()
    )
    with pytest.raises(NotProvedError, match=r"^0\.net\.1: ReLU has no proved bound"):
        lc.prove(model, SHAPE)


def test_layers_that_do_not_fit_inside_a_forward_are_refused_by_path() -> None:
    model = Own(lambda m, x: m.head(x.flatten(1)), head=linear(3, 9))
    with pytest.raises(
        ArgumentError, match=r"^head: Matrix: expected vectors of 9 numbers, got shape \(8,\)"
    ):
        lc.prove(model, SHAPE)


def test_a_forward_of_two_batches_is_refused() -> None:
    with pytest.raises(
        NotProvedError, match=r"^model: a forward with 2 arguments in TwoInputs has no proved bound"
    ):
        lc.prove(TwoInputs(), SHAPE)


def test_a_forward_of_its_own_that_depends_on_the_mode_is_read_in_evaluation_mode() -> None:
    model = Own(lambda m, x: m.head(x.flatten(1)) * (100.0 if m.training else 1.0), head=linear(3)).train()
    images = torch.rand(2, *SHAPE)
    with torch.no_grad():
        expected = model.double().eval()(images.double())
    assert torch.equal(lc.prove(model.train(), SHAPE).logits(images), expected)


@pytest.mark.parametrize("options", [{"end_dim": 1}, {"end_dim": 1, "start_dim": -1}])
def test_a_flattening_of_other_axes_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(NotProvedError, match=r"^model: the function flatten in Own has no proved bound"):
        lc.prove(Own(lambda m, x: m.head(x.flatten(**options)), head=linear(3)), SHAPE)


def test_an_output_that_does_not_depend_on_the_input_is_refused() -> None:
    with pytest.raises(NotProvedError, match=r"^model: "):
        lc.prove(Own(lambda m, x: m.inner.bias, **parts()), SHAPE)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.head(x.flatten(1)) / 0.0,
        lambda m, x: m.head(x.flatten(1)) * math.inf,
        lambda m, x: m.head(x.flatten(1)) * m.gain,
    ],
    ids=["division by zero", "infinity", "NaN"],
)
def test_numbers_that_are_not_finite_are_refused_by_path(function: Callable[[Any, Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Identity(), Own(function, gain=nn.Parameter(torch.tensor(math.nan)), **parts()))
    with pytest.raises(LipcertError, match=r"^1"):
        lc.prove(model, SHAPE)


def changed_by_name(m: Any, x: Tensor) -> Tensor:
    x = x.flatten(1)
    same = x
    x += m.inner(x)
    return m.head(same)  # type: ignore[no-any-return]


def changed_through_a_view(m: Any, x: Tensor) -> Tensor:
    flat = x.flatten(1)
    flat += 1
    return m.head(x.flatten(1))  # type: ignore[no-any-return]


def changed_through_an_identity(m: Any, x: Tensor) -> Tensor:
    same = m.nothing(x)
    same += m.conv(x)
    return m.head(x.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "forward",
    [
        changed_by_name,
        changed_through_a_view,
        changed_through_an_identity,
    ],
)
def test_a_value_that_is_used_after_it_was_changed_in_place_is_refused(
    forward: Callable[[Any, Tensor], Tensor],
) -> None:
    model = Own(forward, nothing=nn.Identity(), **parts()).double()
    images = torch.rand(3, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        changed, plain = model(images.clone()), model.head(images.flatten(1))
    assert not torch.equal(changed, plain), "nothing is changed, so nothing is tested"
    with pytest.raises(NotProvedError, match=r"^model: a change in place of a value with other names in Own"):
        lc.prove(model, SHAPE)


def test_a_new_value_may_be_changed_in_place() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        y += x
        y *= 0.5
        return m.head(y.flatten(1))  # type: ignore[no-any-return]

    model, images = Own(forward, **parts()).double().eval(), torch.rand(3, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(lc.prove(model, SHAPE).logits(images), model(images), rtol=0, atol=1e-13)


@pytest.mark.parametrize("how", ["hook", "forward"])
@pytest.mark.parametrize("kind", ["Sequential", "Own"])
def test_hooks_inside_a_traced_module_take_no_part(kind: str, how: str) -> None:
    layer = linear(3)
    inner = nn.Sequential(layer) if kind == "Sequential" else Own(lambda m, x: m.layer(x), layer=layer)
    model = Own(lambda m, x: m.inner(x.flatten(1)), inner=inner)
    plain = lc.prove(model, SHAPE)
    if how == "hook":
        inner.register_forward_hook(lambda module, args, output: 10 * output)
    else:
        inner.forward = lambda x: 10 * x  # type: ignore[method-assign]
    assert lc.prove(model, SHAPE).operator == plain.operator


def test_a_factor_behind_the_head_keeps_the_distances_of_its_rows() -> None:
    head = linear(3)
    plain = lc.prove(nn.Sequential(lc.Flatten(), head), SHAPE)
    cooled = lc.prove(Own(lambda m, x: m.head(x.flatten(1)) * 0.25, head=head), SHAPE)
    images = torch.rand(8, *SHAPE)
    torch.testing.assert_close(cooled.certify(images).radius, plain.certify(images).radius)


def _view(m: Any, x: Tensor) -> Tensor:
    y = x * 1.0
    z = y.flatten(1)
    y *= -1.0  # z is a view of y
    return m.head(z)  # type: ignore[no-any-return]


def _out(m: Any, x: Tensor) -> Tensor:
    z = x * 1.0
    torch.cat([x * -1.0], 1, out=z)
    return m.head(z.flatten(1))  # type: ignore[no-any-return]


def _own_tensor(m: Any, x: Tensor) -> Tensor:
    table = m.inner.weight
    table += 0.0
    return m.head(x.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (_view, "a change in place of a value with other names in Own"),
        (_out, "the function cat with other arguments in Own"),
        (_own_tensor, "Own"),
        (lambda m, x: m.head(m.inner.weight), "a tensor of its own"),
        (lambda m, x: m.head(x.flatten(1)) * 10**400, "beyond all floats"),
    ],
    ids=["view", "out", "own tensor", "module on a parameter", "overflow"],
)
def test_what_would_be_read_wrongly_is_refused(
    forward: Callable[[Any, Tensor], Tensor], message: str
) -> None:
    with pytest.raises(LipcertError, match=message):
        lc.prove(Own(forward, **parts()), SHAPE)


def test_a_number_counts_as_it_is_when_it_is_used() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        factor = torch.ones(1)
        y = x * factor
        factor *= -1
        return m.head(y.flatten(1))  # type: ignore[no-any-return]

    model, images = Own(forward, head=linear(3)).double(), torch.rand(3, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(lc.prove(model, SHAPE).logits(images), model(images))
