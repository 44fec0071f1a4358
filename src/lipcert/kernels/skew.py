"""Skew-symmetric convolutions A on zero-padded maps, A^T = -A, and polynomials in them."""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipcert.kernels.channels import add_channels
from lipcert.kernels.constants import made_once, may_be_kept
from lipcert.kernels.eager import eager
from lipcert.kernels.functions import OfWeights
from lipcert.kernels.karatsuba import KaratsubaOperator, karatsuba_pays
from lipcert.kernels.one_map import ONE_MAP_PIXELS, Pairs, Span, by_held_taps, by_rows, pairs_of
from lipcert.kernels.packed_torus import PackedTorus, packed_torus_pays
from lipcert.kernels.precision import without_autocast
from lipcert.kernels.taps import fold_gradient, kernel_from_taps, kernel_size
from lipcert.kernels.torus import MATRIX_PIXELS, TorusOperator, torus_pays

Pivot = tuple[Tensor, Tensor, Tensor]
"""Two batches of maps u, v and the number <u, A v>."""


class SkewOperator:
    """The convolution A of given taps on zero-padded maps of one size: A x, p(A) x and <v, A u>.

    It runs as a convolution, on tiny maps as one matrix or by Karatsuba's trick, and for polynomials of large
    batches on small maps in a Fourier basis. Gradients use A^T = -A, so one operator serves both directions,
    and the gradient with respect to the taps is one correlation over the batches of all terms.

    Args:
        taps: (T, c, c), centre first. The centre must be skew; of its gradient only the skew part counts.
        height: height of the maps.
        width: width of the maps.
        scale: what the taps are multiplied by to give A; a tensor with one element, which may require
            gradients. It is never read, so that an accelerator need not be waited for.
        pivot: (left, right, <left, K right>) for the convolution K of the taps, such that `scale` is a
            constant divided by that product, to have its derivative in the gradient of the taps.
        fixed: whether the taps never change nor get a gradient, and serve many batches.
    """

    # oneDNN's weight gradient reaches a tenth of the speed of matrix products on maps of 4x4 and less. cuDNN
    # has no such cliff.
    TAP_PIXELS = 16

    def __init__(
        self,
        taps: Tensor,
        height: int,
        width: int,
        *,
        scale: Tensor | None = None,
        pivot: Pivot | None = None,
        fixed: bool = False,
    ) -> None:
        self.fixed = fixed and not taps.requires_grad and scale is None
        self.taps, self.height, self.width = taps, height, width
        self.scale, self.pivot = scale, pivot
        self.channels = taps.shape[1]
        self.size = kernel_size(taps)
        on_cpu = taps.device.type == "cpu"
        self.as_matrix = self.size == 1 or (on_cpu and height * width <= MATRIX_PIXELS)
        # oneDNN likes channels last, but has no float64; torch's own convolution is faster without.
        exact = on_cpu and taps.dtype == torch.float64
        self.layout = torch.contiguous_format if exact else torch.channels_last
        self.by_taps = self.size == 1 or (on_cpu and height * width <= self.TAP_PIXELS)
        self.one_is_special = exact and self.size > 1 and height * width <= ONE_MAP_PIXELS
        self.made: dict[str, Any] = {}

    def frame(self, batch: int) -> "Frame":
        """Where a polynomial of this operator is cheapest for so many maps; an exported graph serves any."""
        kind, shape = self.taps.dtype, (self.size, self.height, self.width)
        if self.taps.device.type != "cpu" or not isinstance(batch, int):
            return self
        if karatsuba_pays(kind, *shape):
            return self._karatsuba()
        if self.fixed and packed_torus_pays(kind, self.channels, *shape, max(batch, 1)):
            return self._packed_torus()
        return self._torus() if torus_pays(kind, self.channels, *shape, max(batch, 1)) else self

    @made_once
    def _karatsuba(self) -> KaratsubaOperator:
        return KaratsubaOperator(self.taps, self.scale)

    @made_once
    def _torus(self) -> TorusOperator:
        return TorusOperator(self.taps, self.height, self.width, self.scale)

    @made_once
    def _packed_torus(self) -> PackedTorus:
        return PackedTorus(self.taps, self.height, self.width)

    @made_once
    def _matrix(self) -> Tensor:
        if self.size > 1:
            return _times(self._dense(), self.scale)
        centre = self.taps[0].detach()
        return centre if self.scale is None else centre * self.scale

    @made_once
    def _kernel(self) -> Tensor:
        kernel = kernel_from_taps(self.taps.detach()).contiguous(memory_format=self.layout)
        return _times(kernel, self.scale)

    @made_once
    def _rows(self) -> Tensor:
        """The kernel as (out, k, k, in)."""
        rows = kernel_from_taps(self.taps.detach()).permute(0, 2, 3, 1).contiguous()
        return _times(rows, self.scale)

    @made_once
    def _pairs(self) -> Pairs:
        grid = torch.arange(self.height * self.width, device=self.taps.device)
        return pairs_of(list(map(self._overlap, range(1, len(self.taps)))), grid.view(self.height, -1))

    @torch.no_grad()
    def scaled(self, scale: Tensor, pivot: Pivot | None = None) -> "SkewOperator":
        """The operator with this scale in place of none; takes over the kernel that was made for this one."""
        other = SkewOperator(self.taps, self.height, self.width, scale=scale, pivot=pivot)
        for name in ("_kernel", "_matrix") if self.size > 1 else ():
            if name in self.made:
                other.made[name] = _times(self.made.pop(name), scale)
        return other

    @eager
    def series(self, x: Tensor, coefficients: tuple[float, ...], out_channels: int) -> Tensor:
        """First `out_channels` channels of p(A) x for p with real coefficients c_0, ..., c_d.

        Horner's rule needs d applications of A. The first only reads the channels that x has (those beyond,
        up to c, count as zero), the last only writes those that are kept.

        Args:
            x: (N, i, H, W) with i <= c, in the dtype of the taps.
            coefficients: c_0, ..., c_d with d >= 1.
            out_channels: at most c.
        """
        y: Tensor = _Series.apply(  # type: ignore[no-untyped-call]
            x, self.taps, self.scale, self, coefficients, out_channels
        )[0]
        return y

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """A x for x of at most c channels; without gradient."""
        frame = self.frame(len(x))
        with without_autocast(x):
            return frame.finish(frame.enter(x), self.channels)

    def enter(self, x: Tensor) -> Tensor:
        """Maps in the order that convolutions like."""
        return x.contiguous(memory_format=self.layout)

    def apply(self, x: Tensor, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """Return factor * A x + sum of coefficient * map, with all channels; without gradient."""
        return self.finish(x, self.channels, factor, *added)

    @torch.no_grad()
    def finish(self, x: Tensor, keep: int, factor: float = 1.0, *added: tuple[Tensor, float]) -> Tensor:
        """First `keep` channels of the same."""
        shift = sum(coefficient for other, coefficient in added if other is x)
        y = self._shifted(x, keep, factor, shift)
        for other, coefficient in added:
            if other is not x:
                add_channels(y, other, coefficient)
        return y

    def _shifted(self, x: Tensor, keep: int, factor: float, shift: float) -> Tensor:
        """First `keep` channels of (factor * A + shift) x."""
        n, i = x.shape[:2]
        if self.one_is_special and isinstance(n, int) and n == 1:
            if self.as_matrix:
                y = _times(by_held_taps(x, self.taps.detach(), keep, self._pairs()), self.scale)
            else:
                y = by_rows(x, self._rows()[:keep, :, :, :i])
            y = y if factor == 1.0 else y.mul_(factor)
            return add_channels(y, x, shift) if shift else y
        if not self.as_matrix:
            kernel = self._kernel()[:keep, :i]
            if isinstance(n, int) and kernel.numel() < x.numel() and (factor != 1.0 or shift):
                # Cheaper in the kernel than on the map.
                kernel = kernel * factor
                kernel[:, :, self.size // 2, self.size // 2].diagonal().add_(shift)
                factor, shift = 1.0, 0.0
            y = F.conv2d(x, kernel, padding=self.size // 2)
            y = y if factor == 1.0 else y.mul_(factor)
            return add_channels(y, x, shift) if shift else y
        flat = x.permute(0, 2, 3, 1).reshape(-1, i if self.size == 1 else self.height * self.width * i)
        if i == self.channels:
            y = F.linear(flat, self._matrix_rows(keep))
        else:
            # Few input channels are few columns; by skewness the same rows hold them: A x = -(x^T A)^T.
            y, factor = torch.mm(flat, self._matrix_rows(i)), -factor
            if keep < self.channels:
                y = y.view(-1, self.channels)[:, :keep]
        y = y if factor == 1.0 else y.mul_(factor)
        y = y.reshape(n, self.height, self.width, keep).permute(0, 3, 1, 2)
        return add_channels(y, x, shift) if shift else y

    def _overlap(self, index: int) -> tuple[Span, Span] | None:
        """Pixels p of the map for which p + t lies on the map too, t the offset of a held tap, and p + t."""
        h, w = self.height, self.width
        dy, dx = self._offset(len(self.taps) - 1 + index)
        if abs(dy) >= h or abs(dx) >= w:
            return None
        here = slice(max(0, -dy), h - max(0, dy)), slice(max(0, -dx), w - max(0, dx))
        there = slice(max(0, dy), h - max(0, -dy)), slice(max(0, dx), w - max(0, -dx))
        return here, there

    def _dense(self) -> Tensor:
        """Matrix with D[(p, o), (q, i)] = K[o, i, q - p]; rows and columns are pixels, then channels."""
        h, w, c = self.height, self.width, self.channels
        centre = len(self.taps) - 1
        blocks = {self._offset(centre + index): tap for index, tap in enumerate(self.taps)}
        mirrored = {(-dy, -dx): tap.T.contiguous().neg_() for (dy, dx), tap in blocks.items()}
        blocks = mirrored | blocks
        zero = self.taps.new_zeros(c, c)
        pixels = [(y, x) for y in range(h) for x in range(w)]
        matrix = self.taps.new_empty(h * w, c, h * w * c)
        for row, (y, x) in zip(matrix, pixels, strict=True):
            torch.cat([blocks.get((v - y, u - x), zero) for v, u in pixels], dim=1, out=row)
        return matrix.view(h * w * c, h * w * c)

    def _offset(self, raster: int) -> tuple[int, int]:
        """Spatial offset (dy, dx) of a tap of the full kernel, counted in raster order."""
        return raster // self.size - self.size // 2, raster % self.size - self.size // 2

    def _matrix_rows(self, channels: int) -> Tensor:
        """Rows of the matrix that belong to the first `channels` channels of every pixel."""
        matrix, name = self._matrix(), f"rows {channels}"
        if channels == self.channels:
            return matrix
        if name not in self.made:
            blocks = matrix.view(-1, self.channels, matrix.shape[1])
            rows = blocks[:, :channels].reshape(-1, matrix.shape[1])
            if not may_be_kept():
                return rows
            self.made[name] = rows
        return cast(Tensor, self.made[name])

    def tap_gradient(self, pairs: list[tuple[Tensor, Tensor, float]], total: Tensor | None = None) -> Tensor:
        """Gradient of the sum of factor * <outer, A inner> with respect to the held taps, plus `total`.

        Args:
            pairs: (outer, inner, factor) each.
            total: changed in place.
        """
        if not self.by_taps:
            for outer, inner, factor in pairs:
                total = self._correlate_by_convolution(outer, inner, factor, total)
        else:
            groups: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for outer, inner, factor in pairs:
                scaled = outer if factor == 1.0 else outer * factor
                groups.setdefault((outer.shape[1], inner.shape[1]), []).append((scaled, inner))
            for _, group in sorted(groups.items(), reverse=True):
                outer, inner = map(torch.cat, zip(*group, strict=True)) if len(group) > 1 else group[0]
                total = self._correlate_by_products(outer, inner, total)
        assert total is not None
        return total

    def _correlate_by_convolution(
        self, outer: Tensor, inner: Tensor, factor: float, total: Tensor | None
    ) -> Tensor:
        """Add the gradient for one pair, as the weight gradient of a full convolution that is then folded."""
        o, i = outer.shape[1], inner.shape[1]
        kernel, pad = outer.new_empty(o, i, self.size, self.size), [self.size // 2] * 2
        grads = torch.ops.aten.convolution_backward(
            outer, inner, kernel, [0], [1, 1], pad, [1, 1], False, [0, 0], 1, [False, True, False]
        )
        full = grads[1].permute(2, 3, 0, 1).reshape(-1, o, i)
        return fold_gradient(full, factor, self.channels, total)

    def _correlate_by_products(self, outer: Tensor, inner: Tensor, total: Tensor | None) -> Tensor:
        """The same by one matrix product for each held tap, with both of its directions side by side."""
        o, i, c = outer.shape[1], inner.shape[1], self.channels
        a, b = outer.permute(2, 3, 0, 1).contiguous(), inner.permute(2, 3, 0, 1).contiguous()
        fresh = total is None
        total = outer.new_zeros(len(self.taps), c, c) if total is None else total
        for index, tap in enumerate(total):
            if (spans := self._overlap(index)) is None:
                continue
            here, there = spans
            left, right = a[here].reshape(-1, o), b[there].reshape(-1, i)
            if index == 0:
                _accumulate(tap[:o, :i], left, right, fresh)
                continue
            mirrored_left, mirrored_right = b[here].reshape(-1, i), a[there].reshape(-1, o)
            if o == i == c:
                left = torch.cat([left, mirrored_left.neg()])
                _accumulate(tap, left, torch.cat([right, mirrored_right]), fresh)
            else:
                tap[:o, :i].addmm_(left.T, right)
                tap[:i, :o].addmm_(mirrored_left.T, mirrored_right, alpha=-1)
        return total


def _accumulate(total: Tensor, left: Tensor, right: Tensor, fresh: bool) -> None:
    """Add left^T right to the total, without reading one that is still zero."""
    if fresh and total.is_contiguous():
        torch.mm(left.T, right, out=total)
    else:
        total.addmm_(left.T, right)


def _times(fresh: Tensor, scale: Tensor | None) -> Tensor:
    """A tensor that nobody else holds, times a factor; in place."""
    return fresh if scale is None else fresh.mul_(scale)


Frame = SkewOperator | TorusOperator | PackedTorus | KaratsubaOperator


def horner(frame: Frame, x: Tensor, coefficients: Sequence[float], keep: int) -> tuple[Tensor, list[Tensor]]:
    """First `keep` channels of p(A) x, and what A was applied to on the way, x first."""
    degree = len(coefficients) - 1
    x = frame.enter(x)
    terms = [x]
    for power in range(degree - 1, 0, -1):
        factor = coefficients[degree] if power == degree - 1 else 1.0
        terms.append(frame.apply(terms[-1], factor, (x, coefficients[power])))
    factor = coefficients[degree] if degree == 1 else 1.0
    return frame.finish(terms[-1], keep, factor, (x, coefficients[0])), terms


class _Series(torch.autograd.Function):
    """p(A) x by Horner's rule: t_d = c_d x, t_j = A t_{j+1} + c_j x, y = t_0.

    With z_j = A^j g and A^T = -A the gradients are: for x, p(-A) g, the sum of c_j (-1)^j z_j; for A, G = sum
    of (-1)^j z_j t_{j+1}^T. With A = s K they are s G for K and <G, K> for s. So y is returned with what A
    was applied to, but for an x that was in order.
    """

    @staticmethod
    def forward(
        x: Tensor,
        taps: Tensor,
        scale: Tensor | None,
        operator: SkewOperator,
        coefficients: tuple[float, ...],
        out_channels: int,
    ) -> tuple[Tensor, ...]:
        with without_autocast(x):
            y, terms = horner(operator.frame(x.shape[0]), x, coefficients, out_channels)
        return y, *(term for term in terms if term is not x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, taps, _, ctx.operator, ctx.coefficients, _ = inputs
        ctx.inputs, terms = x.shape[1], output[1:]
        ctx.mark_non_differentiable(*terms)
        ctx.save_for_backward(taps, *(terms if len(terms) == len(ctx.coefficients) - 1 else (x, *terms)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        with without_autocast(grad):
            if any(ctx.needs_input_grad[1:3]):
                return (*_Series._gradients(ctx, grad), None, None, None)
        signed = tuple(c * (-1) ** j for j, c in enumerate(ctx.coefficients))
        return (ctx.operator.series(grad, signed, ctx.inputs), *[None] * 5)

    @staticmethod
    def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        operator, coefficients = ctx.operator, ctx.coefficients
        taps, *terms = ctx.saved_tensors
        frame, degree = operator.frame(grad.shape[0]), len(coefficients) - 1
        assert not isinstance(frame, PackedTorus)  # its taps are fixed
        powers = [frame.enter(grad)]  # z_0, ..., z_{d-1} with their signs
        for _ in range(degree - 1):
            powers.append(frame.apply(powers[-1], -1.0))
        grad_x = None
        if ctx.needs_input_grad[0]:
            lower = zip(powers, coefficients[:degree], strict=True)
            grad_x = frame.finish(powers[-1], ctx.inputs, -coefficients[degree], *lower)
        # The last factor is that of t_d = c_d x, which is held as x.
        factors = [1.0] * (degree - 1) + [coefficients[degree]]
        grad_taps = frame.tap_gradient(list(zip(powers, reversed(terms), factors, strict=True)))
        scale = operator.scale
        if scale is None:
            return grad_x, grad_taps, None
        radial = (grad_taps * taps).sum(dtype=torch.promote_types(taps.dtype, torch.float32))
        grad_taps.mul_(scale)
        if operator.pivot is not None:
            # s = constant / n with n = <left, K right>, so ds = -(s / n) dn.
            left, right, norm = operator.pivot
            factor = torch.where(norm != 0, -radial * scale / norm, 0.0)
            grad_taps = operator.tap_gradient([(left * factor.to(left.dtype), right, 1.0)], grad_taps)
        return grad_x, grad_taps, radial.to(scale.dtype) if ctx.needs_input_grad[2] else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, taps: Tensor, *rest: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        """A batch of batches is a larger batch."""
        if in_dims[0] is None or any(dim is not None for dim in in_dims[1:3]):
            OfWeights.vmap(info, in_dims)
        images = x.movedim(in_dims[0], 0).flatten(0, 1)  # type: ignore[arg-type]
        y, *terms = _Series.apply(images, taps, *rest)  # type: ignore[no-untyped-call]
        return (y.unflatten(0, (info.batch_size, -1)), *terms), (0, *[None] * len(terms))
