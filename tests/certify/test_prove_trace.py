"""Proofs of modules with a forward of their own: the operators compute what the module does, and hold."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

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


def _taken_apart(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, c = x.chunk(3, -1)  # of 3, 3 and 2 numbers
    return a, b, c


def _three(m: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return m.head(torch.cat([c, b - 2 * a, a], 1))  # type: ignore[no-any-return]


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
    "relu": lambda m, x: m.head(torch.relu(F.relu(m.conv(x).relu())).flatten(1)),
    "leaky relu": lambda m, x: m.head(F.leaky_relu(m.conv(x), 0.2).flatten(1)),
    "abs": lambda m, x: m.head((abs(m.conv(x)) + torch.abs(x) - x.abs()).flatten(1)),
    "tanh and sigmoid": lambda m, x: m.head(
        (torch.tanh(x) + x.tanh() - torch.sigmoid(x).sigmoid()).flatten(1)
    ),
    "softplus": lambda m, x: m.head((F.softplus(x) + F.softplus(m.conv(x), beta=3)).flatten(1)),
    "channels": lambda m, x: m.head(torch.cat([x[:, 1:], x[:, :-1, ...]], 1).flatten(1)),
    "channels from the end": lambda m, x: m.head(
        torch.cat([x[..., 1:, :, :], x.flatten(1)[..., :4].view(-1, 1, 2, 2)[...]], 1).flatten(1)
    ),
    "padded": lambda m, x: m.head(F.pad(x, (0, 0, 0, 0, 2, 1))[:, 2:4].flatten(1)),
    "padded vectors": lambda m, x: m.head(F.pad(x.flatten(1)[:, 1:], (1, 0))),
    "mirror images": lambda m, x: m.head((x.flip(-1) + torch.flip(m.conv(x), [2]) + x.flip(2, 3)).flatten(1)),
    "pooling": lambda m, x: m.head(
        torch.cat(
            [F.avg_pool2d(x, 2), F.max_pool2d(x, 2), F.lp_pool2d(x + 1, 2, 2), x.mean((2, 3), keepdim=True)],
            1,
        ).flatten(1)
    ),
    "overlapping windows": lambda m, x: m.head(
        (F.max_pool2d(x, 3, 1, 1) + F.avg_pool2d(x, 3, 1, 1)).flatten(1)
    ),
    "global pooling": lambda m, x: m.head(
        torch.cat([x.mean(dim=[2, 3])] * 2 + [F.adaptive_avg_pool2d(x, 1).flatten(1)] * 2, 1)
    ),
    "shuffled pixels": lambda m, x: m.head(F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2).flatten(1)),
    "upsampling": lambda m, x: m.head(F.avg_pool2d(F.interpolate(x, scale_factor=2), 2).flatten(1)),
    "upsampling to a size": lambda m, x: m.head(F.max_pool2d(F.interpolate(x, (4, 6)), (2, 3)).flatten(1)),
    "dropout in evaluation": lambda m, x: m.head(F.dropout(x, 0.5, m.training).flatten(1)),
    "dropout of channels": lambda m, x: m.head(
        F.dropout2d(F.dropout(m.conv(x), training=m.training, p=0.1), 0.5, m.training).flatten(1)
    ),
    "sum with a factor": lambda m, x: m.head(
        (torch.add(x, m.conv(x), alpha=3) + x.add(x, alpha=-0.5) + torch.add(x, 2, alpha=0.25)).flatten(1)
    ),
    "difference with a factor": lambda m, x: m.head(
        (torch.sub(x, m.conv(x), alpha=0.3) + torch.sub(x, 2, alpha=0.25) - x.sub(x, alpha=0)).flatten(1)
    ),
    "concatenation from the end": lambda m, x: (
        m.wide(torch.cat((x, m.conv(x)), dim=-3).flatten(-3))
        + m.wide(torch.cat([x.flatten(1, 3), x.flatten(-3, -1)], -1))
    ),
    "contiguous": lambda m, x: m.head(
        x.permute(0, 2, 3, 1).contiguous().view(x.size(0), -1).contiguous(memory_format=torch.preserve_format)
    ),
    "chunks": lambda m, x: m.head(
        torch.cat([x.chunk(2, 1)[1], torch.chunk(x, chunks=2, dim=-3)[0]], 1).flatten(1)
    ),
    "chunks of unequal length": lambda m, x: _three(m, *_taken_apart(m.inner(x.flatten(1)))),
    "splits": lambda m, x: m.head(
        torch.cat([torch.split(x.flatten(1), [3, 5], 1)[1], x.flatten(1).split(3, dim=1)[-3]], -1)
    ),
    "view": lambda m, x: m.head(x.view(x.size(0), -1)),
    "reshape": lambda m, x: m.head(x.reshape(x.shape[0], 4, -1).reshape(-1, 8)),
    "sizes": lambda m, x: m.head(x.view(-1, x.size(1) * x.shape[2] * x.size(dim=3))) / x.shape[1],
    "other orders": lambda m, x: m.head(torch.permute(x, (0, 3, 1, 2)).transpose(1, 2).flatten(1)),
    "in place": lambda m, x: m.head(F.relu(m.conv(x), inplace=True).flatten(1)),
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
    "rows": (lambda m, x: x[:, :, :1], r"a slice of something else than channels in Own .*; use x\[:, a:b\]"),
    "columns": (lambda m, x: x[:, ..., :1], "a slice of something else than channels in Own"),
    "columns from the end": (lambda m, x: x[..., :, :1], "a slice of something else than channels in Own"),
    "one channel": (lambda m, x: x[:, 0], "an index that is no slice in Own has no proved bound"),
    "no channel": (lambda m, x: x[:, 2:2], "a slice of something else than channels"),
    "padded pixels": (lambda m, x: F.pad(x, (1, 1)), "a padding by something else than channels of zeros"),
    "padded with ones": (lambda m, x: F.pad(x, (0, 0, 0, 0, 0, 1), value=1.0), "a padding by something else"),
    "cut channels": (lambda m, x: F.pad(x, (0, 0, 0, 0, 0, -1)), "a padding that takes channels away"),
    "dropout": (
        lambda m, x: F.dropout(x),
        "a dropout in training mode in Own .*; pass training=self.training",
    ),
    "flipped batch": (lambda m, x: x.flip(0), "a flip of other axes than rows and columns in Own"),
    "mean of channels": (
        lambda m, x: x.mean(1),
        "a mean over something else than the pixels of a map in Own",
    ),
    "batch as pixels": (lambda m, x: x.view(-1), "a reshape that does not keep the batch in Own"),
    "batch as number": (lambda m, x: x / x.size(0), "the function .*div in Own has no proved bound"),
    "batch moved": (lambda m, x: x.permute(1, 0, 2, 3), "a permutation that does not keep the batch in Own"),
    "pooled with indices": (
        lambda m, x: F.max_pool2d_with_indices(x, 2),
        "the function .* in Own has no proved bound",
    ),
    "bilinear": (lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear"), "only mode='nearest'"),
    "half a pixel": (
        lambda m, x: F.interpolate(x, scale_factor=1.5),
        "only whole factors up to 40 have a proved bound",
    ),
    "softplus that jumps": (
        lambda m, x: F.softplus(x, 1, 0.1),
        "only a threshold of at least 20 has a proved bound, got 0.1",
    ),
    "random numbers": (
        lambda m, x: x * torch.rand(1),
        "Own has no proved bound, for its forward computes something else when called again",
    ),
    "state": (
        lambda m, x: x * m.calls.add_(1),
        "Own .* its forward computes something else when called again",
    ),
    "no such side": (lambda m, x: x.view(x.size(7), -1), "the function size with such arguments in Own"),
    "no pixels": (lambda m, x: x.view(x.size(0), -1, 0), "the function view with such arguments in Own"),
    "wrong arguments": (
        lambda m, x: F.leaky_relu(x, m.conv(x)),
        "the function leaky_relu with such arguments in Own has no proved bound",
    ),
    "in place": (lambda m, x: x.add_(1), "the function add_ in Own has no proved bound"),
    "sum with an activation as factor": (
        lambda m, x: torch.add(x, x, alpha=x),
        "the function add with such arguments in Own has no proved bound",
    ),
    "sum of a tensor with a factor": (
        lambda m, x: torch.sub(x, m.calls, alpha=2),
        "the function sub with such arguments in Own has no proved bound",
    ),
    "concatenation of the batch": (
        lambda m, x: torch.cat([x, x], -4),
        "a concatenation along another axis than the channels in Own has no proved bound",
    ),
    "no such axis": (
        lambda m, x: torch.cat([x, x], -7),
        "the function cat with such arguments in Own has no proved bound",
    ),
    "no such axis of a flip": (
        lambda m, x: x.flip(-5),
        "the function flip with such arguments in Own has no proved bound",
    ),
    "chunks of rows": (lambda m, x: x.chunk(2, 2)[0], "a chunk of something else than channels in Own"),
    "chunks of the batch": (lambda m, x: x.split(1)[0], "a split of something else than channels in Own"),
    "chunks as they are": (
        lambda m, x: torch.cat(x.chunk(2, 1), 1),
        "a chunk that is not taken apart at once in Own has no proved bound; write a, b",
    ),
    "some of the chunks": (lambda m, x: x.chunk(2, 1)[:1], "a chunk that is not taken apart at once in Own"),
    "no such chunk": (
        lambda m, x: x.chunk(2, 1)[2],
        "the function getitem with such arguments in Own has no proved bound",
    ),
    "splits that do not add up": (
        lambda m, x: x.split([1, 2], 1)[0],
        "the function split with such arguments in Own has no proved bound",
    ),
    "dropout of channels": (lambda m, x: F.dropout2d(x, 0.5), "a dropout in training mode in Own"),
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
    own = Own(function, calls=torch.zeros(()), **parts())
    model = nn.Sequential(nn.Sequential(nn.Identity(), own), lc.Flatten(), linear(3))
    with pytest.raises(NotProvedError, match=rf"^0\.1\S* {message}"):
        lc.prove(model, SHAPE)


def test_unknown_modules_inside_a_forward_are_refused_by_path() -> None:
    model = nn.Sequential(
        Own(lambda m, x: m.net(x), net=nn.Sequential(nn.Identity(), nn.GELU())), lc.Flatten()
    )
    with pytest.raises(NotProvedError, match=r"^0\.net\.1: GELU has no proved bound"):
        lc.prove(model, SHAPE)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (
            lambda m, x: m.wide(x.flatten(1)),
            r"^wide: Matrix: expected vectors of 16 numbers, got shape \(8,\)",
        ),
        (lambda m, x: F.avg_pool2d(x, 5), r"^avg_pool2d: Pool: expected maps of at least \(5, 5\)"),
        (lambda m, x: m.act(x[:, 1:]), r"^act: MaxMin: expected a number of channels divisible by 2, got 1"),
        (lambda m, x: m.head(x.flatten(1)) * 1e-300, r"^mul: weights: expected finite numbers of at least"),
    ],
)
def test_layers_that_do_not_fit_inside_a_forward_are_refused_by_path(
    forward: Callable[[Any, Tensor], Tensor], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        lc.prove(Own(forward, **parts()), SHAPE)


def test_a_forward_of_two_batches_is_refused() -> None:
    with pytest.raises(
        NotProvedError, match=r"^model: a forward with 2 arguments in TwoInputs has no proved bound"
    ):
        lc.prove(TwoInputs(), SHAPE)


class Optional(nn.Module):
    """A forward whose further arguments all have defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.head = linear(3)

    def forward(
        self, x: Tensor, scale: float = 0.5, mask: Tensor | None = None, *more: Tensor, flat: bool = True
    ) -> Tensor:
        x = x * scale if mask is None else x * mask
        return self.head(x.flatten(1) if flat else x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("place", ["alone", "inside"])
def test_further_arguments_of_a_forward_have_their_defaults(place: str) -> None:
    model = Optional() if place == "alone" else nn.Sequential(nn.Identity(), Optional())
    images = torch.rand(3, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        expected = model.double()(images)
    torch.testing.assert_close(lc.prove(model, SHAPE).logits(images), expected, rtol=0, atol=1e-14)


def test_factors_that_are_not_finite_are_refused_by_path() -> None:
    with pytest.raises(ArgumentError, match=r"^0.add: weights: expected finite numbers"):
        lc.prove(nn.Sequential(Own(lambda m, x: torch.add(x, x, alpha=math.inf))), SHAPE)


def test_a_forward_of_its_own_that_depends_on_the_mode_is_read_in_evaluation_mode() -> None:
    model = Own(lambda m, x: m.head(x.flatten(1)) * (100.0 if m.training else 1.0), head=linear(3)).train()
    images = torch.rand(2, *SHAPE)
    with torch.no_grad():
        expected = model.double().eval()(images.double())
    assert torch.equal(lc.prove(model.train(), SHAPE).logits(images), expected)


@pytest.mark.parametrize("options", [{"end_dim": 1}, {"end_dim": 1, "start_dim": -1}])
def test_a_flattening_of_other_axes_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(
        NotProvedError, match=r"^model: a flattening of other axes than all but the batch in Own"
    ):
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


def changed_after_a_chunk(m: Any, x: Tensor) -> Tensor:
    y = x * 1.0
    first = y.chunk(2, 1)[0]
    y *= -1.0
    return m.head(torch.cat([first, first], 1).flatten(1))  # type: ignore[no-any-return]


def changed_in_a_chunk(m: Any, x: Tensor) -> Tensor:
    y = x * 1.0
    first = y.chunk(2, 1)[0]
    first *= -1.0
    return m.head(y.flatten(1))  # type: ignore[no-any-return]


def changed_through_contiguous(m: Any, x: Tensor) -> Tensor:
    y = x * 1.0
    same = y.contiguous()
    same *= -1.0
    return m.head(y.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "forward",
    [
        changed_after_a_chunk,
        changed_in_a_chunk,
        changed_through_contiguous,
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


@pytest.mark.parametrize(
    "first",
    [
        nn.Identity(),
        nn.Dropout(),
        nn.Dropout2d(),
        lc.Flatten(),
        Own(lambda m, x: x),
        nn.Sequential(nn.Identity(), nn.Sequential(nn.Dropout2d(), nn.Flatten())),
    ],
    ids=["identity", "dropout", "dropout of channels", "flatten", "own", "nested"],
)
def test_a_sequence_that_changes_in_place_what_it_is_given_is_refused(first: nn.Module) -> None:
    """What hands on its input, or a view of it, lets the ReLU behind it change the input."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        return m.head(m.changing(y).flatten(1)) + m.head(y.flatten(1))  # type: ignore[no-any-return]

    changing = nn.Sequential(first, nn.ReLU(inplace=True))
    model = Own(forward, changing=changing, **parts()).double().eval()
    with pytest.raises(NotProvedError, match=r"^model: inplace=True in changing of a value with other names"):
        lc.prove(model, SHAPE)
    changing.insert(1, nn.LeakyReLU())  # makes a new tensor, which may be changed
    images = torch.rand(3, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(lc.prove(model, SHAPE).logits(images), model(images), rtol=0, atol=1e-13)


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


def _functional_call(m: Any, x: Tensor) -> Tensor:
    weights = {name: 3 * value for name, value in m.head._parameters.items()}
    return torch.func.functional_call(m.head, weights, x.flatten(1))  # type: ignore[no-any-return]


def _other_slope(m: Any, x: Tensor) -> Tensor:
    for slope in (4.0, 0.5):
        m.act.negative_slope = slope
        x = m.act(x)
    return m.head(x.flatten(1))  # type: ignore[no-any-return]


def _sampled(m: Any, x: Tensor) -> Tensor:
    m.drop.train()
    y = m.drop(x)
    m.drop.eval()
    return m.head(y.flatten(1))  # type: ignore[no-any-return]


def _filled(m: Any, x: Tensor) -> Tensor:
    m.norm._buffers["running_mean"].zero_()
    y = m.norm(x)
    m.norm._buffers["running_mean"].fill_(5)
    return m.head(y.flatten(1))  # type: ignore[no-any-return]


def _longer(m: Any, x: Tensor) -> Tensor:
    m.more.append(nn.LeakyReLU(2.0))
    y = m.more(x)
    m.more.pop(-1)
    return m.head(y.flatten(1))  # type: ignore[no-any-return]


def _assigned(m: Any, x: Tensor) -> Tensor:
    m.head.weight.data = m.other
    return m.head(x.flatten(1))  # type: ignore[no-any-return]


def _alternating(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return m.head(x.flatten(1)) * (m.a if m.calls % 2 else m.b)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (_functional_call, "changes a Linear while it runs"),
        (_other_slope, "changes a LeakyReLU while it runs"),
        (_sampled, "changes a Dropout while it runs"),
        (_filled, "changes a BatchNorm2d while it runs"),
        (_longer, "changes a Sequential while it runs"),
        (_assigned, "assigns to .data of a tensor"),
        (_alternating, "something else when called again"),
        (lambda m, x: m.head(x.flatten(1)) * m.axes, "a number with more axes than the activation"),
    ],
)
def test_a_forward_that_changes_the_model_is_refused(
    forward: Callable[[Any, Tensor], Tensor], message: str
) -> None:
    own = {
        "head": linear(3), "act": nn.LeakyReLU(), "drop": nn.Dropout(), "norm": nn.BatchNorm2d(2),
        "more": nn.Sequential(nn.ReLU()), "other": torch.randn(3, 8), "calls": 0,
        "a": nn.Parameter(torch.ones(())), "b": nn.Parameter(torch.zeros(())),
        "axes": nn.Parameter(torch.ones(1, 1, 1)),
    }  # fmt: skip
    with pytest.raises(NotProvedError, match=message):
        lc.prove(Own(forward, **own), SHAPE)


@pytest.mark.parametrize(
    "part", [lambda: nn.BatchNorm2d(2), lambda: lc.AOL(2, 2, 3), lambda: nn.Conv2d(2, 2, 1)]
)
def test_weights_that_a_hook_computes_are_refused(part: Callable[[], nn.Module]) -> None:
    pruned = prune.random_unstructured(part(), "weight", amount=1)
    with torch.no_grad():
        pruned(torch.rand(1, *SHAPE))  # or its weight could not be copied
    with pytest.raises(NotProvedError, match="computed by a hook"):
        lc.prove(nn.Sequential(pruned, nn.Flatten(), linear(3)), SHAPE)


@pytest.mark.parametrize("factor", range(1, 41))
def test_upsampling_is_repetition(factor: int) -> None:
    row = torch.arange(97.0)
    made = F.interpolate(row[None, None, None], scale_factor=(1, factor))[0, 0, 0]
    assert torch.equal(made, row.repeat_interleave(factor))


def test_a_factor_that_torch_rounds_is_refused() -> None:
    with pytest.raises(NotProvedError, match="only whole factors up to 40"):
        lc.prove(nn.Sequential(nn.Upsample(scale_factor=41), nn.Flatten(), nn.Linear(41 * 41, 2)), (1, 1, 1))


def test_a_number_counts_as_it_is_when_it_is_used() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        factor = torch.ones(1)
        y = x * factor
        factor *= -1
        return m.head(y.flatten(1))  # type: ignore[no-any-return]

    model, images = Own(forward, head=linear(3)).double(), torch.rand(3, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(lc.prove(model, SHAPE).logits(images), model(images))


class _Subclass(nn.Conv2d):
    """A convolution that somebody derived from torch's."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(_Subclass(2, 2, 1), nn.Flatten()), "use nn.Conv2d itself, .* not a subclass"),
        (Own(lambda m, x: x.reshape(len(x), -1)), r"x.shape\[0\] is the size of its batch"),
    ],
    ids=["subclass", "len"],
)
def test_refusals_name_what_to_write_instead(model: nn.Module, message: str) -> None:
    with pytest.raises(NotProvedError, match=message):
        lc.prove(model, SHAPE)
