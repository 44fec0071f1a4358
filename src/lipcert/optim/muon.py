"""Muon: momentum whose matrices are orthogonalised before they are applied, and SGD for the rest."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from lipcert.errors import ArgumentError, choose
from lipcert.machine import has_bf16
from lipcert.optim.layouts import LAYOUTS, check_layout
from lipcert.optim.newton_schulz import orthogonalize
from lipcert.optim.shares import fair_shares, gather_shares


class Muon(torch.optim.Optimizer):
    r"""Muon for parameter groups with a `layout`, `torch.optim.SGD` for all others, in one optimizer.

    A parameter of a Muon group is read as matrices W. A step with gradient G is

    .. math::
        V \leftarrow \mu V + G, \quad O = \mathrm{orthogonalize}(G + \mu V), \quad
        W \leftarrow \|W\| \, \frac{W - \eta \|W\| O / \|O\|}{\| W - \eta \|W\| O / \|O\| \|}

    in Frobenius norms: every step moves W by the share `lr` of its own length, in all directions of the
    matrix alike, and puts it back to that length. So it is made for weights whose length the layer does not
    see, as those of orthogonal convolutions; weight decay would change nothing, and there is none.

    Products run in bfloat16 where the device has it, and in float32 where not; for float64 weights in
    float64. In several processes (torch.distributed) that step with the same gradients, as under DDP, every
    process orthogonalises a share of the matrices and sends the results to the others.

    Args:
        params: parameter groups, as `muon_groups` makes them. A group with a `layout` ("taps", "kernel" or
            "stack", see `lipcert.optim.layouts`) is Muon's; its own `lr` and `momentum` may replace `step`
            and `muon_momentum`. A group without one is SGD's, with all of its options.
        lr: learning rate of SGD.
        momentum: of SGD.
        nesterov: Nesterov's form of SGD's momentum.
        weight_decay: of SGD.
        step: share of its length by which a step of Muon moves a matrix; the `lr` of Muon's groups, so that
            a schedule scales both kinds.
        muon_momentum: of Muon, always in Nesterov's form.

    Raises:
        ArgumentError: a number is out of its range, or a layout does not take a parameter.

    >>> import lipcert as lc
    >>> model = lc.lipconvnet(depth=5, width=4, num_classes=3)
    >>> optimizer = lc.optim.Muon(lc.optim.muon_groups(model), lr=0.3, step=0.04)
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.04, 0.3]

    Reference: K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float = 0.1,
        momentum: float = 0.9,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        step: float = 0.04,
        muon_momentum: float = 0.95,
    ) -> None:
        self._muon_defaults = {"lr": step, "momentum": muon_momentum, "nesterov": True, "weight_decay": 0.0}
        _check("step", step, 0, math.inf)
        _check("muon_momentum", muon_momentum, 0, 1)
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"layout": None})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of Muon, if it has a layout, or of SGD."""
        layout = param_group.get("layout")
        if layout is not None:
            choose("layout", layout, LAYOUTS)
            param_group = self._muon_defaults | param_group
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check("lr", group["lr"], 0, math.inf)
        _check("weight_decay", group["weight_decay"], 0, math.inf)
        _check("momentum", group["momentum"], 0, 1)
        if layout is not None:
            if group["weight_decay"]:
                raise ArgumentError(
                    f"weight_decay: Muon keeps the length of its matrices, so it has none, got "
                    f"{group['weight_decay']!r} for a group with layout {layout!r}; leave it out"
                )
            for parameter in group["params"]:
                check_layout(layout, parameter)
        elif group["nesterov"] and not group["momentum"]:
            raise ArgumentError("nesterov: needs a momentum above 0, got momentum 0; drop one of the two")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do one step of both kinds; a `closure` computes the loss again, and its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        work: list[tuple[Tensor, dict[str, Any]]] = []
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["layout"] is not None:
                work += [(parameter, group) for parameter in parameters]
            elif parameters:
                self._step_sgd(parameters, group)
        if work:
            self._step_muon(work)
        return loss

    def _step_sgd(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Torch's own function, so that the numbers are those of `torch.optim.SGD`."""
        momenta = [self.state[parameter].get("momentum_buffer") for parameter in parameters]
        fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
        sgd(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            momenta,
            fused=fused,
            foreach=not fused,
            lr=group["lr"],
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            weight_decay=group["weight_decay"],
            dampening=0.0,
            maximize=False,
        )
        if group["momentum"]:
            for parameter, momentum in zip(parameters, momenta, strict=True):
                self.state[parameter]["momentum_buffer"] = momentum

    def _step_muon(self, work: list[tuple[Tensor, dict[str, Any]]]) -> None:
        directions = []
        for parameter, group in work:
            assert parameter.grad is not None
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum = state["momentum_buffer"].mul_(group["momentum"]).add_(parameter.grad)
            direction = torch.add(parameter.grad, momentum, alpha=group["momentum"])
            directions.append(LAYOUTS[group["layout"]].matrices(direction))
        for (parameter, group), matrices in zip(work, orthogonalize_all(directions), strict=True):
            _move(parameter, matrices, group["layout"], group["lr"])


def orthogonalize_all(directions: list[Tensor]) -> list[Tensor]:
    """Orthogonalise batches of matrices (B, m, n), shared among all processes, equal shapes at once."""
    shares = fair_shares([_products(batch) for batch in directions])
    mine: dict[tuple[int, ...], list[int]] = {}
    for index in shares.own:
        mine.setdefault(tuple(directions[index].shape[1:]), []).append(index)
    results: dict[int, Tensor] = {}
    for indices in mine.values():
        alone = len(indices) == 1
        batch = directions[indices[0]] if alone else torch.cat([directions[index] for index in indices])
        batch = orthogonalize(batch, dtype=_product_dtype(batch))
        parts = torch.split(batch, [len(directions[index]) for index in indices])
        results.update(zip(indices, parts, strict=True))
    return gather_shares(shares, directions, results)


def _move(parameter: Tensor, matrices: Tensor, name: str, share: float) -> None:
    """Move every matrix of a parameter by a share of its length against `matrices`, and keep the length."""
    layout = LAYOUTS[name]
    update = layout.parameter(matrices, tuple(parameter.shape)).contiguous()
    layout.clean(update)
    layout.clean(parameter)
    length = layout.length(parameter)
    parameter.sub_(update.mul_(share * _quotient(length, layout.length(update))))
    parameter.mul_(_quotient(length, layout.length(parameter)))


def _quotient(length: Tensor, norm: Tensor) -> Tensor:
    """Length over norm; 0 for a matrix of zeros, which has no direction."""
    return torch.where(norm > 0, length / norm, 0.0)


def _products(batch: Tensor) -> float:
    """Multiplications, up to a factor, to orthogonalise a batch of matrices."""
    count, rows, columns = batch.shape
    short, long = min(rows, columns), max(rows, columns)
    return float(count * short**2 * (2 * short + long))


def _product_dtype(matrices: Tensor) -> torch.dtype:
    if matrices.dtype == torch.float64:
        return torch.float64
    return torch.bfloat16 if _has_bf16(matrices.device.type) else torch.float32


@functools.cache
def _has_bf16(kind: str) -> bool:
    """Whether devices of a kind multiply in bfloat16; measured once per process on a CPU."""
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return kind == "cpu" and has_bf16()


def _check(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value < high:  # type: ignore[operator]
        limits = "a finite number of at least 0" if math.isinf(high) else f"a number in [{low:g}, {high:g})"
        raise ArgumentError(f"{name}: expected {limits}, got {value!r}")
