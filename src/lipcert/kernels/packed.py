"""Products with a large constant matrix, kept in the order in which oneDNN reads it.

BLAS puts the matrix into such an order in every product again. In float32 on a processor with AVX-512 a batch
takes 0.75 to 0.85 of the time, from two vectors on. The price is a second copy of the matrix.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.kernels.constants import may_be_kept
from lipcert.kernels.functions import OfSamples
from lipcert.kernels.precision import working_dtype

LEAST_ENTRIES = 2**20
"""Smaller matrices stay in the cache, and calls are what costs."""


class Packed:
    """The matrix (outputs, inputs) in that order; opaque, and not a tensor to torch.func."""

    def __init__(self, weight: Tensor) -> None:
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """W x + b without gradient."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.matrix, bias, "none", [], "")
        return result


def packing_pays(x: Tensor, weight: Tensor) -> bool:
    """Whether this product is faster so, and nothing has to look inside; compilers pack by themselves."""
    if torch.compiler.is_compiling() or weight.requires_grad or weight.numel() < LEAST_ENTRIES:
        return False
    if not (weight.device.type == "cpu" and weight.dtype == x.dtype == working_dtype(x) == torch.float32):
        return False
    return may_be_kept() and x.dim() == 2 and len(x) > 1 and packing_is_at_hand()


def packing_is_at_hand() -> bool:
    """Whether oneDNN runs with AVX-512."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return wide and torch._C._get_mkldnn_enabled() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Packed) -> Tensor:
    """W x + b on vectors (N, inputs)."""
    result: Tensor = _PackedLinear.apply(x, weight, bias, packed)  # type: ignore[no-untyped-call]
    return result


class _PackedLinear(OfSamples):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Packed) -> Tensor:
        return packed.product(x.contiguous(), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        (weight,) = ctx.saved_tensors
        return F.linear(grad, weight.T) if ctx.needs_input_grad[0] else None, None, None, None
