import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.errors import ArgumentError
from lipcert.kernels.taps import kernel_from_taps, skew_taps
from lipcert.optim import Muon, muon_groups, orthogonalize
from lipcert.optim import muon as module


def network(conv="soc", **options):
    torch.manual_seed(0)
    return lc.lipconvnet(depth=5, conv=conv, width=2, image_size=8, in_channels=1, num_classes=3, **options)


def give_gradients(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def names_of(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group.get("layout"): {names[id(p)] for p in group["params"]} for group in groups}


def one_matrix(weight, layout="kernel", **options):
    parameter = nn.Parameter(weight.clone())
    return parameter, Muon([{"params": [parameter], "layout": layout}], **options)


@pytest.mark.parametrize(
    ("conv", "layouts"),
    [
        ("soc", {"weight": "taps"}),
        ("bcop", {"weight": "kernel", "bases": "stack"}),
        ("cayley", {"weight": "kernel"}),
        ("lot", {"weight": "kernel"}),
        ("bro", {"weight": "kernel"}),
        ("aoc", {"weight": "stack", "bases": "stack", "entry": "stack"}),
    ],
)
def test_muon_takes_the_matrices_of_the_convolutions_and_nothing_else(conv, layouts):
    model = network(conv)
    found = names_of(model, muon_groups(model))
    for kind in set(layouts.values()):
        names = {name for name, layout in layouts.items() if layout == kind}
        expected = {
            name for name, _ in model.named_parameters() if "conv" in name and name.split(".")[-1] in names
        }
        assert found[kind] == expected != set()
    rest = {name for name, _ in model.named_parameters()} - set().union(*(found[k] for k in found if k))
    assert found[None] == rest
    assert {"head.weight", "head.bias"} <= rest


def test_layers_of_other_classes_are_left_to_sgd():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(3, 3))
    assert [group.get("layout") for group in muon_groups(model)] == [None]


def by_hand(weight, gradients, share, momentum=0.95):
    """Steps on one matrix, written out in float64 with the singular value decomposition."""
    length, velocity = torch.linalg.matrix_norm(weight), torch.zeros_like(weight)
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        u, s, v = torch.linalg.svd(gradient + momentum * velocity, full_matrices=False)
        s = s / (s**8).sum() ** 0.125
        s = 5.9258 * s - 14.6909 * s**3 + 10.0348 * s**5
        s = 3.8644 * s - 4.0744 * s**3 + 1.1836 * s**5
        s = 3.8644 * s - 4.0744 * s**3 + 1.1836 * s**5
        s = 2.8292 * s - 2.4551 * s**3 + 0.6644 * s**5
        update = u @ torch.diag(s) @ v
        weight = weight - share * length * update / torch.linalg.matrix_norm(update)
        weight = weight * length / torch.linalg.matrix_norm(weight)
    return weight


@pytest.mark.parametrize("shape", [(4, 6), (9, 3), (5, 5)])
def test_steps_are_muons_written_out(shape):
    torch.manual_seed(0)
    weight, *gradients = torch.randn(4, *shape, dtype=torch.float64)
    parameter, optimizer = one_matrix(weight, step=0.1)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(parameter.data, by_hand(weight, gradients, 0.1), rtol=0, atol=1e-10)


def test_a_kernel_has_a_row_per_output_and_a_stack_a_matrix_per_entry():
    torch.manual_seed(0)
    weight, gradient = torch.randn(2, 3, 4, 2, 2, dtype=torch.float64)
    parameter, optimizer = one_matrix(weight, "kernel")
    parameter.grad = gradient
    optimizer.step()
    expected = by_hand(weight.reshape(3, 16), [gradient.reshape(3, 16)], 0.04).reshape(weight.shape)
    torch.testing.assert_close(parameter.data, expected, rtol=0, atol=1e-10)

    weight, gradient = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    parameter, optimizer = one_matrix(weight, "stack")
    parameter.grad = gradient
    optimizer.step()
    expected = torch.stack([by_hand(w, [g], 0.04) for w, g in zip(weight, gradient, strict=True)])
    torch.testing.assert_close(parameter.data, expected, rtol=0, atol=1e-10)


