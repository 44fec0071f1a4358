"""One affine function per channel: how pixels are normalised."""

import math
from dataclasses import dataclass

from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.operators.operator import Operator, RoundingError, Shape
from lipcert.proofs.rounding import TINY, UNIT, frobenius_upper_bound, gamma, product_up, sqrt_up, sum_up


@dataclass(frozen=True, eq=False, repr=False)
class ChannelAffine(Operator):
    """y = (x - mean) / std, with one mean and one std per channel.

    Guarantee: Lipschitz constant 1 / min |std|, rounded up unless it is exact.

    Args:
        mean: (C,), finite.
        std: (C,), finite and not zero.
    """

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        if self.mean.dim() != 1 or self.mean.shape != self.std.shape:
            raise ArgumentError(
                f"mean, std: expected one number per channel each, got shapes {tuple(self.mean.shape)} and "
                f"{tuple(self.std.shape)}"
            )
        if not bool((self.std != 0).all()) or not bool(
            self.mean.isfinite().all() & self.std.isfinite().all()
        ):
            raise ArgumentError("std: expected finite numbers that are not zero")

    def apply(self, x: Tensor) -> Tensor:
        """Subtract and divide."""
        column = (1, -1, *(1,) * (x.dim() - 2))
        return (x - self.mean.view(column)) / self.std.view(column)

    def output_shape(self, input_shape: Shape) -> Shape:
        """The input's own."""
        if len(input_shape) not in (1, 3) or input_shape[0] != len(self.mean):
            raise self._refuse(f"{len(self.mean)} channels", input_shape)
        return tuple(input_shape)

    def lipschitz_bound(self, input_shape: Shape) -> float:
        """1 / min |std|."""
        self.output_shape(input_shape)
        smallest = float(self.std.abs().min())
        is_power_of_two = math.frexp(smallest)[0] == 0.5
        return 1 / smallest if is_power_of_two else math.nextafter(1 / smallest, math.inf)

    def rounding_error(self, input_shape: Shape) -> RoundingError:
        """Two roundings per entry, of a result of norm at most L ||z|| + ||mean / std||."""
        ratios = (self.mean.double() / self.std.double()).unsqueeze(0)
        pixels = math.prod(input_shape[1:])
        offset = product_up(frobenius_upper_bound(ratios), 1 + 8 * UNIT, sqrt_up(pixels))
        norm = self.lipschitz_bound(input_shape)
        return RoundingError(product_up(gamma(3), norm), sum_up(product_up(gamma(3), offset), TINY))
