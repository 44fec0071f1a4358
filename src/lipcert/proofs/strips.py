r"""Proved norms of skew convolutions on zero-padded maps, tighter than those of the circle around the map.

A zero-padded map sees less of a kernel than a circle does: for random 3x3 kernels the circle's norm is 50%
too large for 2x2 maps, 15% for 4x4, 4% for 8x8, 1% for 16x16. Here the rows of the map are kept as they
are. A strip of rows only touches its neighbours, so s I - iA is block tridiagonal, and its factorisation
runs from strip to strip. Along a row the operator is either a dense matrix (exact) or one matrix per
frequency of the circle around the row, which makes blocks small and loses half of what the full circle
loses.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lipcert.proofs.eigenvalues import cholesky_error, ritz_values, search, start_vectors, trace_up
from lipcert.proofs.rounding import TINY, sum_up

GAP = 5e-4
TOLERANCE = 5e-3  # one factorisation may take seconds, and polynomials of skew operators are flat


class Strips:
    """A stack of block tridiagonal Hermitian matrices that repeat one diagonal and one subdiagonal block.

    Args:
        taps: (2r + 1, stack, m, m), i times the operator from row y + t to row y, for t = -r, ..., r.
        rows: number of rows of the map.
        symmetric_spectrum: bound only the largest eigenvalue, else the largest absolute value.
        kept: (rows, m) of ones and zeros, for a principal submatrix: rows and columns with a zero are
            taken out. An eigenvalue 0 for each of them stays, which is no larger than that of a dilation.
    """

    def __init__(
        self, taps: Tensor, rows: int, *, symmetric_spectrum: bool, kept: Tensor | None = None
    ) -> None:
        reach = len(taps) // 2
        self.signs = (1,) if symmetric_spectrum else (1, -1)
        # A strip of `reach` rows touches only the strips next to it; the last strip may be cut short.
        self.height, self.size = max(1, reach), taps.shape[-1]
        self.strips, self.last = -(-rows // self.height), (rows - 1) % self.height + 1
        if reach == 0 and kept is None:  # all rows are alike and alone
            self.strips = 1
        self.diagonal = self._block(taps, reach, 0)
        self.below = self._block(taps, reach, -self.height)
        if kept is not None:
            kept = F.pad(kept, (0, 0, 0, self.strips * self.height - rows)).view(self.strips, -1, 1)
        self.kept = kept

    def _block(self, taps: Tensor, reach: int, offset: int) -> Tensor:
        """From the rows j of one strip to the rows i of the strip -offset rows further down."""
        if reach == 1:  # strips of one row
            return taps[offset + reach]
        zero = torch.zeros_like(taps[0])
        block = [
            [taps[t] if 0 <= (t := j - i + offset + reach) <= 2 * reach else zero for j in range(self.height)]
            for i in range(self.height)
        ]
        return torch.cat([torch.cat(row, dim=-1) for row in block], dim=-2)

    def eigenvalue_upper_bound(
        self,
        proved: float,
        estimate: float | None = None,
        *,
        gap: float = GAP,
        tolerance: float = TOLERANCE,
    ) -> float:
        """Bound on the eigenvalues, not below `proved`.

        Args:
            proved: what other matrices have been bounded by already.
            estimate: of the largest eigenvalue, if the caller knows a cheap one.
            gap: relative distance between the estimate and the first guess.
            tolerance: relative distance between a failed and a successful guess that ends the search.
        """
        n = self.strips * self.diagonal.shape[-1]
        if estimate is None:
            values = ritz_values(self._apply, start_vectors(len(self.diagonal), n).to(self.diagonal.dtype))
            estimate = max(float((sign * values).max()) for sign in self.signs)
        floor = max(proved, n * 2.0**-44)
        return max(proved, search(self._prove, estimate, gap, floor, tolerance))

    def _apply(self, vector: Tensor) -> Tensor:
        """Product of the matrices with vectors (stack, n, 1)."""
        columns = vector.view(len(vector), self.strips, -1).mT.contiguous()
        columns[:, self.last * self.size :, -1] = 0
        result = self.diagonal @ columns
        result[:, :, 1:] += self.below @ columns[:, :, :-1]
        result[:, :, :-1] += self.below.mH @ columns[:, :, 1:]
        result[:, self.last * self.size :, -1] = 0
        return result.mT.reshape(vector.shape)

    def _shifted(self, guess: float, sign: int, strip: int) -> Tensor:
        """The block on the diagonal of s I - sign * H."""
        shifted = -sign * self.diagonal
        if self.kept is not None:
            shifted = shifted * self.kept[strip] * self.kept[strip].mT
        shifted.diagonal(dim1=1, dim2=2).add_(guess)
        return shifted

    def _coupling(self, strip: int) -> Tensor:
        """The block below it, transposed and up to its sign."""
        below = self.below.mH
        return below if self.kept is None else below * self.kept[strip] * self.kept[strip + 1].mT

    def _prove(self, guess: float) -> float | None:
        bound = 0.0
        for sign in self.signs:
            shifted = self._shifted(guess, sign, 0)
            entries = shifted.diagonal(dim1=1, dim2=2).real
            if self.kept is not None:  # what is taken out has `guess` on the diagonal
                entries = entries.clamp(min=guess)
            trace = float(entries.sum(dim=1).max()) * self.strips
            block = shifted
            for strip in range(self.strips):
                last = strip == self.strips - 1
                if last:
                    block = block[:, : self.last * self.size, : self.last * self.size]
                factor, info = torch.linalg.cholesky_ex(block)
                if bool(info.any()) or not bool(torch.isfinite(factor.diagonal(dim1=1, dim2=2).real).all()):
                    return None
                if not last:
                    # Signs of the coupling drop out of the next block: it enters as Y^H Y.
                    solved = torch.linalg.solve_triangular(factor, self._coupling(strip), upper=False)
                    following = shifted if self.kept is None else self._shifted(guess, sign, strip + 1)
                    block = _minus_gram(following, solved)
            # An entry of the factor sums over at most two strips. The trace counts the last strip as a whole,
            # which only makes it larger: a diagonal that was factorised in the first strip is positive.
            terms = 2 * self.diagonal.shape[-1]
            error = cholesky_error(terms, trace_up(trace, self.strips * self.diagonal.shape[-1]))
            bound = max(bound, sum_up(guess, error, TINY))
        return bound


def _minus_gram(matrices: Tensor, solved: Tensor) -> Tensor:
    """The lower triangle of X - Y^H Y; most of the upper one is left out, which no factorisation reads."""
    result, n = matrices.clone(), solved.shape[-1]
    step = max(64, -(-n // 4))
    for start in range(0, n, step):
        span = slice(start, start + step)
        result[:, start:, span] -= solved[:, :, start:].mH @ solved[:, :, span]
    return result
