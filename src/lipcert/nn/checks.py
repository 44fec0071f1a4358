"""Checks of the contract of a layer, for user-defined layers too: `lipcert.contract`."""

import copy
import operator as python
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError, LipcertError
from lipcert.kernels.precision import without_tf32
from lipcert.nn.contract import LipschitzModule
from lipcert.operators.operator import Operator, Shape

EPS = torch.finfo(torch.float64).eps
STEPS, SAMPLES = 5, 4


class BrokenContractError(LipcertError):
    """A layer does not keep its contract; the message says how."""


class Finding(NamedTuple):
    """What became of one check.

    Attributes:
        check: what was checked, as a sentence.
        passed: whether it holds.
        detail: the numbers behind it, or what is wrong.
    """

    check: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class ContractReport:
    """What became of every check of one layer; prints as a table.

    Attributes:
        layer: the layer, as it prints itself.
        input_shape: of one sample.
        device: where it ran.
        findings: one per check.
    """

    layer: str
    input_shape: Shape
    device: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(finding.passed for finding in self.findings)

    def __str__(self) -> str:
        head = f"{self.layer} on {tuple(self.input_shape)}, {self.device}"
        lines = [f"  {'pass' if f.passed else 'FAIL'}  {f.check}: {f.detail}" for f in self.findings]
        return "\n".join([head, *lines])

    __repr__ = __str__


def dense_jacobian(
    function: Callable[[Tensor], Tensor], input_shape: Shape, point: Tensor | None = None
) -> Tensor:
    """(outputs, inputs) in float64 at a point, one row per output by its own backward pass."""
    x = torch.randn(1, *input_shape, dtype=torch.float64, device="cpu") if point is None else point
    jacobian: Tensor = torch.autograd.functional.jacobian(function, x)  # type: ignore[no-untyped-call]
    return jacobian.detach().reshape(-1, x.numel())


def allowed_difference(operator: Operator, shape: Shape, x: Tensor) -> Tensor:
    """How far two computations of the operator on x may be apart, in l2, per sample.

    Each of the two errs by at most the operator's rounding error, which is linear in eps, so that float32 has
    2^29 times that of float64. Numbers that follow from the weights by a few roundings in another order are
    as good as another order of summation, which that error covers: twice again.
    """
    error = operator.to(device="cpu", dtype=torch.float64).rounding_error(shape)
    norms = x.cpu().double().flatten(1).norm(dim=1)
    difference: Tensor = 4 * torch.finfo(x.dtype).eps / EPS * (error.relative * norms + error.absolute)
    return difference


def trained_copy(layer: LipschitzModule, shape: Shape, steps: int = STEPS) -> LipschitzModule:
    """A copy after a few steps of SGD towards random targets, large enough to move every weight."""
    layer = copy.deepcopy(layer).train()
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    x, target = _samples(layer, shape), _samples(layer, layer.output_shape(shape))
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if parameters else None
    for _ in range(steps if optimizer else 0):
        assert optimizer is not None
        optimizer.zero_grad()
        (layer(x) - target).square().sum(dim=tuple(range(1, target.dim()))).mean().backward()
        optimizer.step()
    return layer


def _frozen(layer: LipschitzModule, shape: Shape) -> Operator:
    operator = layer.freeze(shape)
    _require(isinstance(operator, Operator), f"freeze returns {type(operator).__name__}, no operator")
    return operator


def operator_is_the_layer(layer: LipschitzModule, shape: Shape) -> str:
    """Evaluation computes the operator that freeze returns"""
    layer = layer.eval()
    operator, x = _frozen(layer, shape), _samples(layer, shape)
    with torch.no_grad():
        found = layer(x)
        exact = operator.to(device="cpu", dtype=torch.float64).apply(x.cpu().double())
    _require(
        tuple(found.shape[1:]) == operator.output_shape(shape) == layer.output_shape(shape),
        f"shapes differ: forward gives {tuple(found.shape[1:])}, the operator "
        f"{operator.output_shape(shape)}, output_shape {layer.output_shape(shape)}",
    )
    distance = (found.cpu().double() - exact).flatten(1).norm(dim=1)
    return _within("difference", distance, allowed_difference(operator, shape, x))


def bound_holds(layer: LipschitzModule, shape: Shape) -> str:
    """The proved bound is not below the norm of the Jacobian"""
    operator = _frozen(layer, shape)
    jacobian = dense_jacobian(operator.to(device="cpu", dtype=torch.float64).apply, shape)
    norm, bound = float(torch.linalg.matrix_norm(jacobian, 2)), operator.lipschitz_bound(shape)
    text = f"bound {bound:.8g}, Jacobian {norm:.8g}"
    _require(bound >= norm * (1 - 64 * EPS * max(jacobian.shape)), text)
    return text


