"""Skew orthogonal convolution."""

import hashlib
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError, NotProvedError, choose
from lipcert.kernels.series import SERIES, Family, Series
from lipcert.kernels.skew import Pivot, SkewOperator
from lipcert.kernels.skew_norms import (
    CONVERGED_ITERATIONS,
    TRAINING_ITERATIONS,
    kernel_norm_estimate,
    kernel_norm_vectors,
    operator_norm_estimate,
    start_vector,
)
from lipcert.kernels.taps import skew_taps
from lipcert.nn.carried import CarriesVector
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import OrthogonalConv2d
from lipcert.operators.operator import Shape
from lipcert.operators.skew import SkewPolynomial
from lipcert.proofs.rounding import times_power_of_two

CHECK_ITERATIONS, SETTLED = 20, 1.04
"""A second estimate of the norm, by so few iterations, may exceed the first one by this factor at most: SOC's
polynomials leave a twentieth of their interval free."""


def _quotient(target: float, norm: Tensor) -> Tensor:
    """Target over norm; a skew operator that is zero (of one channel, say) needs no scale."""
    return target / torch.where(norm > 0, norm, target)


@register_convolution("soc")
class SOC(CarriesVector, OrthogonalConv2d):
    r"""Orthogonal convolution as a polynomial in a skew-symmetric one, with zero padding.

    .. math:: y = p(A) x + b, \qquad A = \frac{r}{\mathrm{norm}(S)} S, \quad S^T = -S

    The operator works on c = max(stride^2 in_channels, out_channels) channels: the input is padded with zero
    channels, the first out_channels are kept. For skew A the matrix p(A) is normal with eigenvalues p(iy),
    |y| <= ||A||, so it is orthogonal exactly as far as |p(iy)| = 1.

    - ``series="isometric"``: p has the lowest degree that makes |p(iy)| close to 1 on the interval, with
      max |p(iy)| = 1 and a phase that may drift from y. S is scaled by its norm on maps of the input's size.
      Evaluation has a higher degree than training, and turns by the same angles to within 0.05.
    - ``series="wide"``: the same on a longer interval, by one degree more: the layer can turn by larger
      angles, learns more per epoch, and takes half as long again.
    - ``series="exponential"``: p is the exponential, as in the paper: S is scaled to 0.7 (k > 1) or 1 (k = 1)
      times the smallest norm of its kernel's four matrix reshapes. In evaluation p is within 2.42e-6 of exp;
      in training a lower degree is used whose error for k > 1 is no larger than that of the paper's five
      Taylor terms.

    Guarantee:
        `lipschitz_bound` is proved, in evaluation and under zero padding, for the weights at hand. It is 1,
        because every evaluation polynomial has max |p(iy)| <= 1 on the interval that it is made for, or above
        1 by some 1e-5, where the norm of A can be proved only beyond that interval.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1, 3 or 5.
        stride: 1 or 2; stride 2 is a 2x2 space-to-depth first.
        bias: add a learnable bias per output channel.
        series: "isometric", "wide" or "exponential".

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    Example:
        >>> layer = SOC(3, 8, 3, stride=2).eval()
        >>> layer(torch.rand(2, 3, 6, 4)).shape
        torch.Size([2, 8, 3, 2])

    Paper: section 3 (problem setup); Singla and Feizi, Skew Orthogonal Convolutions, ICML 2021.
    """

    kernel_sizes = (1, 3, 5)
    matrices: ClassVar = {"weight": "taps"}

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        series: str = "isometric",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, bias=bias, device=device, dtype=dtype
        )
        self.series = choose("series", series, SERIES)
        c, taps = self.channels, (kernel_size**2 + 1) // 2
        self.weight = nn.Parameter(torch.randn(taps, c, c, device=device, dtype=dtype) * c**-0.5)
        # Where the power iteration of the last training step ended; evaluation never reads it. It has the
        # shape of the maps, which the first step tells.
        self.vector = self.weight.detach().new_empty(0)

    @property
    def family(self) -> Family:
        """The polynomials of the chosen series, and how their argument is scaled."""
        return SERIES[self.series]

    @property
    def evaluation_series(self) -> Series:
        """The polynomial that runs in evaluation mode, and in certificates."""
        return self.family.evaluation[self.kernel_size]

    @property
    def training_series(self) -> Series:
        """The polynomial that runs in training mode."""
        return self.family.training[self.kernel_size]

    @property
    def orthogonality_error(self) -> float:
        """Largest | |p(iy)| - 1 | on the interval that the scaled operator's norm stays in."""
        return self.evaluation_series.modulus_error

    def transform(self, x: Tensor) -> Tensor:
        """p(A) x on (N, map_channels, H, W)."""
        kind = x.device.type
        autocast = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocast else self.weight.dtype
        if x.dtype != dtype and not autocast:
            raise ArgumentError(f"SOC: expected {dtype} input, as its weights are, got {x.dtype}")
        height, width = x.shape[2:]
        if self.weights_are_constant():
            key = (height, width, dtype)
            operator = self.cache.get((self.weight,), lambda: self._evaluation_operator(*key), key)
        elif self.training:
            operator = self._training_operator(height, width, dtype)
        else:
            operator = self._evaluation_operator(height, width, dtype)
        series = self.training_series if self.training else self.evaluation_series
        return operator.series(x.to(dtype), series.coefficients, self.out_channels)

    def _evaluation_operator(self, height: int, width: int, dtype: torch.dtype) -> SkewOperator:
        """A on maps of one size, a function of the weights alone."""
        operator, _ = self._scale(self._unscaled(height, width), CONVERGED_ITERATIONS)
        if dtype == self.weight.dtype:
            return operator
        taps, pivot = operator.taps.to(dtype), operator.pivot
        if pivot is not None:
            pivot = (pivot[0].to(dtype), pivot[1].to(dtype), pivot[2])
        return SkewOperator(taps, height, width, scale=operator.scale, pivot=pivot)

    def _unscaled(self, height: int, width: int) -> SkewOperator:
        # The layer does not depend on the size of its weights, but squares of very large ones would overflow.
        largest = self.weight.detach().abs().amax()
        weight = self.weight / torch.where(largest > 0, largest, 1.0)
        return SkewOperator(skew_taps(weight), height, width)

    def _training_operator(self, height: int, width: int, dtype: torch.dtype) -> SkewOperator:
        """The same with few power iterations from where the last step ended, and many at the first step.

        Their number is fixed: to stop early would be to wait for an accelerator in every iteration.
        """
        operator = SkewOperator(skew_taps(self.weight, dtype), height, width)
        if self.vector.shape == self._vector_shape(height, width):
            scaled, vector = self._scale(operator, TRAINING_ITERATIONS, self.vector, stop_early=False)
        else:
            scaled, vector = self._scale(operator, CONVERGED_ITERATIONS, stop_early=False)
        self.carry(vector.to(self.weight.dtype))
        return scaled

    def _scale(
        self,
        operator: SkewOperator,
        iterations: int,
        vector: Tensor | None = None,
        *,
        stop_early: bool = True,
    ) -> tuple[SkewOperator, Tensor]:
        """The scaled operator, and the vector that its norm was found by."""
        scale, vector, pivot = self._found_scale(operator, iterations, vector, stop_early=stop_early)
        return operator.scaled(scale, pivot), vector

    def _found_scale(
        self,
        operator: SkewOperator,
        iterations: int,
        vector: Tensor | None = None,
        *,
        stop_early: bool = True,
    ) -> tuple[Tensor, Tensor, Pivot | None]:
        """What the operator is to be multiplied by, the vector that its norm was found by, and the pivot."""
        target = self.family.target[self.kernel_size]
        start = self._start(operator) if vector is None else vector
        if self.family.by_operator_norm:
            pivot = operator_norm_estimate(operator, start, iterations, stop_early=stop_early)
            return _quotient(target, pivot[2]), pivot[0], pivot
        norm, vector = kernel_norm_estimate(operator.taps, start, iterations, stop_early=stop_early)
        return _quotient(target, norm), vector, None

    def _settled_scale(self, height: int, width: int) -> float:
        """The scale of evaluation mode, as a number.

        Raises for weights whose largest singular vectors are orthogonal to the start of the iteration. There
        the scale rests on rounding errors, and another machine would find another one. A second start is
        drawn by a hash of the weights, which no weights can be made to be orthogonal to.
        """
        operator = self._unscaled(height, width)
        scale = float(self._found_scale(operator, CONVERGED_ITERATIONS)[0])
        content = self.weight.detach().cpu().double().contiguous().numpy().data
        seed = int.from_bytes(hashlib.sha256(content).digest()[:7], "big")
        start = self._start(operator, seed)
        if scale > SETTLED * float(self._found_scale(operator, CHECK_ITERATIONS, start)[0]):
            raise NotProvedError(
                "SOC has weights whose norm the power iteration does not find, which leave open how they are "
                "scaled; train it again"
            )
        return scale

    def _start(self, operator: SkewOperator, seed: int = 0) -> Tensor:
        if self.family.by_operator_norm:
            return start_vector(self.weight, *self._vector_shape(operator.height, operator.width), seed=seed)
        return kernel_norm_vectors(self.weight, self.channels, self.kernel_size, seed=seed)

    def _vector_shape(self, height: int, width: int) -> Shape:
        if self.family.by_operator_norm:
            return (1, self.channels, height, width)
        return (self.channels * self.kernel_size * (self.kernel_size + 1),)

    def freeze_transform(self, height: int, width: int) -> SkewPolynomial:
        """The polynomial, with the taps as they were trained and the scale as a number beside them."""
        scale = self._settled_scale(height, width)
        weight = self.weight.detach()
        largest = float(weight.abs().amax())
        if not math.isfinite(largest):
            raise NotProvedError("SOC: its weights are not finite; the model diverged or is damaged")
        # A power of two keeps the digits of the weights, and products with the factors far from overflow.
        exponent = math.frexp(largest)[1] if largest else 0
        weight = times_power_of_two(weight, -exponent)
        factor = scale / (math.ldexp(largest, -exponent) if largest else 1.0)
        upper = torch.triu_indices(self.channels, self.channels, offset=1, device=weight.device)
        return SkewPolynomial(
            centre=((weight[0] - weight[0].T) / 2)[tuple(upper)],
            taps=weight[1:].clone(),
            centre_factor=math.sqrt(2) * factor,
            factor=factor,
            coefficients=self.evaluation_series.coefficients,
            in_channels=self.map_channels,
            out_channels=self.out_channels,
            bias=self.frozen_bias(),
        )

    def extra_repr(self) -> str:
        """The arguments, in the order and form of `nn.Conv2d`."""
        return f"{super().extra_repr()}, series={self.series!r}"
