"""CUDA tensors without a GPU: torch's fake tensors, a watch on every operation, a backward pass by hand."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lipcert
from lipcert.kernels import constants
from lipcert.operators.operator import Operator


class WrongPlaceError(AssertionError):
    """An operation touched what a training step on a GPU must not."""


class Watch(TorchDispatchMode):
    """Fails at the first operation on the CPU, and at the first float64.

    A number that is read from a tensor stops fake tensors themselves.

    Numbers that torch itself wraps are tensors on the CPU without axes, and reach a kernel as an argument.
    What is made of sizes alone is made once in a process, on the CPU in float64 (`constants.constant`), and
    then kept; fake tensors are not, so it is made at every call here, and let through.

    Args:
        double: float64 is what is wanted, as in certificates.
        answers: answer every read with "no", and remember who asked in `readers`; let power iterations start
            from numbers that are drawn on the CPU.
    """

    def __init__(self, *, double: bool = False, answers: bool = False) -> None:
        super().__init__()
        self.double, self.answers = double, answers
        self.readers: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.answers and func in READS:
            self.readers.add(_reader())
            return False
        result = func(*args, **(kwargs or {}))
        if _is_constant() or (self.answers and _is_start()):
            return result
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for tensor in [*inputs, *(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))]:
            if tensor.device.type != "cuda" and (tensor.dim() or func is torch.ops.aten._to_copy.default):
                raise WrongPlaceError(f"{func} has a tensor {tuple(tensor.shape)} on {tensor.device}")
            if tensor.device.type == "cuda" and tensor.dtype in WIDE and not self.double:
                raise WrongPlaceError(f"{func} has a tensor {tuple(tensor.shape)} of {tensor.dtype}")
        return result


WIDE = (torch.float64, torch.complex128)
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
PACKAGE = str(Path(lipcert.__file__).parent)


def _callers() -> Iterator[CodeType]:
    """The functions of lipcert on the stack, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            yield frame.f_code
        frame = frame.f_back  # type: ignore[assignment]


def _is_constant() -> bool:
    """Whether a constant is being made or asked for."""
    return any(code.co_filename == constants.__file__ for code in _callers())


def _is_start() -> bool:
    """Whether a vector is being drawn that a power iteration starts from."""
    return any(code.co_name == "start_vector" for code in _callers())


def _reader() -> str:
    """The function of lipcert that reads a number."""
    return next((code.co_qualname for code in _callers()), "")


def moved(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The module with fake CUDA tensors in place of its parameters, buffers and attributes."""
    for part in module.modules():
        held: list[dict[str, Any]] = [part._parameters, part._buffers, vars(part)]
        for tensors in held:
            for name, tensor in tensors.items():
                if isinstance(tensor, Tensor):
                    tensors[name] = on_cuda(tensor, mode)
    return module


def moved_operator(operator: Operator, mode: FakeTensorMode) -> Operator:
    """A copy of the operator with fake CUDA tensors; its own checks read numbers and are passed by."""
    operator = copy.copy(operator)
    for entry in fields(operator):
        value = getattr(operator, entry.name)
        if isinstance(value, Tensor):
            value = on_cuda(value, mode)
        elif isinstance(value, tuple):
            value = tuple(moved_operator(v, mode) if isinstance(v, Operator) else v for v in value)
        object.__setattr__(operator, entry.name, {} if entry.name == "_made" else value)
    return operator


def on_cuda(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """A fake CUDA tensor with the shape, strides and dtype of a real one; a parameter stays one."""
    with mode, torch.no_grad():
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad)


@contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    """What `torch.autocast("cuda", dtype)` does, which refuses to where there is no GPU; float32 is none."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", dtype != torch.float32)
    torch.set_autocast_dtype("cuda", torch.bfloat16 if dtype == torch.float32 else dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if not torch.autocast_decrement_nesting():
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def backward(loss: Tensor) -> dict[Tensor, Tensor]:
    """Gradients of all leaves, node by node in Python: torch's engine has no thread for a device that is not
    there.

    As the engine does, it gives every gradient the shape and dtype of what it belongs to, and refuses one on
    another device.
    """
    assert loss.grad_fn is not None
    waiting: dict[Any, int] = {}
    stack = [loss.grad_fn]
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None:
                if following not in waiting:
                    stack.append(following)
                waiting[following] = waiting.get(following, 0) + 1
    arrived: dict[Any, dict[int, Tensor]] = {loss.grad_fn: {0: torch.ones_like(loss)}}
    ready, grads = [loss.grad_fn], {}
    while ready:
        node = ready.pop()
        held = arrived.pop(node, {})
        for place, grad in held.items():
            held[place] = _checked(node, place, grad)
        if hasattr(node, "variable"):
            if held:
                grads[node.variable] = held[0]
            continue
        following = [(other, place) for other, place in node.next_functions if other is not None]
        for (other, place), grad in zip(following, _call(node, held), strict=True):
            if grad is not None:
                sums = arrived.setdefault(other, {})
                sums[place] = sums[place] + grad if place in sums else grad
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return grads


def _call(node: Any, held: dict[int, Tensor]) -> list[Tensor | None]:
    """The gradients that a node makes of those that reached it, one for each node that it leads to."""
    if not held:
        return [None for other, _ in node.next_functions if other is not None]
    arguments = [held.get(place) for place in range(len(node._input_metadata))]
    with torch.no_grad():
        if isinstance(node, BackwardCFunction):
            made = node.apply(*arguments)
            made = made if isinstance(made, tuple) else (made,)
            return [grad for grad, needed in zip(made, node.needs_input_grad, strict=True) if needed]
        made = node(*arguments)
    made = made if isinstance(made, tuple) else (made,)
    return [grad for grad, (other, _) in zip(made, node.next_functions, strict=True) if other is not None]


def _checked(node: Any, place: int, grad: Tensor) -> Tensor:
    expected = node._input_metadata[place]
    assert grad.device == expected.device, f"{node.name()} gets {grad.device} for {expected.device}"
    return grad.sum_to_size(tuple(expected.shape)).to(expected.dtype)
