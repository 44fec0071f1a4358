"""AOC: orthogonal convolutions by an explicit kernel, with stride, groups and dilation."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive
from lipcert.kernels.aoc import grouped_kernel
from lipcert.kernels.circular import circular_conv2d
from lipcert.kernels.orthogonalize import orthonormal_basis, polar_factor
from lipcert.kernels.precision import at_least_single, without_autocast
from lipcert.nn.contract import register_convolution
from lipcert.nn.convolution import OrthogonalConv2d
from lipcert.nn.determined import refuse_undetermined
from lipcert.operators.convolution import CircularConvolution


@register_convolution("aoc")
class AOC(OrthogonalConv2d):
    r"""Orthogonal convolution with one explicit kernel, strided, grouped or dilated, with circular padding.

        y = R F_n ... F_1 E x   at stride 2,    n = 2 (k - 2),
        y = F_n ... F_1 H x   or   H F_n ... F_1 x   at stride 1,   n = 2 (k - 1),

    with the half-shifts F_j = I - P_j + P_j S_j of `BCOP` on c channels. R reads every 2 x 2 patch of pixels
    once; `weight` holds it, or H at stride 1. At stride 2 c = max(in, out // 4), and E embeds the channels of
    the input, if there are fewer; `entry` holds it. All of it is one k x k kernel, which is convolved with
    the stride: a quarter of the products of a 3 x 3 kernel behind a space-to-depth. A 1 x 1 kernel at stride
    2 would read a quarter of the pixels, so it comes behind a space-to-depth, as elsewhere.

    Guarantee: the Jacobian has orthonormal rows or columns on every map, to `orthogonality_error`, for any
    weights.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: 1, 3 or 5.
        stride: 1 or 2.
        bias: add a learnable bias per output channel.
        groups: splits input and output channels into so many groups, each with a kernel of its own.
        dilation: pixels from one tap to the next; odd at stride 2, where an even one reads pixels twice.

    Shape:
        (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride)

    Raises:
        ArgumentError: groups that do not divide the channels, or a dilation that the stride does not allow.

    >>> layer = AOC(4, 8, 3, stride=2, groups=2)
    >>> layer, layer(torch.zeros(1, 4, 32, 32)).shape
    (AOC(4, 8, kernel_size=3, stride=2, groups=2), torch.Size([1, 8, 16, 16]))

    Reference: T. Boissin et al., 2025; see `lipcert.kernels.aoc`.
    """

    kernel_sizes = (1, 3, 5)
    matrices: ClassVar = {"weight": "stack", "bases": "stack", "entry": "stack"}
    head_method = "bjorck"
    bases: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        bias: bool = True,
        groups: int = 1,
        dilation: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride=stride, bias=bias, device=device, dtype=dtype
        )
        check_positive(groups=groups, dilation=dilation)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"groups: expected a divisor of {in_channels} and {out_channels} channels, got {groups}"
            )
        if stride == 2 and kernel_size > 1 and dilation % 2 == 0:
            raise ArgumentError(
                f"dilation: expected an odd one at stride 2, got {dilation}; half of the pixels would be "
                "read by no tap"
            )
        self.groups, self.dilation = groups, dilation
        inputs, outputs = self.map_channels // groups, out_channels // groups
        channels = max(inputs, outputs // 4 if self.strided else outputs)
        shape = (groups, outputs, 4 * channels if self.strided else inputs)
        count = 2 * (kernel_size - stride) if self.strided else 2 * (kernel_size - 1)

        def orthonormal(*shape: int) -> Tensor:
            # At first: the gradient of an orthogonalisation is then the plain projection on the tangent.
            matrix = torch.randn(shape, device=device, dtype=dtype)
            return polar_factor(at_least_single(matrix)).to(matrix.dtype).contiguous()

        self.weight = nn.Parameter(orthonormal(*shape))
        expands = self.strided and channels > inputs
        self.entry = nn.Parameter(orthonormal(groups, channels, inputs)) if expands else None
        spans = torch.randn(count, groups, channels, channels // 2, device=device, dtype=dtype)
        bases = orthonormal_basis(at_least_single(spans)).to(spans.dtype).contiguous()
        if bases.numel():
            self.bases = nn.Parameter(bases)
        else:
            # DDP would wait for the gradient of a parameter without entries.
            self.register_buffer("bases", bases)

    @property
    def strided(self) -> bool:
        """Whether the kernel itself has the stride."""
        return self.stride == 2 and self.kernel_size > 1

    @property
    def rearranges(self) -> bool:
        """Whether a space-to-depth comes in front: at stride 2, if the kernel is 1 x 1."""
        return self.stride == 2 and not self.strided

    @property
    def orthogonality_error(self) -> float:
        """Measured with a margin: (2 k + 1) (8 + sqrt(c)) eps.

        Each of at most 2 k + 1 orthogonalised matrices is off by a few eps, growing more slowly than sqrt(c).
        """
        channels = max(self.stride**2 * self.in_channels, self.out_channels)
        eps = torch.finfo(self.weight.dtype).eps
        return float((2 * self.kernel_size + 1) * (8 + channels**0.5) * eps)

    @property
    def steps(self) -> dict[str, int]:
        """Stride, dilation and groups of the convolution with the kernel."""
        return {"stride": 2 if self.strided else 1, "dilation": self.dilation, "groups": self.groups}

    def kernel(self, *, any_condition: bool = True) -> Tensor:
        """The kernel (out, in / groups, k, k) of the circular convolution, a function of the weights.

        Args:
            any_condition: as `polar_factor` takes it; a training step reads nothing back from its device.
        """
        with without_autocast(self.weight):
            matrix = polar_factor(at_least_single(self.weight), any_condition=any_condition)
            bases = orthonormal_basis(at_least_single(self.bases))
            if not self.strided:
                return grouped_kernel(None, matrix, bases).to(self.weight.dtype)
            if self.entry is None:
                inputs = self.in_channels // self.groups
                entry = torch.eye(inputs, dtype=matrix.dtype, device=matrix.device)
                entry = entry.expand(self.groups, -1, -1)
            else:
                entry = polar_factor(at_least_single(self.entry), any_condition=any_condition)
            return grouped_kernel(matrix, entry, bases).to(self.weight.dtype)

    def current_kernel(self) -> Tensor:
        """The kernel, cached while the weights are constant."""
        return self.derived(lambda: self.kernel(any_condition=not self.training).contiguous())

    def transform(self, x: Tensor) -> Tensor:
        """Convolve with the kernel."""
        return circular_conv2d(x, self.current_kernel(), **self.steps)

    def frozen_kernel(self) -> Tensor:
        """The finished kernel of weights that determine it."""
        weights = (self.weight, self.bases, self.entry)
        refuse_undetermined(self, *(weight for weight in weights if weight is not None))
        return self.kernel().detach().contiguous()

    def freeze_transform(self, height: int, width: int) -> CircularConvolution:
        """One circular convolution with the finished kernel."""
        return CircularConvolution(self.frozen_kernel(), self.frozen_bias(), **self.steps)

    def extra_repr(self) -> str:
        """The arguments, in the order and form of `nn.Conv2d`; groups and dilation only if they are not 1."""
        extra = {"groups": self.groups, "dilation": self.dilation}
        return super().extra_repr() + "".join(f", {k}={v}" for k, v in extra.items() if v != 1)