def test_held_taps_are_one_matrix_side_by_side_with_a_skew_centre():
    torch.manual_seed(0)
    weight, gradient = torch.randn(2, 5, 4, 4, dtype=torch.float64)
    gradient[0] -= gradient[0].T.clone()  # as SOC's always is
    parameter, optimizer = one_matrix(weight, "taps", step=0.1)
    parameter.grad = gradient
    optimizer.step()
    update = orthogonalize(torch.cat([*gradient], dim=1)).reshape(4, 5, 4).transpose(0, 1).clone()
    weight, update = weight.clone(), update.clone()
    for taps in (weight, update):
        taps[0] = (taps[0] - taps[0].T) / 2
    expected = weight - 0.1 * weight.norm() * update / update.norm()
    expected *= weight.norm() / expected.norm()
    torch.testing.assert_close(parameter.data, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_lengths_stay_and_a_step_is_the_asked_share_of_them(conv, monkeypatch):
    model = network(conv).double()
    optimizer = Muon(muon_groups(model), step=0.05)
    group, seen = optimizer.param_groups[0], []
    layout = module.LAYOUTS[group["layout"]]
    real = module._move

    def spied(parameter, matrices, name, share):
        layout.clean(parameter)
        before = parameter.clone()
        real(parameter, matrices, name, share)
        seen.append((name, before, parameter.clone()))

    monkeypatch.setattr(module, "_move", spied)
    for seed in range(20):
        give_gradients(model, seed)
        optimizer.step()
    for name, before, after in seen:
        a, b = (module.LAYOUTS[name].matrices(x).flatten(1) for x in (before, after))
        torch.testing.assert_close(a.norm(dim=1), b.norm(dim=1), rtol=1e-12, atol=1e-12)
        # W' = n (W - u) / |W - u| with |u| = 0.05 n: the angle between W and W' is at most asin(0.05), and a
        # direction that is not along W comes near it.
        sine = (1 - (a * b).sum(1).div(a.norm(dim=1) * b.norm(dim=1)).square()).clamp_min(0).sqrt()
        assert (sine <= 0.05 + 1e-7).all()
    assert max(sine.max() for sine in [sine]) > 0.03


def test_the_update_before_the_projection_has_exactly_the_asked_length(monkeypatch):
    torch.manual_seed(0)
    weight = torch.randn(6, 8, dtype=torch.float64)
    parameter, optimizer = one_matrix(weight, step=0.04)
    parameter.grad = torch.randn_like(weight)
    lengths = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            if function is torch.Tensor.sub_ and arguments[0] is parameter:
                lengths.append(arguments[1].norm() / arguments[0].norm())
            return function(*arguments, **(options or {}))

    with Spy():
        optimizer.step()
    assert [float(length) for length in lengths] == pytest.approx([0.04], rel=1e-14)


def test_dropping_the_symmetric_part_of_the_centre_moves_no_function():
    layer = lc.SOC(4, 4, 3).double()
    before = kernel_from_taps(skew_taps(layer.weight.detach()))
    optimizer = Muon([{"params": [layer.weight], "layout": "taps"}], step=0.0)
    layer.weight.grad = torch.randn_like(layer.weight)
    optimizer.step()
    assert torch.equal(layer.weight[0], -layer.weight[0].T)
    after = kernel_from_taps(skew_taps(layer.weight.detach()))
    torch.testing.assert_close(after, before, rtol=1e-14, atol=1e-14)
    # The length that is kept is that of the full kernel, over sqrt(2).
    torch.testing.assert_close(before.norm(), layer.weight.detach().norm() * 2**0.5)


@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups_without_a_layout_are_sgd_to_the_bit(momentum, nesterov, weight_decay, dtype):
    mine = network().to(dtype)
    theirs = copy.deepcopy(mine)
    options = {"lr": 0.3, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    ours, reference = (
        Muon(mine.parameters(), **options),
        torch.optim.SGD(theirs.parameters(), **options, fused=True),
    )
    for seed in range(4):
        for model, optimizer in ((mine, ours), (theirs, reference)):
            give_gradients(model, seed)
            optimizer.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
        assert (
            torch.equal(ours.state[a].get("momentum_buffer", a), reference.state[b].get("momentum_buffer", b))
            or not momentum
        )


def test_state_dict_goes_round_to_the_same_bits():
    model = network("bcop")
    optimizer = Muon(muon_groups(model), lr=0.1, step=0.05)
    for seed in range(3):
        give_gradients(model, seed)
        optimizer.step()
    other = copy.deepcopy(model)
    again = Muon(muon_groups(other), lr=1.0, step=1.0)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert [group["lr"] for group in again.param_groups] == [0.05, 0.05, 0.1]
    for seed in range(3, 6):
        for m, o in ((model, optimizer), (other, again)):
            give_gradients(m, seed)
            o.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_without_gradient_nothing_moves():
    torch.manual_seed(0)
    weight = torch.randn(3, 4)
    parameter, optimizer = one_matrix(weight)
    optimizer.step()
    assert torch.equal(parameter, weight)
    parameter.grad = torch.zeros_like(weight)
    optimizer.step()
    torch.testing.assert_close(parameter.data, weight)
    assert parameter.isfinite().all()


def test_one_channel_whose_skew_kernel_is_zero_stays_finite():
    parameter, optimizer = one_matrix(torch.ones(1, 1, 1), "taps")
    parameter.grad = torch.ones(1, 1, 1)
    optimizer.step()
    assert parameter.item() == 0.0


def test_muon_learns():
    torch.manual_seed(0)
    layer = lc.SOC(8, 8, 3)
    target = lc.SOC(8, 8, 3)
    optimizer = Muon(muon_groups(layer), lr=0.1, step=0.05)
    x = torch.randn(64, 8, 5, 5)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (layer(x) - target(x).detach()).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


def test_a_closure_is_called_with_gradients_and_returned():
    parameter, optimizer = one_matrix(torch.eye(3))

    def closure():
        optimizer.zero_grad()
        loss = parameter.square().sum() + parameter.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 6.0
    assert not torch.equal(parameter, torch.eye(3))


@pytest.mark.parametrize(
    ("has_bf16", "dtype", "used"),
    [
        (True, torch.float32, torch.bfloat16),
        (False, torch.float32, torch.float32),
        (True, torch.float64, torch.float64),
    ],
)
def test_products_run_in_bf16_only_where_the_processor_has_it(monkeypatch, has_bf16, dtype, used):
    monkeypatch.setattr(module, "_has_bf16", lambda kind: has_bf16)
    seen = []
    real = module.orthogonalize
    monkeypatch.setattr(
        module, "orthogonalize", lambda m, *, dtype: (seen.append(dtype), real(m, dtype=dtype))[1]
    )
    parameter, optimizer = one_matrix(torch.eye(3, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert seen == [used]


def test_equal_shapes_are_orthogonalised_at_once(monkeypatch):
    seen = []
    real = module.orthogonalize
    monkeypatch.setattr(
        module, "orthogonalize", lambda m, *, dtype: (seen.append(tuple(m.shape)), real(m, dtype=dtype))[1]
    )
    torch.manual_seed(0)
    # float64 runs in float64 on every processor; bfloat16 may differ by the batch.
    directions = [torch.randn(shape, dtype=torch.float64) for shape in [(1, 3, 4), (2, 5, 5), (2, 3, 4)]]
    found = module.orthogonalize_all(directions)
    assert sorted(seen) == [(2, 5, 5), (3, 3, 4)]
    for direction, result in zip(directions, found, strict=True):
        torch.testing.assert_close(result, real(direction), rtol=1e-10, atol=1e-10)


TWO_PROCESSES = """
import os, sys, torch
import torch.distributed as dist
sys.path.insert(0, {here!r})
from tests.optim.test_muon import network, give_gradients
from lipcert.optim import Muon, muon_groups
from lipcert.optim import muon as module

def work(rank, size, folder):
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", f"file://{{folder}}/meet", rank=rank, world_size=size)
    done, real = [], module.orthogonalize
    def count(matrices, *, dtype):
        done.append(len(matrices))
        return real(matrices, dtype=dtype)
    module.orthogonalize = count
    model = network("bcop").double()
    optimizer = Muon(muon_groups(model), lr=0.1)
    for seed in range(3):
        give_gradients(model, seed)
        optimizer.step()
    torch.save((sum(done), [p.detach() for p in model.parameters()]), f"{{folder}}/{{size}}-{{rank}}.pt")
    if size > 1:
        dist.destroy_process_group()
        # Without the interpreter's own end, in which a thread of gloo may abort the process.
        os._exit(0)

work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
"""


def test_two_processes_share_the_work_and_equal_one(tmp_path, request):
    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES.format(here=str(request.config.rootpath)))
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(size), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, size in ((0, 1), (0, 2), (1, 2))
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    (all_matrices, alone), *both = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    counts = [count for count, _ in both]
    assert sum(counts) == all_matrices
    assert min(counts) > 0
    for one, first, second in zip(alone, both[0][1], both[1][1], strict=True):
        assert torch.equal(first, second)
        # A batch of other matrices may be multiplied in another order.
        torch.testing.assert_close(first, one, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("group", "options", "message"),
    [
        ({}, {"lr": -1.0}, "lr: expected a finite number of at least 0, got -1.0"),
        ({}, {"momentum": 1.0}, r"momentum: expected a number in \[0, 1\), got 1.0"),
        ({}, {"momentum": 0.0}, "nesterov: needs a momentum above 0, got momentum 0; drop one of the two"),
        ({}, {"weight_decay": "x"}, "weight_decay: expected a finite number of at least 0, got 'x'"),
        ({}, {"step": float("inf")}, "step: expected a finite number of at least 0, got inf"),
        ({}, {"muon_momentum": -0.1}, r"muon_momentum: expected a number in \[0, 1\), got -0.1"),
        (
            {"layout": "tap"},
            {},
            "layout: expected one of kernel, stack, taps, got 'tap'; did you mean 'taps'",
        ),
        (
            {"layout": "taps"},
            {},
            r"params: layout 'taps' takes .* \(T, c, c\), got \(3, 4\); leave others to",
        ),
        ({"layout": "kernel", "weight_decay": 0.1}, {}, "weight_decay: Muon keeps the length .* got 0.1"),
    ],
)
def test_errors(group, options, message):
    with pytest.raises(ArgumentError, match=message):
        Muon([{"params": [nn.Parameter(torch.ones(3, 4))]} | group], **options)


def test_a_vector_is_no_matrix():
    with pytest.raises(
        ArgumentError, match=r"params: layout 'stack' takes parameters of shape \(..., m, n\)"
    ):
        Muon([{"params": [nn.Parameter(torch.ones(3))], "layout": "stack"}])
