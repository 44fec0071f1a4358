"""BRO: convolutions by a block reflector at every spatial frequency."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.kernels.reflector import block_reflector
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import LipschitzConv2d
from lipcert.nn.determined import refuse_undetermined
from lipcert.nn.frequencies import apply_matrices, freeze_matrices, kernel_matrices
from lipcert.operators.operator import Operator
from lipcert.operators.rearrange import Frame
from lipcert.operators.tree import Sequence


@register_convolution("bro")
class BRO(LipschitzConv2d):
    r"""Convolution whose Fourier coefficients are block reflectors, on a map with a frame of zeros.

        Y(w) = (I - 2 V(w) (V(w)^H V(w))^-1 V(w)^H) X(w)     for every frequency w of the framed map,

    with V(w) the Fourier transform of `weight`, which has c = max(stride^2 in, out) rows and `rank` columns;
    of the reflector the first `out` rows and `in` columns are used. A map is framed by k // 2 rows and
    columns of zeros, transformed, and cropped back. With stride 2 a 3 x 3 kernel becomes 1 x 1 after the
    space-to-depth. A 1 x 1 kernel is the same matrix at every frequency: it needs no frame and no Fourier
    transform. The length of the kernel does not matter.

    Guarantee: 1-Lipschitz on every map. A frame and an orthogonal map keep lengths, but cropping loses what
    has moved into the frame, so the Jacobian has orthonormal rows or columns only if the kernel is 1 x 1.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1 or 3.
        stride: 1, or 2 for a 2 x 2 space-to-depth in front.
        bias: add a learnable bias per output channel.
        rank: columns of V, half of c if None; c // 8 is cheaper.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    Raises:
        ArgumentError: the rank is larger than c.

    >>> layer = BRO(3, 8, 3)
    >>> layer, layer(torch.zeros(1, 3, 7, 5)).shape
    (BRO(3, 8, kernel_size=3, stride=1, rank=4), torch.Size([1, 8, 7, 5]))

    Reference: B.-H. Lai et al., ICML 2025.
    """

    kernel_sizes = (1, 3)
    matrices: ClassVar = {"weight": "kernel"}
    head_method = "bjorck"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        rank: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, bias=bias, device=device, dtype=dtype
        )
        self.rank = max(1, self.channels // 2) if rank is None else rank
        check_positive(rank=self.rank)
        if self.rank > self.channels:
            raise ArgumentError(f"rank: expected at most {self.channels}, as many as channels, got {rank}")
        taps = kernel_size if stride == 1 else 1
        weight = torch.randn(self.channels, self.rank, taps, taps, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight / (self.channels**0.5 * taps))

    @property
    def margin(self) -> int:
        """Rows and columns of zeros on each side of the map."""
        return self.weight.shape[-1] // 2

    def spectrum(self, height: int, width: int) -> Tensor:
        """(F, out, stride^2 in), a matrix per frequency of `rfft2` on the framed map; only one, (out,
        stride^2 in), if the kernel is 1 x 1.
        """
        with without_autocast(self.weight):
            return block_reflector(self._vectors(height, width), self.out_channels, self.map_channels)

    def transform(self, x: Tensor) -> Tensor:
        """Frame the map, multiply every Fourier coefficient, or every pixel, by its matrix, and crop."""
        size = (x.shape[2], x.shape[3])
        matrices = self.derived(lambda: self.spectrum(*size), size)
        framed = F.pad(x, (self.margin,) * 4) if self.margin else x
        y = apply_matrices(framed, matrices, self.weight.dtype)
        return F.pad(y, (-self.margin,) * 4) if self.margin else y

    def freeze_transform(self, height: int, width: int) -> Operator:
        """The finished matrices between two frames, or one for all pixels if the kernel is 1 x 1."""
        refuse_undetermined(self, self._vectors(height, width))
        size = (height + 2 * self.margin, width + 2 * self.margin)
        operator = freeze_matrices(self.spectrum(height, width), self.weight.dtype, self.frozen_bias(), size)
        if not self.margin:
            return operator
        return Sequence.of(Frame(self.margin), operator, Frame(-self.margin))

    def _vectors(self, height: int, width: int) -> Tensor:
        """V of every frequency."""
        size = (height + 2 * self.margin, width + 2 * self.margin)
        return kernel_matrices(at_least_single(self.weight), *size)

    def extra_repr(self) -> str:
        """The arguments, in the order and form of `nn.Conv2d`."""
        return f"{super().extra_repr()}, rank={self.rank}"