def gradients_agree(layer: LipschitzModule, shape: Shape) -> str:
    """The gradient in the input is that of the operator"""
    layer = layer.eval()
    operator, x = _frozen(layer, shape), _samples(layer, shape).requires_grad_()
    y = layer(x)
    weights = torch.randn(y.shape, device="cpu", dtype=torch.float64)
    (found,) = torch.autograd.grad(y, x, weights.to(y))
    exact = operator.to(device="cpu", dtype=torch.float64)
    point = x.detach().cpu().double().requires_grad_()
    (expected,) = torch.autograd.grad(exact.apply(point), point, weights.to(y).cpu().double())
    # The adjoint has the norm of the operator, and rounds sums of the outputs in place of the inputs.
    larger = max(1.0, y[0].numel() / x[0].numel())
    distance = (found.cpu().double() - expected).flatten(1).norm(dim=1)
    return _within("difference", distance, larger * allowed_difference(operator, shape, weights.to(x.dtype)))


def nothing_is_remembered(layer: LipschitzModule, shape: Shape) -> str:
    """Evaluation depends on nothing that ran before, unless a buffer holds it"""
    x, twin = _samples(layer, shape), copy.deepcopy(layer).eval()
    with torch.no_grad():
        before, buffers = layer.eval()(x), copy.deepcopy(dict(layer.named_buffers()))
        layer.train()
        for _ in range(3):
            layer(_samples(layer, shape))
        # A running mean is learned in forward passes, and is a buffer.
        learned = any(not torch.equal(buffer, buffers[name]) for name, buffer in layer.named_buffers())
        _require(learned or torch.equal(layer.eval()(x), before), "training forward passes changed it")
        layer.eval()
        for parameter in layer.parameters():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
        twin.load_state_dict(layer.state_dict())
        _require(torch.equal(layer(x), twin(x)), "weights that were changed through .data went unnoticed")
    return operator_is_the_layer(layer, shape)


def copies_agree(layer: LipschitzModule, shape: Shape) -> str:
    """Deepcopy and state_dict carry all of it"""
    x, twin = _samples(layer, shape), copy.deepcopy(layer)
    state = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    with torch.no_grad():
        expected = layer.eval()(x)
        _require(torch.equal(twin.eval()(x), expected), "a deepcopy computes something else")
        for parameter in twin.parameters():
            parameter.add_(0.1)
        twin(x)
        twin.load_state_dict(state)
        _require(torch.equal(twin(x), expected), "a state_dict that was loaded computes something else")
    return "bits agree"


def freezing_is_pure(layer: LipschitzModule, shape: Shape) -> str:
    """Freeze changes nothing, in any mode, and shares no memory"""
    layer = layer.train()
    state = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    numbers = torch.get_rng_state()
    operator = _frozen(layer, shape)
    _require(layer.training, "freeze changed the mode of the layer")
    _require(operator == _frozen(layer.eval(), shape), "training and evaluation mode freeze differently")
    _require(torch.equal(torch.get_rng_state(), numbers), "freeze drew random numbers")
    same = all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())
    _require(same, "freeze changed the state of the layer")
    owned = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers()) if t.numel()}
    held = {array.untyped_storage().data_ptr() for array in operator.arrays() if array.numel()}
    _require(not owned & held, "the operator shares memory with the layer: clone what freeze returns")
    return f"{len(operator.arrays())} arrays of its own"


def gradients_reach_all(layer: LipschitzModule, shape: Shape) -> str:
    """Every parameter gets a finite gradient in training"""
    layer = layer.train()
    y = layer(_samples(layer, shape).requires_grad_())
    y.square().sum().backward()
    names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
    for name in names:
        grad = layer.get_parameter(name).grad
        _require(grad is not None, f"{name} gets none; processes that share gradients would wait for it")
        assert grad is not None
        _require(bool(grad.isfinite().all()), f"that of {name} is not finite")
    return f"{len(names)} parameters"


def training_reads_nothing(layer: LipschitzModule, shape: Shape) -> str:
    """A training step reads nothing back from its device"""
    from torch._subclasses.fake_tensor import FakeTensorMode

    layer, mode = layer.train(), FakeTensorMode()
    x = mode.from_tensor(_samples(layer, shape))
    for module in layer.modules():
        held: list[dict[str, Any]] = [module._parameters, module._buffers, vars(module)]
        for tensors in held:
            fakes = {name: mode.from_tensor(t) for name, t in tensors.items() if isinstance(t, Tensor)}
            tensors.update(fakes)
    try:
        with mode:
            for _ in range(2):
                layer(x.requires_grad_()).sum().backward()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise BrokenContractError(
            f"on tensors without numbers it stops ({type(error).__name__}: {reason}); .item(), float(), "
            "if and data_ptr() make an accelerator wait and cannot be traced"
        ) from error
    return "two steps on tensors without numbers"


