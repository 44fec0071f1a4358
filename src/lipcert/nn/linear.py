"""Linear layers with orthonormal rows or columns."""

import copy
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive, choose
from lipcert.kernels.cayley import cayley_transform
from lipcert.kernels.eager import eager
from lipcert.kernels.orthogonalize import polar_factor, rotation
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.nn.bias import copied_bias, new_bias
from lipcert.nn.cache import WeightCache
from lipcert.nn.contract import LipschitzModule
from lipcert.nn.determined import refuse_large_scale, refuse_undetermined
from lipcert.operators.linear import Matrix
from lipcert.operators.operator import Shape

METHODS = ("soc", "bjorck", "cayley")


class OrthogonalLinear(LipschitzModule):
    r"""Linear layer y = Q x + b with orthonormal rows (columns, if it has more outputs than inputs).

    How Q follows from `weight`, W:

    - "soc": the first rows and columns of exp(A / ||A||), A = (W - W^T) / 2, W of size max(in, out);
    - "bjorck": the polar factor W (W^T W)^(-1/2), which Bjorck's iteration converges to;
    - "cayley": the Cayley transform of scale * W / ||W||_F, with a learnable scale, at first ||W||_F.

    Guarantee: orthonormal to `orthogonality_error`; `lipschitz_bound` is proved for the matrix itself.

    Args:
        in_features: length of the input.
        out_features: length of the output.
        method: "soc", "bjorck" or "cayley".
        bias: add a learnable bias, uniform in +-1/sqrt(in_features) at first.

    Shape:
        (..., in_features) -> (..., out_features)

    >>> layer = OrthogonalLinear(4, 2, method="bjorck")
    >>> (layer.matrix() @ layer.matrix().T).detach().round(decimals=4).abs().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        method: Literal["soc", "bjorck", "cayley"] | str = "soc",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.method = choose("method", method, METHODS)
        self.cache = WeightCache()
        self.scale: nn.Parameter | None = None
        limit = in_features**-0.5
        if method == "soc":
            size = max(in_features, out_features)
            self.weight = nn.Parameter(torch.randn(size, size, device=device, dtype=dtype) * size**-0.5)
        else:
            weight = torch.empty(out_features, in_features, device=device, dtype=dtype).uniform_(
                -limit, limit
            )
            if method == "bjorck":
                weight = polar_factor(at_least_single(weight)).to(weight.dtype).contiguous()
            else:
                self.scale = nn.Parameter(torch.linalg.vector_norm(weight))
            self.weight = nn.Parameter(weight)
        self.bias = new_bias(out_features, limit, device, dtype) if bias else None

    @property
    def orthogonality_error(self) -> float:
        """Largest |s - 1| over the singular values s of Q; measured with a margin: 2 (8 + sqrt(c)) eps.

        For "cayley" times (1 + a)^2 with a the norm of scale * W / ||W||_F, since the inverse in the
        transform has a condition number of at most 1 + 2 a + a^2.
        """
        error = 2 * (8 + max(self.in_features, self.out_features) ** 0.5) * torch.finfo(self.weight.dtype).eps
        if self.scale is not None:
            scaled = self._scaled_weight().detach().double()
            norm = torch.linalg.matrix_norm(scaled, 2) if scaled.isfinite().all() else math.inf
            error *= (1 + float(norm)) ** 2
        return float(error)

    def matrix(self, *, any_condition: bool = True) -> Tensor:
        """Q, (out_features, in_features), as a function of the weights.

        Args:
            any_condition: as `polar_factor` takes it; a training step reads nothing back from its device.
        """
        with without_autocast(self.weight):
            weight = at_least_single(self.weight)
            if self.method == "soc":
                matrix = rotation(weight, self.out_features, self.in_features)
            elif self.scale is None:
                matrix = polar_factor(weight, any_condition=any_condition)
            else:
                matrix = cayley_transform(self._scaled_weight())
            return matrix.to(self.weight.dtype)

    @eager
    def forward(self, x: Tensor) -> Tensor:
        """Map vectors (..., in_features) to (..., out_features)."""
        if not x.is_floating_point():
            raise ArgumentError(f"OrthogonalLinear: expected floating point input, got {x.dtype}")
        self.output_shape(tuple(x.shape[-1:]))
        trainable = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        if self.training or trainable:
            return F.linear(x, self.matrix(any_condition=not self.training), self.bias)
        weights = (self.weight,) if self.scale is None else (self.weight, self.scale)
        return F.linear(x, self.cache.get(weights, self._constant_matrix), self.bias)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(out_features,); raises unless the input is a vector of in_features."""
        if input_shape != (self.in_features,):
            raise ArgumentError(
                f"OrthogonalLinear: expected vectors of {self.in_features} features, "
                f"got shape {tuple(input_shape)}"
            )
        return (self.out_features,)

    def freeze(self, input_shape: Shape) -> Matrix:
        """The finished matrix and the bias."""
        self.output_shape(input_shape)
        if self.method == "bjorck":
            refuse_undetermined(self, self.weight)
        elif self.method == "cayley":
            refuse_large_scale(self, copy.deepcopy(self).double().orthogonality_error)
        return Matrix(self._constant_matrix().contiguous(), copied_bias(self.bias))

    def extra_repr(self) -> str:
        """The arguments, in the form of `nn.Linear`."""
        text = f"{self.in_features}, {self.out_features}, method={self.method!r}"
        return text if self.bias is not None else f"{text}, bias=False"

    def _scaled_weight(self) -> Tensor:
        """The matrix scale * W / ||W||_F that the Cayley transform takes."""
        assert self.scale is not None
        weight = at_least_single(self.weight)
        norm = torch.linalg.vector_norm(weight).clamp_min(torch.finfo(weight.dtype).tiny)
        scaled: Tensor = weight * (at_least_single(self.scale) / norm)
        return scaled

    def _constant_matrix(self) -> Tensor:
        # A tensor made in inference mode could not take part in a later attack's backward pass.
        with torch.inference_mode(False), torch.no_grad():
            return self.matrix()