def other_shapes_are_refused(layer: LipschitzModule, shape: Shape) -> str:
    """Inputs of another shape are refused by a message"""
    wrong = (shape[0] + 1, *shape[1:])
    try:
        layer.output_shape(wrong)
    except ArgumentError as error:
        return str(error)
    if layer.output_shape(wrong) != layer.output_shape(shape):
        return "every shape is taken"
    raise BrokenContractError(f"output_shape takes {wrong} and says nothing")


Check = Callable[[LipschitzModule, Shape], str]
CHECKS: tuple[Check, ...] = (
    operator_is_the_layer,
    bound_holds,
    gradients_agree,
    nothing_is_remembered,
    copies_agree,
    freezing_is_pure,
    gradients_reach_all,
    training_reads_nothing,
    other_shapes_are_refused,
)


def contract(
    layer: nn.Module, input_shape: Shape, *, device: torch.device | str | None = None
) -> ContractReport:
    """Check from the outside that a layer keeps the contract of `LipschitzModule`, and report what fails.

    Each check runs on a copy of the layer as it is, and on one after a few steps of training, in float64 if
    the device has it. The layer itself is left alone. These are the checks that lipcert's tests run on its
    own layers.

    Args:
        layer: any `LipschitzModule`: a convolution, an activation, a head, or one of your own.
        input_shape: shape of one sample, small: a Jacobian is written out as a matrix.
        device: where to run; by default where the layer is.

    Returns:
        a report that prints one line per check; `report.passed` says whether all of them hold.

    >>> import lipcert as lc
    >>> lc.contract(lc.MaxMin(), (4, 2, 2)).passed
    True
    """
    if not isinstance(layer, LipschitzModule):
        raise ArgumentError(
            f"layer: expected a LipschitzModule, got {type(layer).__name__}; docs/add-a-layer.md shows one"
        )
    try:
        shape = tuple(map(python.index, input_shape))
    except TypeError as error:
        raise ArgumentError(
            f"input_shape: expected integers such as (4, 8, 8), got {input_shape!r}"
        ) from error
    layer = copy.deepcopy(layer).to(device)
    if not any(t.is_floating_point() for t in (*layer.parameters(), *layer.buffers())):
        # Checks take precision and device from the layer, also from one without numbers.
        layer.register_buffer("place", torch.empty(0, device=device or "cpu"), persistent=False)
    where = next(str(t.device) for t in (*layer.parameters(), *layer.buffers()))
    with torch.random.fork_rng(devices=[]), without_tf32():
        torch.manual_seed(0)
        findings = tuple(_find(check, layer, shape) for check in CHECKS)
    return ContractReport(_one_line(layer), shape, where, findings)


def _one_line(layer: nn.Module) -> str:
    """A layer as it prints itself, its parts too, on one line.

    >>> from lipcert.nn.heads import OrthogonalHead
    >>> _one_line(OrthogonalHead(6, 4, method="cayley"))
    "OrthogonalHead(6, 4 (linear): OrthogonalLinear(6, 4, method='cayley'))"
    """
    return " ".join(str(layer).split()).replace("( ", "(").replace(" )", ")")


def _find(check: Check, layer: LipschitzModule, shape: Shape) -> Finding:
    """Run one check on the layer as it is and on a trained one; the first thing that fails counts."""
    name = (check.__doc__ or check.__name__).partition("\n")[0]
    detail = ""
    for trained in (False, True):
        moment = " after training" if trained else ""
        try:
            detail = check(trained_copy(_exact(layer), shape) if trained else copy.deepcopy(layer), shape)
        except BrokenContractError as error:
            return Finding(name, False, f"{error}{moment}")
        except Exception as error:
            first = str(error).partition("\n")[0]
            return Finding(name, False, f"it raised {type(error).__name__}{moment}: {first}")
    return Finding(name, True, detail)


def _exact(layer: LipschitzModule) -> LipschitzModule:
    """A copy in float64, which Apple's GPUs do not have."""
    layer = copy.deepcopy(layer)
    return layer if _samples(layer, ()).device.type == "mps" else layer.double()


def _samples(layer: LipschitzModule, shape: Shape) -> Tensor:
    """A few random samples in the precision and on the device of the layer."""
    tensors = [t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()]
    like = tensors[0] if tensors else torch.empty(0, device="cpu")
    return torch.randn(SAMPLES, *shape, device="cpu").to(like.device, like.dtype)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenContractError(message)


def _within(name: str, found: Tensor, allowed: Tensor) -> str:
    text = f"{name} {float(found.max()):.2g}, allowed {float(allowed.max()):.2g}"
    _require(bool((found <= allowed).all()), text)
    return text
